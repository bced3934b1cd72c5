"""For every reader the files that cost it most for their size: dense, repeated, nested or claiming too much.

A file is some megabytes long. What a reader may take is 64 MB and so many times the size of the file.
"""
# ruff: noqa: UP031, PLW0108  JSON is full of braces, which the other ways of formatting want doubled

from __future__ import annotations

import io
import json
import os
import sqlite3
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fuzz_seeds as seeds
import numpy as np

# A file of this size shows what 64 MB may not hide only if it is much larger: try 40000000 as well.
SIZE = int(os.environ.get("TWINPROBE_WORST_SIZE", "4000000"))
TIMES, PACKED = 3, 10


@dataclass(frozen=True)
class Worst:
    """A file for a reader of tests/fuzz, and how many times its size the reader may take beyond 64 MB."""

    reader: str
    times: int
    content: Callable[[], bytes]


def _dump(entries: str) -> bytes:
    head = '"task": "statistics", "level": "L1", "framework": "pytorch"'
    return f'{{{head}, "data": {{{entries}}}}}'.encode()


def _part(lines: Iterator[str]) -> bytes:
    return ('{"task": "statistics", "level": "L1", "framework": "pytorch"}\n' + "\n".join(lines)).encode()


def _call(arguments: str, number: int = 0, name: str = "f") -> str:
    return f'"Torch.{name}.{number}.forward":{{"input_args":[{arguments}]}}'


def _many(text: str, size: int = SIZE) -> str:
    return ",".join([text] * (size // (len(text) + 1)))


def _calls(arguments: str, name: str = "f") -> str:
    return ",".join(_call(arguments, at, name) for at in range(SIZE // len(_call(arguments, 99_999, name))))


def _keys(text: str, size: int = SIZE) -> str:
    return ",".join(text % at for at in range(size // len(text % 999_999)))


_LEAF = '{"type":"torch.Tensor","dtype":"torch.float32","shape":[2],"md5":"0badf00d"}'
_NAN = '{"type":"t","dtype":"d","shape":[],"Max":NaN,"Min":NaN,"Mean":-Infinity,"Norm":NaN}'
_VALUE = '{"type":"str","value":[%s]}'
_SIZE_OF = '{"type":"torch.Size","value":[%s]}'
_ALL = (  # each column that is mostly empty is not, in one row of some thousand
    ",".join(
        [
            '{"type":"t","dtype":"d","shape":[0],"Max":"a","Min":"b","Mean":"c","Norm":"d","md5":"e","data_name":"f","layout":"g"}'
        ]
        + ['{"type":"slice","value":[0]}']
        + [_LEAF] * 20
    )
)
_DUMPS: dict[str, Callable[[], bytes]] = {
    "nulls in one call": lambda: _dump(_call(_many("null"))),
    "keys in one call": lambda: _dump('"Torch.f.0.forward":{"input_kwargs":{%s}}' % _keys('"k%d":null')),
    "empty lists in one call": lambda: _dump(_call(_many("[]"))),
    "nulls in many calls": lambda: _dump(_calls(_many("null", 5000))),
    "calls of nothing": lambda: _dump(_keys('"%d.forward":{}')),
    "entries that are no calls": lambda: _dump(_keys('"%d":0')),
    "dense checksums": lambda: _dump(_calls(_many(_LEAF, 320))),
    "statistics that are NaN": lambda: _dump(_calls(_many(_NAN, 900))),
    "NaN beside the statistics": lambda: _dump(_calls(_LEAF.replace("}", ',"x":NaN}'))),
    "cut off": lambda: _dump(_calls(_many(_LEAF, 320)))[:-3000],
    "wide characters": lambda: _dump(_calls('{"type":"str","value":"\U0001f600%s","x":NaN}' % ("a" * 150))),
    "long names": lambda: _dump(_calls(_many("null", 200), "f" * 300)),
    "long names of wide characters": lambda: _dump(_calls("null", "\U0001f600" + "f" * 300)),
    "small objects in one call": lambda: _dump(_call(_many('{"a":0}', 1_200_000)) + "," + _calls(_LEAF)),
    "small objects in one value": lambda: _dump(_calls(_VALUE % _many('{"a":0}', 1_000_000))),
    "small objects beside NaN": lambda: _dump(_calls(_VALUE % ("NaN," + _many('{"a":0}', 1_000_000)))),
    "the smallest values": lambda: _dump(_calls(_many('{"type":""}', 1_000_000))),
    "short values": lambda: _dump(_calls(_many('{"type":"int","value":1}', 400))),
    "values of few bytes that are shown as many": lambda: _dump(_calls(_SIZE_OF % _many("1e15", 3000))),
    "one long text of wide characters": lambda: _dump(_call(_VALUE % ('"\U0001f600%s"' % ("a" * SIZE)))),
    "long texts of wide characters": lambda: _dump(_calls(_VALUE % ('"\U0001f600%s"' % ("a" * 200_000)))),
    "texts in all columns": lambda: _dump(_calls(_ALL)),
    "all in order but the last": lambda: _dump(_calls(_many(_LEAF, 400)) + "," + _call("null")),
    "a name again and again": lambda: _dump(_many(_call(_LEAF))),
}
_PARTS: dict[str, Callable[[], bytes]] = {
    "empty lines": lambda: _part(iter(["\n" * SIZE])),
    "one line": lambda: _part(iter(["{%s}" % _call(_many("null"))])),
    "lines of nulls": lambda: _part("{%s}" % _call(_many("null", 5000), at) for at in range(SIZE // 5000)),
}
_POINTS: dict[str, Callable[[], bytes]] = {
    "points that are null": lambda: _dump(_keys('"a%d.debug":null')),
    "a list of nulls": lambda: _dump('"a.0.debug":[%s]' % _many("null")),
}


def _pt(elements: bytes, claim: int, method: int) -> bytes:
    """A file of torch.save with one float32 tensor that claims so many elements."""
    pickled = (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpu"
        b"J%btQK\0J%b\x85K\1\x85\x89ccollections\nOrderedDict\n)RtR." % (2 * (claim.to_bytes(4, "little"),))
    )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/version", "3\n")
        archive.writestr("a/data/0", elements)
    return file.getvalue()


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _atb(code: int, dims: str, payload: bytes) -> bytes:
    head = f"$Version=1.0\n$Object.Count=1\n$Object.Length={len(payload)}\nformat=2\ndtype={code}\ndims={dims}\n"
    return f"{head}$Object.data=0,{len(payload)}\n$End=1\n".encode() + payload


def _vis() -> bytes:
    names = [f"Module.m{at}.M.forward.0" for at in range(20_000)]
    node = {"node_type": 0, "output_data": {}, "input_data": {}, "upnode": "DefaultModel", "subnodes": []}
    nodes = {name: {"id": name, **node} for name in names}
    root = {"id": "DefaultModel", **node, "upnode": "None", "subnodes": names}
    return json.dumps({"root": "DefaultModel", "node": {"DefaultModel": root, **nodes}}).encode()


def _database() -> bytes:
    """A sound graph file with a thousand nodes of long texts beside its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.vis.db")
        path.write_bytes(seeds.vis_databases()[0])
        database = sqlite3.connect(path)
        columns = ", ".join(row[1] for row in database.execute("PRAGMA table_info(tb_nodes)") if row[1] != "id")
        text = columns.replace("node_name", f"node_name || '{'x' * 5000}'", 1)
        for _ in range(6):
            database.execute(f"INSERT INTO tb_nodes ({columns}) SELECT {text} FROM tb_nodes")
        database.commit()
        database.close()
        return path.read_bytes()


_TENSORS: list[tuple[str, str, Callable[[], bytes]]] = [
    ("pt", "stored", lambda: _pt(bytes(SIZE), SIZE // 4, zipfile.ZIP_STORED)),
    ("pt", "a compressed one that unpacks to a thousand times its size",
     lambda: _pt(bytes(64_000_000), 16_000_000, zipfile.ZIP_DEFLATED)),
    ("pt", "one that claims more than it has", lambda: _pt(bytes(SIZE), 1 << 30, zipfile.ZIP_STORED)),
    ("npy", "columns first, the other byte order", lambda: _npy(np.asfortranarray(np.ones((1000, 1500), ">f4")))),
    ("npy", "a few bytes that claim eight terabytes",
     lambda: _npy(np.ones(4, "<f8")).replace(b"(4,), }" + b" " * 12, b"(1099511627776,), }")),
    ("bin", "plain", lambda: _atb(0, f"{SIZE // 4}", bytes(SIZE))),
    ("vis", "many nodes", _vis),
    ("vis_db", "long names", _database),
]  # fmt: skip


def _yaml(text: str) -> bytes:
    return text.encode()


_YAML: dict[str, Callable[[], bytes]] = {
    "one letter for each value": lambda: _yaml("a: [" + _many("a") + "]"),
    "keys of few letters": lambda: _yaml("".join(f"{at:x}: b\n" for at in range(SIZE // 9))),
    "empty lists": lambda: _yaml("a: [" + _many("[]") + "]"),
    "plain lines of few letters": lambda: _yaml("".join(f"a{at:x}: b\n" for at in range(SIZE // 9))),
    "long plain lines": lambda: _yaml("".join(f"a{at:x}{'x' * 45}: b{'y' * 45}\n" for at in range(SIZE // 100))),
    "lines below a class": lambda: _yaml("A:\n" + "".join(f"  a{at:x}.b.c: d.e.f\n" for at in range(SIZE // 20))),
    "names of many parts": lambda: _yaml(
        "A:\n" + "".join(f"  {'ab.cd.' * 50}{at:x}: x\n" for at in range(SIZE // 310))
    ),
}
_TREES: dict[str, dict[str, Callable[[], bytes]]] = {
    "stack": {
        "short frames": lambda: ('{"a":["%s"]}' % _keys("%d").replace(",", '","')).encode(),
        "numbers": lambda: ('{"a":[%s]}' % _keys("%d")).encode(),
        "short frames of many calls": lambda: ("{%s}" % _keys('"a%d":["b"]')).encode(),
        "long frames": lambda: ("{%s}" % _keys('"a%d":["File x.py, line 1, in f, return self.layers(x)"]')).encode(),
        "one site of all calls": lambda: ('{"0":[[%s],[]]}' % _keys('"Torch.a.%d.forward"')).encode(),
        "sites of few calls": lambda: ('{"0":[[],["a"]],%s}' % _keys('"%d":[["Torch.a.0.forward"],["b"]]')).encode(),
        "wide frames": lambda: ("{%s}" % _keys('"a%d":["\U0001f600' + "a" * 300 + '"]')).encode(),
    },
    "construct": {
        "short names": lambda: ("{%s}" % _keys('"%d":null')).encode(),
        "names of calls": lambda: ("{%s}" % _keys('"Module.layers.%d.mlp.MLP.forward.0":"Module.forward.0"')).encode(),
        "wide names": lambda: ("{%s}" % _keys('"\U0001f600' + "a" * 300 + '%d":null')).encode(),
        "parents of their own": lambda: ("{%s}" % ",".join(f'"a{at}":"b{at}"' for at in range(SIZE // 19))).encode(),
        "cuts where none are": lambda: ('{"a":"%s"}' % _keys(',":%d')).encode(),
        "lists": lambda: ("{%s}" % _keys('"%d":[]')).encode(),
    },
    "model_tree": {
        "small children": lambda: ('{"name":"r","children":[%s]}' % _many('{"name":"a"}')).encode(),
        "children with all": lambda: (
            '{"name":"r","children":[%s]}' % _keys('{"name":"root.layers.%d","type":"Linear","children":[]}')
        ).encode(),
    },
    "topology": {
        "small operators": lambda: ('{"nodes":[%s]}' % _many('{"opType":"a"}')).encode(),
        "tensors": lambda: ('{"nodes":[{"opType":"a","inTensors":[%s]}]}' % _keys('"t%d"')).encode(),
        "long names": lambda: (
            '{"nodes":[%s]}' % _keys('{"opType":"a","inTensors":["' + "t" * 80 + '%d"],"param":{"a":1}}')
        ).encode(),
        "operators of many bytes": lambda: ('{"nodes":[%s]}' % _many('{"opType":"%s"}' % ("a" * 650))).encode(),
    },
    "kernel_names": {
        "short lines": lambda: "".join(f"{at:x},b\n" for at in range(SIZE // 9)).encode(),
        "one line": lambda: _many("ab").encode(),
        "one row of many lines": lambda: _many('"\n"').encode(),
    },
    "llm_statistics": {
        "short lines": lambda: b"InputOutput,Max\n" + b"input,1\n" * (SIZE // 8),
        "one row of many lines": lambda: b"InputOutput,Max\n" + _many('"\n"').encode(),
    },
    "kernel_statistics": {
        "short lines": lambda: b"a,b,c,d,e,f,g,h,i,j,k,l,m\n" + b"a,b,0,0,1,input,0,,,,,,\n" * (SIZE // 25),
        "one row of many lines": lambda: b"a,b,c,d,e,f,g,h,i,j,k,l,m\n" + _many('"\n"').encode(),
    },
    "result_csv": {
        "commas": lambda: b"," * SIZE,
        "commas after a title of two lines": lambda: b'"NPU\nName"' + b"," * SIZE,
        "a row of commas": lambda: b"NPU Name,Bench Name,Cosine,NPU max,Bench max\n" + b"," * SIZE,
    },
    "merge_config": {
        "short names": lambda: ("api: [%s]" % _keys("a%d")).encode(),
        "commas": lambda: b"," * SIZE,
        "commas in a list": lambda: b"api: [" + b"," * SIZE,
    },
    "op_mapping": {
        "short names": lambda: ("{%s}" % _keys('"a%d":["b"]', 1 << 20)).encode(),
        "more than is read": lambda: ("{%s}" % _keys('"a%d":["b"]')).encode(),
    },
    "alignment": {
        "numbers": lambda: ('{"relations":[%s]}' % _many("0")).encode(),
        "wide names": lambda: ('{"relations":[%s]}' % _keys(
            '{"target":"\U0001f600' + "a" * 200 + '%d","golden":"\U0001f600b"}')).encode(),
        "relations as they are written": lambda: ('{"relations":[%s]}' % ",".join(
            f'{{"target": ["Module.layers.{at}.mlp.MLP.forward.0"], "golden": ["Module.h.{at}.mlp.MLP.forward.0"], '
            f'"kind": "same", "rule": "position", "reason": "it stands at place {at} of both", "confidence": 0.97}}'
            for at in range(SIZE // 210))).encode(),
        "short names": lambda: ('{"relations":[%s]}' % _keys('{"target":"a%d","golden":"b"}')).encode(),
        "names of calls": lambda: ('{"relations":[%s]}' % ",".join(
            f'{{"target": "Module.layers.{at}.mlp.MLP.forward.0", "golden": "Module.h.{at}.mlp.MLP.forward.0"}}'
            for at in range(SIZE // 100))).encode(),
    },
    "compare_json": {"short names": lambda: ('{"npu_path":"a",%s}' % _keys('"a%d":0')).encode()},
}  # fmt: skip


def _state(body: bytes) -> bytes:
    """A checkpoint of torch.save whose pickle is this."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\x80\x02" + body + b".")
        archive.writestr("a/version", "3\n")
    return file.getvalue()


def _safetensors(entries: str) -> bytes:
    return len(entries).to_bytes(8, "little") + entries.encode()


def _npz(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, x=array)
    return file.getvalue()


_FOREIGN: dict[str, dict[str, Callable[[], bytes]]] = {
    "state": {
        "empty lists": lambda: b"\x80\x02](" + b"]" * SIZE + b"e.",
        "nothing": lambda: b"\x80\x02](" + b"N" * SIZE + b"e.",
        "an entry of the memo for each byte": lambda: b"\x80\x02N" + b"\x94" * SIZE + b".",
        "a packed pickle": lambda: _state(b"](" + b"]" * (SIZE * 20) + b"e"),
        "one list in many": lambda: b"\x80\x02]" + b"".join(b"q%c](h%ch%ce" % (at, at, at) for at in range(60)) + b".",
    },
    "safetensors": {
        "empty tensors": lambda: _safetensors(
            "{%s}" % _keys('"%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}', SIZE)
        ),
        "nothing but brackets": lambda: _safetensors("{" + '"a":[%s]' % _many("[]") + "}"),
    },
    "npz": {"packed zeros": lambda: _npz(np.zeros(SIZE * 10))},
    "ckpt": {"empty values": lambda: b"\x0a\x0c\x0a\x01a\x12\x07\x08\x00\x12\x03F16" * (SIZE // 14)},
    "polygraphy": {
        "a long key above many values": lambda: (
            '{"module_path":"M","inputs":{"%s":[%s]}}' % ("k" * (SIZE // 2), ",".join(['"a"'] * 50_000))
        ).encode(),
        "long keys in one another": lambda: (
            '{"lst":' + "".join('{"%s":' % ("k" * (SIZE // 200)) for _ in range(190)) + "0" + "}" * 191
        ).encode(),
        "the same of modules": lambda: (
            '{"module_path":"M","inputs":'
            + "".join('{"%s":' % ("k" * (SIZE // 200)) for _ in range(190))
            + '"a"'
            + "}" * 191
        ).encode(),
    },
    "debug_mode": {
        "lines of their own": lambda: _keys("aten::a%d(t: f32[1])  ->  \n").replace(",", "").encode(),
        "short lines": lambda: b"aten::a(t: f32[1])  ->  t: f32[1]\n" * (SIZE // 34),
        "a long name for each of many tensors": lambda: (
            b"aten::b(t: f32[1])  ->  t: f32[1]\n"
            + (b"aten::" + b"a" * 30_000 + b"(" + b"t: f[1]," * 4_000 + b")  ->  t: f[1]\n") * (SIZE // 62_000)
        ),
        "a statistic for each of many tensors": lambda: "".join(
            f"{at}_min iteration=1 value=1\n" for at in range(SIZE // 30)
        ).encode(),
    },
}


def worst_files() -> dict[str, Worst]:
    """All of them, by reader and what is bad about the file."""
    found = {f"{reader}: {what}": Worst(reader, TIMES, content) for reader, what, content in _TENSORS}
    for code, elements in ((29, 2), (30, 8), (40, 2)):
        what = f"bin: {elements} elements in a byte, of type {code}"
        found[what] = Worst("bin", PACKED, partial(_atb, code, f"{elements},{SIZE}", bytes(SIZE)))
    for reader, files in (("dump", _DUMPS), ("part", _PARTS), ("debug", _POINTS)):
        found |= {f"{reader}: {what}": Worst(reader, TIMES, content) for what, content in files.items()}
    for reader in ("api_mapping", "cell_mapping", "data_mapping", "layer_mapping"):
        few = reader in ("cell_mapping", "data_mapping")  # they share a reader
        found |= {
            f"{reader}: {what}": Worst(reader, TIMES, content)
            for what, content in _YAML.items()
            if not few or "plain" in what
        }
    for reader, files in _FOREIGN.items():
        found |= {f"{reader}: {what}": Worst(reader, TIMES, content) for what, content in files.items()}
    for reader, files in _TREES.items():
        found |= {f"{reader}: {what}": Worst(reader, TIMES, content) for what, content in files.items()}
    return found
