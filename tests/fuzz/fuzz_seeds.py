"""Small real files, one list for each kind: cut from recorded dumps, or written by the program itself."""

from __future__ import annotations

import io
import json
import sqlite3
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "data"


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _some(document: dict[str, Any], count: int) -> dict[str, Any]:
    """Entries from all over a file."""
    names = list(document)
    step = max(len(names) // count, 1)
    return {name: document[name] for name in names[::step][:count]}


def _cut(path: str, count: int = 6) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((DATA / path).read_text())
    return document | {"data": _some(document["data"], count)}


def dumps() -> list[bytes]:
    files = (
        "align/pt/dump.json",
        "align/ms/dump.json",
        "frameworks/paddle/dump.json",
        "cross/torch/step0/rank0/dump.json",
    )
    checksums = _cut(files[0], 3)
    text = json.dumps(checksums).replace('"Norm"', '"md5": "0badf00d", "Norm"')
    values = {
        "input_args": [{"type": "int", "value": 3}, {"type": "slice", "value": [None, 2, None]}, None],
        "input_kwargs": {"dst": {"type": "int", "value": 1}, "group": {"type": "g", "group_ranks": [0, 1]}},
        "output": [{"type": "torch.Size", "value": [1, 2]}, [{"a": {"type": "float", "value": 0.5}}]],
    }  # fmt: skip
    made = {"task": "statistics", "level": "L1", "framework": "pytorch", "data": {"Torch.f.0.forward": values}}
    special = json.dumps(_cut(files[3], 2)).replace('"Max": ', '"Max": NaN, "Min": -Infinity, "Old": ', 1)
    return [_json(_cut(file)) for file in files] + [text.encode(), _json(made), special.encode()]


def parts() -> list[bytes]:
    document = _cut("align/pt/dump.json", 4)
    entries = document.pop("data")
    return [b"\n".join([_json(document), *(_json({name: entry}) for name, entry in entries.items())])]


def points() -> list[bytes]:
    leaf = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": 1.0,
        "Min": 0,
        "Mean": 0.5,
        "Norm": 1.0,
    }
    data = {"x.0.debug": leaf, "y.0.debug": {"a": [leaf, {"type": "int", "value": 1}]}, "x_grad.0.debug": leaf}
    return [
        _json({"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None, "data": data})
    ]


def stacks() -> list[bytes]:
    grouped = json.loads((DATA / "align/pt/stack.json").read_text())
    return [_json(_some(grouped, 3)), _json({"Torch.f.0.forward": ["File a.py, line 1, in f, \n x"], "b": []})]


def constructs() -> list[bytes]:
    plain = json.loads((DATA / "align/pt/construct.json").read_text())
    listed = json.loads((DATA / "frameworks/torch/construct.json").read_text())
    return [
        _json(_some(plain, 12)),
        _json(_some(listed, 12)),
        _json({"a.forward.0": ["b.forward.0", 1], "b.forward.0": None}),
    ]


def tensors() -> list[bytes]:
    return [path.read_bytes() for path in sorted((HERE / "seeds").glob("*.pt"))]


def arrays() -> list[bytes]:
    found = []
    for array in (np.arange(6, dtype="<f4").reshape(2, 3), np.asfortranarray(np.ones((3, 2), ">c8")), np.array(True)):
        file = io.BytesIO()
        np.save(file, array)
        found.append(file.getvalue())
    return found


def atb_files() -> list[bytes]:
    def lines(code: int, dims: str, payload: bytes, *more: str) -> bytes:
        head = ["$Version=1.0", "$Object.Count=1", f"$Object.Length={len(payload)}", "format=2", f"dtype={code}"]
        head += [f"dims={dims}", f"$Object.data=0,{len(payload)}", *more, "$End=1", ""]
        return "\n".join(head).encode() + payload

    packed = [lines(code, "2,4", bytes(range(8))) for code in (29, 34, 38, 40)]
    described = lines(1, "4,4", b"", "max=1.0", "min=-1", "mean=0", "l2norm=2")
    return [
        lines(0, "2,3", bytes(24)),
        lines(33, "2", bytes(8)),
        described,
        lines(0, "3", b"", "data=1_outtensor0.bin"),
        *packed,
    ]


@cache
def _graphs() -> tuple[list[bytes], list[bytes]]:
    """Files of both kinds as the program draws them, from runs of a few calls."""
    from twinprobe._align.mapping import MappingOptions
    from twinprobe._graph.job import GraphRequest, run_request

    with tempfile.TemporaryDirectory() as work:
        folder = Path(work, "run")
        folder.mkdir()
        (folder / "dump.json").write_bytes(dumps()[0])
        (folder / "construct.json").write_bytes(_json(dict.fromkeys(json.loads(dumps()[0])["data"])))
        (folder / "stack.json").write_bytes(stacks()[0])
        found: dict[str, list[bytes]] = {"vis": [], "db": []}
        for form, files in found.items():
            for golden in (None, folder):
                request = GraphRequest(
                    folder, golden, Path(work, "out", form), form, "20260101000000", MappingOptions()
                )
                (file,) = run_request(request, lambda *_: None).files
                files.append(_small(file) if form == "db" else file.read_bytes())
    return found["vis"], found["db"]


def _small(file: Path) -> bytes:
    database = sqlite3.connect(file, isolation_level=None)
    database.execute("PRAGMA page_size=1024")
    database.execute("VACUUM")
    database.close()
    return file.read_bytes()


def vis_files() -> list[bytes]:
    return _graphs()[0]


def vis_databases() -> list[bytes]:
    return _graphs()[1]


def mappings(kind: str) -> list[bytes]:
    anchors = b"A: &a\n  x: y\nB:\n  <<: *a\n  z: 'w'\nC: *a\n"
    return [path.read_bytes() for path in sorted((DATA / "align/mapping").glob(f"{kind}_*.yaml"))] + [anchors]


def merge_configs() -> list[bytes]:
    return [
        b"api:\n- Distributed.all_reduce\n- Torch.add\ncompare_index:\n- Max diff\n- L2norm diff\n",
        b"api: [a.b]\n",
    ]


def compare_files() -> list[bytes]:
    text = b'{\n"npu_path": "./npu", # remark\n"bench_path": "bench",\n"is_print_compare_log": true,\n'
    return [
        text + b'"parallel_merge": {"npu": {"rank_size": 4, "tp": 2, "pp": 2, "vpp": 1, "order": "tp-cp-ep-dp-pp"}},\n}'
    ]


def operator_tables() -> list[bytes]:
    return [b'{"LinearOperation": ["Linear"], "CommonLayer_outtensor0": "GLMBlock_output_0", "A": ["B", "C"]}']


def alignments() -> list[bytes]:
    relations = [
        {"target": "Module.a.A.forward.0", "golden": ["Module.b.B.forward.0", "Module.c.C.forward.0"], "kind": "split",
         "rule": "edited", "reason": "", "confidence": 0.9, "axis": 0, "inside": ""},
        {"target": ["x"], "golden": "y"},
    ]  # fmt: skip
    return [_json({"format": "twinprobe alignment 1", "relations": relations, "notes": [], "unmatched": {}})]


def model_trees() -> list[bytes]:
    leaf = {"name": "root.layers.0", "type": "Linear", "children": []}
    return [_json({"name": "root", "type": "Model", "children": [leaf], "order": "execution"})]


def topologies() -> list[bytes]:
    node = {
        "opType": "LinearOperation",
        "opName": "LinearOperation_7",
        "param": {"a": 1},
        "inTensors": ["x"],
        "outTensors": ["y"],
    }
    layer = {"opType": "CommonLayer", "opName": "CommonLayer_3", "nodes": [node, node]}
    return [_json({"modelName": "Model", "nodes": [layer, node], "inTensors": [], "outTensors": []})]


def llm_statistics() -> list[bytes]:
    head = b"NodeName,NodeType,InputOutput,Index,DataType,Shape,Max,Min,Mean,L2Norm\n"
    row = b'root.head,Linear,Input,0,torch.float32,"[2, 3]",1.5,-1.5,0.1,2.5\n'
    return [head + row + row.replace(b"Input", b"Output").replace(b"2.5", b"inf")]


def kernel_statistics() -> list[bytes]:
    head = (
        b"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,Avg Value,"
    )
    row = b'MatMul,Default_a-op0,0,0,1794711551684739,input,0,24,Float32,"(2,3)",1.5,-1.5,0.1,'
    return [head + b"L2Norm Value\n" + row + b"2.5\n" + row.replace(b"input", b"output") + b"inf\n"]


def name_lists() -> list[bytes]:
    return [b"1.npy,MatMul.Default_a-op0.0.0.17947.input.0.DefaultFormat.Float32.npy\n2,Add.b.0.1.3.output.0.npy\n"]


def result_tables() -> list[bytes]:
    return [
        (DATA / f"report/{name}.csv").read_bytes()[:4000].rpartition(b"\n")[0]
        for name in ("statistics", "tensor", "md5")
    ]


def result_columns() -> list[bytes]:
    import polars as pl

    files = []
    for compression in ("zstd", "uncompressed"):
        file = io.BytesIO()
        pl.read_csv(result_tables()[0], infer_schema=False).write_parquet(file, compression=compression)
        files.append(file.getvalue())
    # The first time that polars gives up, it loads 60 MB of its own to say where. That is not the cost of an input.
    return [*files, (HERE / "findings" / "result_parquet-a_type_that_the_library_lacks").read_bytes()]


def workbooks() -> list[bytes]:
    return [path.read_bytes() for path in sorted((DATA / "rank_results").glob("*.xlsx"))][:1]


def saved(*names: str) -> list[bytes]:
    """Checkpoints and logs that torch, Paddle, MindSpore and safetensors wrote."""
    return [(HERE / "seeds" / name).read_bytes() for name in names]


def archives() -> list[bytes]:
    found = []
    for save in (np.savez, np.savez_compressed):
        file = io.BytesIO()
        save(file, x=np.arange(6.0).reshape(2, 3), y=np.ones(3, "i4"))
        found.append(file.getvalue())
    return found


def tool_files() -> list[bytes]:
    leaf = {"shape": "torch.Size([1, 5])", "dtype": "torch.float32", "mean": "tensor(2.5e-05)", "std": "tensor(1.)",
            "min": "tensor(-1.)", "max": "tensor(nan)", "value": "./x.safetensors"}  # fmt: skip
    node = {"module_path": "A.b", "inputs": {"args": [leaf], "kwargs": {"m": "None"}}, "outputs": [leaf]}
    tree = {"module_path": "A", "inputs": {"args": []}, "children": [node, node]}
    return [(DATA / "other_tools" / "polygraphy_golden.json").read_bytes(), _json(tree)]
