"""Dumps of other tools, opened as runs: transformers' model debugger, DebugMode of torch, Polygraphy, nvdlfw-inspect.

What SGLang's dumper writes is a folder of arrays (``tensors/foreign.py``). Here too nothing is trusted: texts are
matched, not evaluated, and what a file may become in memory is bounded by its size.
"""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from twinprobe._runs.json_pieces import memory_budget, text_bytes
from twinprobe._runs.names import LONGEST_NAME
from twinprobe._runs.table import INPUT, OUTPUT, POINT, Leaf, TableBuilder, settle
from twinprobe._runs.tensors.containers import MARK
from twinprobe._runs.tensors.foreign import Content, is_arrays, is_weights, measured, open_arrays, open_weights
from twinprobe._runs.tensors.npy_file import read_npy
from twinprobe._runs.whole_files import json_file, open_file
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

_HEAD = 1 << 16
_LONGEST_LINE, _DEEPEST = 1 << 16, 200
# Bytes of memory: what a small file may take; what a call takes beside its name, a value, and a value that waits to
# become a row.
_ROOM = 52 << 20
_CALL, _VALUE, _WAITING = 160, 120, 360
_TEXTS = frozenset({".txt", ".log"})
# Patterns that show, at the beginning of a file, which tool wrote it. None may take more than linear time: each has one
# place to begin in a line, or a fixed width.
_SIGNS = {
    "debugger": re.compile(rb'^\s*\{\s*"module_path"\s*:'),
    "polygraphy": re.compile(rb'^\s*\{\s*"(lst|polygraphy_class)"\s*:'),
    "debug mode": re.compile(rb"^ {0,200}(\[nn\.Mod\] |aten::\w{1,80}[.\w]{0,80}\(.*->)", re.MULTILINE),
    "statistics": re.compile(
        rb"_(min|max|mean|std|l1_norm|l2_norm|cur_amax)[ \t]{1,200}iteration=\d{1,12}[ \t]{1,200}value="
    ),
}


def is_foreign(path: Path) -> bool:
    """Whether this is data that TwinProbe reads although no recorder of its own, or of msprobe, wrote it."""
    return is_weights(path) or is_arrays(path) or bool(_kind(path))


def read_foreign(path: Path) -> Content:
    """Read such data as the content of a run."""
    if is_weights(path):
        return open_weights(path)
    if is_arrays(path):
        return open_arrays(path)
    readers: dict[str, Callable[[Path], Content]] = {
        "debugger": _debugger, "polygraphy": _polygraphy, "debug mode": _debug_mode, "statistics": _statistics_log,
    }  # fmt: skip
    return readers[_kind(path)](path)


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    if path.is_dir() or suffix not in _TEXTS | {".json"}:
        return ""
    try:
        with open_file(path) as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    wanted = ("debugger", "polygraphy") if suffix == ".json" else ("debug mode", "statistics")
    return next((kind for kind in wanted if _SIGNS[kind].search(head)), "")


class _Rows:
    """Collects the calls of a run and their values."""

    def __init__(self, path: Path) -> None:
        self._builder = TableBuilder()
        self._left = memory_budget(path.stat().st_size, _ROOM)
        self.parents: dict[str, str | None] = {}
        """The calls in order, each with the module around it."""
        self._seen: Counter[str] = Counter()

    def numbered(self, kind: str, ending: str) -> str:
        """The name of the next call of this kind."""
        if kind not in self._seen:
            self.take(_CALL, kind)
        self._seen[kind] += 1
        return f"{kind}{ending.format(self._seen[kind] - 1)}"

    def take(self, cost: int, name: str) -> None:
        """Take so many bytes of memory, and those of a name, from what may be made of the file."""
        self._left -= cost + text_bytes(name)
        if self._left < 0:
            raise BadInput("is one value too many: what it holds would take many times its size", where=name[:200])

    def call(self, name: str, values: Iterable[tuple[int, str, Leaf | None]], parent: str | None = None) -> None:
        """Add a call with its values: what each is to the call, its name behind that of the call, and itself.

        They are made one by one, as far as there is room.
        """
        self.take(_CALL, name)
        for role, ending, leaf in values:
            self.take(_VALUE, f"{name}{ending}")
            try:
                self._builder.add(len(self.parents), role, f"{name}{ending}", settle(leaf, ""))
            except ValueError as error:
                raise BadInput(str(error), where=name[:200]) from None
        self.parents[name] = parent
        self._builder.end_op(len(self.parents))

    def content(self, path: Path, *, level: str, **more: Any) -> Content:
        """The whole."""
        if not self.parents:
            raise NothingToCompare("holds no values: nothing to compare", where=path)
        return Content("pytorch", self._builder.build(), list(self.parents), path.parent, level=level, **more)


# transformers' model debugger: a tree of module calls in JSON, with statistics as printed, or files beside it.

_PRINTED = re.compile(r"tensor\((?P<number>[-+0-9.einfa]{1,40})")
_SIZE = re.compile(r"torch\.Size\(\[(?P<sizes>[\d, ]*)\]\)")


def _debugger(path: Path) -> Content:
    tree = _document(path)
    rows, files = _Rows(path), True

    def values_of(node: dict[str, Any], depth: int) -> Iterator[tuple[int, str, Leaf | None]]:
        nonlocal files
        for key, role, ending in (("inputs", INPUT, ".input"), ("outputs", OUTPUT, ".output")):
            for value in _debugger_values(node.get(key), role, ending, depth):
                leaf = value[2]
                files = files and (leaf is None or leaf.dtype is None or bool(leaf.data_name))
                yield value

    def visit(node: Any, parent: str | None, depth: int) -> None:
        if not isinstance(node, dict) or not isinstance(node.get("module_path"), str) or depth > _DEEPEST:
            raise BadInput("is not a tree of module calls, or is too deep", where=path)
        root, _, inner = node["module_path"].partition(".")
        name = rows.numbered(f"Module.{inner}.Module" if inner else f"Module.{root}", ".forward.{}")
        children = node.get("children")
        for child in children if isinstance(children, list) else ():
            visit(child, name, depth + 1)
        rows.call(name, values_of(node, depth), parent)

    visit(tree, None, 0)
    return rows.content(
        path, level="L0", has_calls=True, parents=rows.parents, task="tensor" if files else "statistics",
        notes=["written by transformers' model debugger; norms are computed from its mean and std"],
    )  # fmt: skip


def _debugger_values(value: Any, role: int, ending: str, depth: int) -> Iterator[tuple[int, str, Leaf | None]]:
    if depth > _DEEPEST or len(ending) > LONGEST_NAME:
        raise BadInput("is a value that is nested too deeply, or under too long a name", where=ending[:200])
    if isinstance(value, dict) and isinstance(value.get("shape"), str) and isinstance(value.get("dtype"), str):
        yield role, ending, _debugger_tensor(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            inner = ending if key in ("args", "kwargs") else f"{ending}.{key}"
            yield from _debugger_values(item, role, inner, depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _debugger_values(item, role, f"{ending}.{index}", depth + 1)
    elif isinstance(value, str):
        yield role, ending, None if value == "None" else Leaf("str", value=value[:1000])


def _debugger_tensor(value: dict[str, Any]) -> Leaf:
    match = _SIZE.fullmatch(value["shape"])
    if match is None:
        return Leaf("str", value=value["shape"][:200])
    shape = [int(size) for size in re.findall(r"\d{1,15}", match["sizes"])]
    leaf = Leaf("torch.Tensor", value["dtype"][:40], shape)
    numbers = {key: _printed(value.get(key)) for key in ("max", "min", "mean", "std")}
    leaf.Max, leaf.Min, leaf.Mean = numbers["max"], numbers["min"], numbers["mean"]
    count = int(np.prod(shape, dtype=np.float64))
    if numbers["std"] is not None and numbers["mean"] is not None:
        spread = numbers["std"] ** 2 * max(count - 1, 0) if isfinite(numbers["std"]) else 0.0
        leaf.Norm = sqrt(spread + count * numbers["mean"] ** 2)
    file = value.get("value")
    if isinstance(file, str) and file.endswith(".safetensors"):
        leaf.data_name = f"{file.removeprefix('./')}{MARK}data"
    return leaf


def _printed(text: Any) -> float | None:
    match = _PRINTED.match(text) if isinstance(text, str) else None
    try:
        return float(match["number"]) if match else None
    except ValueError:
        return None


# Polygraphy: JSON with the outputs of each runner and iteration, arrays as npy files in base64.


def _polygraphy(path: Path) -> Content:
    rows = _Rows(path)

    def visit(value: Any, name: str, depth: int) -> None:
        if depth > _DEEPEST or len(name) > LONGEST_NAME:
            raise BadInput("is nested too deeply, or under too long a name", where=path)
        if isinstance(value, dict):
            text = value.get("array")
            if isinstance(text, str):
                try:
                    array = read_npy(base64.b64decode(text, validate=True))
                except (ValueError, DamagedTensor) as error:  # of base64, or of what it holds
                    raise BadInput(f"holds a damaged array: {error}", where=f"{path}: {name[:200]}") from None
                rows.call(rows.numbered(name or "array", "") if name not in rows.parents else f"{name}'",
                          [(POINT, "", measured(array))])  # fmt: skip
                return
            for key, item in value.items():
                hidden = key in ("lst", "outputs", "values", "arr", "_arr", "dct")
                visit(item, name if hidden else f"{name}.{key}".lstrip("."), depth + 1)
        elif isinstance(value, list):
            named = len(value) == 2 and isinstance(value[0], str)
            for index, item in enumerate(value[1:] if named else value):
                inner = str(value[0]) if named else str(index)
                visit(item, f"{name}.{inner}".lstrip(".") if named or len(value) > 1 else name, depth + 1)

    visit(_document(path), "", 0)
    return rows.content(path, level="arrays", task="statistics", notes=["written by Polygraphy; runners in its order"])


# DebugMode: a line for each operator, with the hashes of what came out (and went in) behind a sharp.

_OPERATOR = re.compile(r"^(?P<indent> *)(?:torch\.ops\.)?(?P<name>[\w:.]+)\((?P<inputs>.*)\)  ->  (?P<outputs>[^#]*)")
_MODULE = re.compile(r"^(?P<indent> *)\[nn\.Mod\] (?P<name>[\w.]+)")
_TENSOR = re.compile(r"\bd?t: (?P<dtype>\w+)\[(?P<shape>[\d, ]*)\]")
_HASH = re.compile(r"-?\b(?:\d{1,25}(?:\.\d{0,25})?(?:e[-+]?\d{1,4})?|inf|nan)\b")
_SHORT = {"f64": "float64", "f32": "float32", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32",
          "i16": "int16", "i8": "int8", "u8": "uint8", "b8": "bool", "c64": "complex64"}  # fmt: skip


def _debug_mode(path: Path) -> Content:
    rows = _Rows(path)
    modules: list[tuple[int, str]] = []
    for line in _lines(path):
        entered = _MODULE.match(line)
        match = entered or _OPERATOR.match(line)
        if match is None:
            continue
        depth = len(match["indent"])
        while modules and modules[-1][0] >= depth:
            modules.pop()
        parent = modules[-1][1] if modules else None
        if entered:
            name = rows.numbered(f"Module.{entered['name']}.Module", ".forward.{}")
            modules.append((depth, name))
            rows.call(name, [], parent)
        else:
            operator = match["name"].replace("::", ".").removeprefix("aten.")
            name = rows.numbered(f"Aten.{operator}", ".{}.forward")
            before, _, behind = line[match.end() :].rpartition("'hash': ")
            entered_with = _HASH.findall(before.partition("'input_hash': ")[2])
            values = _hashed(match["inputs"], entered_with, INPUT, ".input")
            rows.call(name, values + _hashed(match["outputs"], _HASH.findall(behind), OUTPUT, ".output"), parent)
    return rows.content(
        path, level="L1", has_calls=True, parents=rows.parents, task="statistics",
        notes=["written by torch's DebugMode; a norm in it is the sum of absolute values"],
    )  # fmt: skip


def _hashed(text: str, hashes: list[str], role: int, ending: str) -> list[tuple[int, str, Leaf | None]]:
    """The tensors that a line names, each with its norm, its checksum, or both."""
    tensors = list(_TENSOR.finditer(text))
    each = len(hashes) // len(tensors) if tensors and len(hashes) % len(tensors) == 0 else 0
    values: list[tuple[int, str, Leaf | None]] = []
    for index, tensor in enumerate(tensors):
        shape = [int(size) for size in re.findall(r"\d{1,15}", tensor["shape"])]
        leaf = Leaf("torch.Tensor", _SHORT.get(tensor["dtype"], tensor["dtype"][:40]), shape)
        for number in hashes[index * each : (index + 1) * each]:
            if number.lstrip("-").isdecimal():
                leaf.md5 = number
            else:
                leaf.Norm = float(number)
        values.append((role, f"{ending}.{index}", leaf))
    return values


# nvdlfw-inspect: a line for each statistic of each tensor and iteration.

_STATISTIC = re.compile(
    r"_(?P<what>min|max|mean|l2_norm)\s{1,200}iteration=(?P<iteration>\d{1,12})\s{1,200}value=(?P<value>\S{1,40})"
)
_FIELDS = {"min": "Min", "max": "Max", "mean": "Mean", "l2_norm": "Norm"}


def _statistics_log(path: Path) -> Content:
    rows, leaves = _Rows(path), dict[str, Leaf]()
    for line in _lines(path):
        match = _STATISTIC.search(line)
        if match is None:
            continue
        tensor = (line[: match.start()].split() or ["tensor"])[-1]
        name = f"{tensor}.iteration{int(match['iteration'])}"
        if name not in leaves:
            rows.take(_WAITING, name)
            leaves[name] = Leaf("Tensor", "unknown", [])
        try:
            setattr(leaves[name], _FIELDS[match["what"]], float(match["value"]))
        except ValueError:
            raise BadInput(f"has the value {match['value']!r}", where=f"{path}: {tensor[:200]}") from None
    for name, leaf in leaves.items():
        rows.call(name, [(POINT, "", leaf)])
    return rows.content(path, level="statistics", task="statistics", notes=["written by nvdlfw-inspect"])


def _document(path: Path) -> Any:
    try:
        return msgspec.json.decode(json_file(path))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise BadInput(f"is damaged: {str(error)[:200]}", where=path) from None


def _lines(path: Path) -> Iterator[str]:
    try:
        with open_file(path) as file:
            while raw := file.readline(_LONGEST_LINE):
                yield raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
