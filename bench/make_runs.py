"""Make a large dump out of a small real one: the model repeated in blocks, call numbers running on."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from twinprobe._runs.names import DIRECTIONS, parse_op


def repeat_dump(source: Path, target: Path, entries: int) -> None:
    """Write ``source`` (a folder with dump.json) to ``target`` as often as gives ``entries`` entries."""
    document = json.loads((source / "dump.json").read_text())
    parents = json.loads((source / "construct.json").read_text())
    stacks = json.loads((source / "stack.json").read_text())
    data, construct = {}, {}
    frames: dict[str, list[Any]] = {number: [[], lines] for number, (_, lines) in stacks.items()}
    calls = _calls_per_api(document["data"])
    block = 0
    while len(data) < entries:
        rename = _Renamer(block, calls)
        for name, entry in document["data"].items():
            data[rename(name)] = entry
            if len(data) == entries:
                break
        construct.update({rename(child): rename(parent) if parent else parent for child, parent in parents.items()})
        for number, (names, _) in stacks.items():
            frames[number][0].extend(map(rename, names))
        block += 1
    target.mkdir(parents=True)
    document["data"] = data
    for file, content in (("dump.json", document), ("construct.json", construct), ("stack.json", frames)):
        (target / file).write_text(json.dumps(content))


def _calls_per_api(data: dict[str, Any]) -> dict[str, int]:
    calls: dict[str, int] = defaultdict(int)
    for name in data:
        op = parse_op(name)
        if not op.is_module:
            head = f"{op.prefix}.{op.body}.{op.cls}"
            calls[head] = max(calls[head], op.call + 1)
    return calls


class _Renamer:
    def __init__(self, block: int, calls: dict[str, int]) -> None:
        self._block = block
        self._calls = calls

    def __call__(self, name: str) -> str:
        op = parse_op(name)
        if op.direction not in DIRECTIONS:
            return name
        if op.is_module:
            return name.replace(".", f".block{self._block}.", 1)
        return op.renumbered(op.call + self._block * self._calls[f"{op.prefix}.{op.body}.{op.cls}"])
