"""An ATB topology as an onnx file, for viewers. The few protobuf messages that it needs are written by hand."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twinprobe._runs.llm.tree import OpNode, read_topology
from twinprobe._runs.whole_files import write_whole

_IR_VERSION, _OPSET = 8, 13
_FLOATS, _STRINGS = 6, 8  # kinds of an attribute


def atb_json_to_onnx(path: Path, level: int = -1) -> Path:
    """Write ``NAME.onnx`` beside ``NAME.json``; operators deeper than ``level`` are not shown (-1: all)."""
    tree = read_topology(path).tree
    nodes = b"".join(_field(1, _node(node)) for node in _shown(tree, level))
    graph = nodes + _text(2, tree.name)
    graph += b"".join(_field(11, _text(1, name)) for name in tree.inputs)
    graph += b"".join(_field(12, _text(1, name)) for name in tree.outputs)
    model = _number(1, _IR_VERSION) + _text(2, "twinprobe") + _field(7, graph) + _field(8, _number(2, _OPSET))
    target = path.with_suffix(".onnx")
    write_whole(target, lambda place: place.write_bytes(model), sync=True)
    return target


def _shown(node: OpNode, level: int, depth: int = 0) -> Iterator[OpNode]:
    """Operators without parts, and composite ones where the wanted depth ends."""
    for child in node.children:
        if child.children and (level < 0 or depth < level):
            yield from _shown(child, level, depth + 1)
        else:
            yield child


def _node(node: OpNode) -> bytes:
    content = b"".join(_text(1, name) for name in node.inputs) + b"".join(_text(2, name) for name in node.outputs)
    content += _text(3, node.name) + _text(4, node.op_type)
    return content + b"".join(_field(5, _attribute(name, value)) for name, value in _flat(node.param))


def _flat(param: dict[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in param.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{front}{key}.")
        else:
            yield f"{front}{key}", value


def _attribute(name: str, value: Any) -> bytes:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(item, int | float) for item in values):
        packed = struct.pack(f"<{len(values)}f", *(_single(item) for item in values))
        return _text(1, name) + _field(7, packed) + _number(20, _FLOATS)
    return _text(1, name) + b"".join(_text(9, str(item)) for item in values) + _number(20, _STRINGS)


def _single(value: float) -> float:
    return max(min(float(value), 3.4e38), -3.4e38) if value == value else value  # noqa: PLR0124  NaN stays NaN


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
