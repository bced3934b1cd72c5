"""``.vis`` files: one JSON document per step and rank, as the first generation of viewers reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from twinprobe.graph.bands import TASKS, drift_colours, drift_index, tool_tips, worse
from twinprobe.graph.extras import node_facts, summary_facts
from twinprobe.graph.picture import Picture, Side
from twinprobe.graph.texts import json_list, quoted
from twinprobe.graph.tree import COLLECTION, MODULE, ROOT
from twinprobe.graph.values import VIS
from twinprobe.report.text import json_bytes
from twinprobe.runs.names import GRADIENTS
from twinprobe.runs.run import DIGESTS, TENSORS


@dataclass
class VisFile:
    """A file just written, and where in it the calls that communicate end: (source, node) to byte offset."""

    path: Path
    ends: dict[tuple[str, str], int] = field(default_factory=dict)


def write_vis(picture: Picture, path: Path, *, overflow_check: bool, complete_stack: bool) -> VisFile:
    """Write one picture."""
    file = VisFile(path)
    writer = _Writer(picture, file, complete_stack)
    with path.open("wb") as out:
        if picture.golden is None:
            out.write(b"{")
            writer.side(out, picture.target, None)
        else:
            for start, (side, other) in zip((b'{"NPU":{', b'},\n"Bench":{'), picture.sides, strict=True):
                out.write(start)
                writer.side(out, side, other)
            out.write(b"}")
        for key, value in _tail(picture, overflow_check).items():
            out.write(b",\n" + quoted(key).encode() + b":" + json_bytes(value))
        out.write(b"}\n")
    return file


def _tail(picture: Picture, overflow_check: bool) -> dict[str, object]:
    if picture.comparison is None:
        return {"MicroSteps": picture.micro_steps, "OverflowCheck": overflow_check}
    mode = picture.comparison.evidence.mode
    facts: dict[str, object] = {**summary_facts(picture)}
    return {
        "ToolTip": json.dumps(tool_tips(mode), ensure_ascii=False),
        "Colors": drift_colours(mode),
        "MicroSteps": picture.micro_steps,
        "task": TASKS[mode],
        "OverflowCheck": overflow_check,
        "TwinProbe": facts | {"nodes": node_facts(picture)},
    }


class _Writer:
    def __init__(self, picture: Picture, file: VisFile, complete_stack: bool) -> None:
        self._picture = picture
        self._file = file
        self._complete_stack = complete_stack
        self._indices = _indices(picture)

    def side(self, out: BinaryIO, side: Side, other: Side | None) -> None:
        """Write the members of a graph's object."""
        folder = str(side.run.tensor_folder) if side.run.task == TENSORS else None
        out.write(f'"root":"{ROOT}","dump_data_dir":{json.dumps(folder)},"node":{{\n'.encode())
        between = b""
        for node, inputs, outputs in self._texts(side):
            name = side.tree.names[node]
            out.write(between + self._node(side, other, node, inputs, outputs).encode("utf-8", "backslashreplace"))
            if name in side.communication.calls:
                self._file.ends[side.source, name] = out.tell()
            out.write(b"}")
            between = b",\n"
        out.write(b"}")

    def _texts(self, side: Side) -> Iterator[tuple[int, str, str]]:
        """Nodes in the order of their calls; those without values stand before the next one named after them."""
        silent = [node for node, op in enumerate(side.tree.ops) if op < 0]
        node_of_op = {op: node for node, op in enumerate(side.tree.ops) if op >= 0}
        shown = 0
        for texts in self._picture.texts(side, VIS):
            for at, (inputs, outputs) in enumerate(zip(texts.inputs, texts.outputs, strict=True), start=texts.first):
                node = node_of_op[at]
                while shown < len(silent) and silent[shown] < node:
                    yield silent[shown], "{}", "{}"
                    shown += 1
                if not _is_gradient(side.tree.names[node]):
                    yield node, inputs, outputs
        for node in silent[shown:]:
            yield node, "{}", "{}"

    def _node(self, side: Side, other: Side | None, node: int, inputs: str, outputs: str) -> str:
        tree = side.tree
        name, above, partner = tree.names[node], tree.parents[node], side.link[node] if other is not None else -1
        children = [tree.names[child] for child in tree.children[node] if not _is_gradient(tree.names[child])]
        link = f"[{other.paths[partner]}]" if other is not None and partner >= 0 else "[]"
        upper = quoted(tree.names[above]) if above >= 0 else '"None"'
        micro_step = f'"micro_step_id":{tree.micro_steps[node]},' if above == 0 else ""
        key = quoted(name)
        return (
            f'{key}:{{"id":{key},"node_type":{tree.kinds[node]},"output_data":{outputs},"input_data":{inputs},'
            f'"upnode":{upper},"subnodes":{json_list(children)},"matched_node_link":{link},"suggestions":{{}},'
            f'"stack_info":{json_list(self._stack(side, node))},{micro_step}"data":{self._data(side, node)}'
        )

    def _stack(self, side: Side, node: int) -> list[str]:
        """A module's stack is the line that calls it by its name, where there is one."""
        frames = side.sites.frames[side.sites.of_node[node]]
        if self._complete_stack or side.tree.kinds[node] != MODULE:
            return frames
        attribute = side.tree.names[node].rsplit(".", 3)[0].rpartition(".")[2]
        return next(([frame] for frame in frames if f".{attribute}(" in frame), frames)

    def _data(self, side: Side, node: int) -> str:
        data: dict[str, object] = {}
        if side is self._picture.target and self._indices[node] is not None:
            data["precision_index"] = self._indices[node]
            comparison = self._picture.comparison
            if comparison is not None and comparison.evidence.mode == DIGESTS and side.tree.kinds[node] != COLLECTION:
                data["Result"] = "pass" if self._indices[node] else "Different"
        if side.overflow and side.overflow[node] is not None:
            data["overflow_level"] = side.overflow[node]
        return json.dumps(data)


def old_indices(picture: Picture) -> list[float | int | None]:
    """The old number of each node of the run under test; a collection takes its worst child's."""
    return _indices(picture)


def _indices(picture: Picture) -> list[float | int | None]:
    side, values = picture.target, picture.values
    if values is None or picture.comparison is None:
        return [None] * len(side.tree)
    mode = picture.comparison.evidence.mode
    found: list[float | int | None] = [
        drift_index(float(values.drift[op]), mode)
        if op >= 0 and side.link[node] >= 0 and values.severity[op] >= 0
        else None
        for node, op in enumerate(side.tree.ops)
    ]
    for node, kind in enumerate(side.tree.kinds):
        if kind == COLLECTION and side.link[node] >= 0:
            inside = [index for child in side.tree.children[node] if (index := found[child]) is not None]
            found[node] = worse(mode, inside) if inside else None
    return found


def _is_gradient(name: str) -> bool:
    return GRADIENTS in name and GRADIENTS in name.rsplit(".", 2)[-2:]


def add_rank_links(source: Path, target: Path, ends: dict[int, str]) -> None:
    """Copy a file and add to the nodes that end at these offsets which calls of other ranks they talk to."""
    with source.open("rb") as old, target.open("wb") as new:
        at = 0
        for end in sorted(ends):
            _copy(old, new, end - at)
            new.write(f',"matched_distributed":{ends[end]}'.encode())
            at = end
        _copy(old, new, None)


def _copy(old: BinaryIO, new: BinaryIO, count: int | None) -> None:
    while count is None or count > 0:
        block = old.read(1 << 20 if count is None else min(count, 1 << 20))
        if not block:
            return
        new.write(block)
        if count is not None:
            count -= len(block)
