"""Names in one logical model: layers of later pipeline stages, chunks and experts counted on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from twinprobe.graph.repairs import is_module
from twinprobe.runs.names import GRADIENTS, parse_op

_NUMBER = re.compile(r"\.(\d{1,18})(?=\.)")
_EXPERTS = re.compile(r"((?:local_)?experts)\.(\d{1,18})(?=\.)")
_CHUNK = re.compile(r"^(\w+)\.(\d{1,18})\.")


def chunk_of(name: str) -> int | None:
    """The number of the virtual stage that a module's name begins with."""
    found = _CHUNK.match(name) if is_module(name) else None
    return int(found[2]) if found else None


class StageNames:
    """Gives the calls of each stage, in the order of the model, the names that one rank alone would give them."""

    def __init__(self, *, chunks: bool) -> None:
        self._chunks = chunks
        self._next_layer: dict[str, int] = defaultdict(int)
        self._next_call: dict[str, int] = defaultdict(int)

    def stage(self, names: Iterable[str], experts_before: dict[str, int]) -> dict[str, str]:
        """New names for the calls of the next stage (or of its next chunk).

        ``experts_before`` counts, per list of experts, those that lie on earlier ranks.
        """
        names = list(names)
        offsets = self._layer_offsets(names)
        first_call = dict(self._next_call)
        renamed = {}
        for name in names:
            if is_module(name) or GRADIENTS in name:
                renamed[name] = self._module(name, offsets, experts_before)
                continue
            op = parse_op(name)
            if op.call < 0:
                renamed[name] = name
                continue
            head = f"{op.prefix}.{op.body}"
            call = op.call + first_call.get(head, 0)
            self._next_call[head] = max(self._next_call[head], call + 1)
            renamed[name] = op.renumbered(call)
        return renamed

    def _module(self, name: str, offsets: dict[str, int], experts_before: dict[str, int]) -> str:
        name = self._folded(name)
        layer = _NUMBER.search(name, self._start(name))
        if layer and name[: layer.start()] in offsets:
            shifted = int(layer[1]) + offsets[name[: layer.start()]]
            name = f"{name[: layer.start()]}.{shifted}{name[layer.end() :]}"
        if experts_before:
            name = _EXPERTS.sub(lambda found: f"{found[1]}.{int(found[2]) + experts_before.get(found[1], 0)}", name)
        return name

    def _folded(self, name: str) -> str:
        """All chunks of a rank become its first."""
        return _CHUNK.sub(lambda found: f"{found[1]}.0.", name) if self._chunks and is_module(name) else name

    def _start(self, name: str) -> int:
        found = _CHUNK.match(name) if self._chunks else None
        return found.end() - 1 if found else 0

    def _layer_offsets(self, names: list[str]) -> dict[str, int]:
        """How far each numbered list of this stage is moved: on, where its numbers were used before."""
        seen: dict[str, set[int]] = defaultdict(set)
        for name in map(self._folded, filter(is_module, names)):
            layer = _NUMBER.search(name.rsplit(".", 2)[0] + ".", self._start(name))
            if layer:
                seen[name[: layer.start()]].add(int(layer[1]))
        offsets = {}
        for path, numbers in seen.items():
            free = self._next_layer[path]
            offsets[path] = free - min(numbers) if min(numbers) < free else 0
            self._next_layer[path] = max(numbers) + offsets[path] + 1
        return offsets


def experts_in(names: Iterable[str]) -> dict[str, int]:
    """How many experts each list of experts has on a rank."""
    most: dict[str, int] = {}
    for name in names:
        for found in _EXPERTS.finditer(name):
            most[found[1]] = max(most.get(found[1], 0), int(found[2]) + 1)
    return most
