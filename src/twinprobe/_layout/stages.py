"""The stages of one logical model: its layers, chunks and experts counted on, and the order of all their calls."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from twinprobe._runs.names import GRADIENTS, OPTIMIZER, TOTAL_NORM, is_module, parse_op
from twinprobe._runs.run import Run

_NUMBER = re.compile(r"\.(\d{1,18})(?=\.)")
_ITEM = re.compile(r"^(\w+)\.(\d{1,18})\.(.+)$")
_BARE_CHUNK = re.compile(r"^\d{1,18}(\.|$)")
_CHUNK = re.compile(r"^(\w+)\.(\d{1,18})\.")


@lru_cache(maxsize=64)
def _experts(lists: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the numbers of experts in a path: lists that are called so, and those of other names that are known."""
    names = "".join(rf"|(?<=\.){re.escape(name)}" for name in lists)
    return re.compile(rf"((?:local_)?experts{names})\.(\d{{1,18}})(?=\.)")


def chunk_of(name: str) -> int | None:
    """The number of the virtual stage that the path of a module or a parameter begins with."""
    found = _CHUNK.match(name) if _has_path(name) else None
    return int(found[2]) if found else None


def _has_path(name: str) -> bool:
    """Whether a name holds the path of a module or a parameter."""
    return is_module(name) or name.startswith(OPTIMIZER)


class StageNames:
    """Gives the calls of each stage, in the order of the model, the names that one rank alone would give them."""

    def __init__(self, *, chunks: bool, lists: tuple[str, ...] = (), bare: bool = False, items_of: str = "") -> None:
        """``chunks``: paths begin with the number of a virtual stage; ``bare``: this number is left out.

        ``items_of``: the other run's list of modules of which each stage is one.
        """
        self._chunks = chunks
        self._bare = bare
        self._items_of = items_of
        self._number = -1
        self._experts = _experts(lists)
        self._used: dict[str, set[int]] = defaultdict(set)
        self._next_call: dict[str, int] = defaultdict(int)
        self._offsets: dict[str, int] = {}

    def stage(self, names: Iterable[str]) -> dict[str, str]:
        """New names for the calls of the next stage (or of its next chunk)."""
        names = list(names)
        self._number += 1
        self._offsets = {} if self._items_of else self._layer_offsets(names)
        return self.experts(names, {})

    def experts(self, names: Iterable[str], before: dict[str, int]) -> dict[str, str]:
        """New names for calls in experts of the same stage on another rank.

        ``before`` counts, per list of experts, those that lie on earlier ranks.
        """
        first_call = dict(self._next_call)
        renamed = {}
        for name in names:
            if _has_path(name) or GRADIENTS in name:
                renamed[name] = self._module(name, before)
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

    def _module(self, name: str, before: dict[str, int]) -> str:
        name = self._folded(name)
        if self._items_of and not name.startswith(TOTAL_NORM):
            kind, _, path = name.partition(".")
            return f"{kind}.{self._items_of}.{self._number}.{path}"
        layer = _NUMBER.search(name, self._start(name))
        path = name[: layer.start()] if layer else ""
        if layer and path in self._offsets:
            name = f"{path}.{int(layer[1]) + self._offsets[path]}{name[layer.end() :]}"
        if before:
            name = self._experts.sub(lambda found: f"{found[1]}.{int(found[2]) + before.get(found[1], 0)}", name)
        return name

    def _folded(self, name: str) -> str:
        """All chunks of a rank become its first."""
        first = "" if self._bare else "0."
        return _CHUNK.sub(lambda found: f"{found[1]}.{first}", name) if self._chunks and _has_path(name) else name

    def _start(self, name: str) -> int:
        found = _CHUNK.match(name) if self._chunks and not self._bare else None
        return found.end() - 1 if found else 0

    def _layer_offsets(self, names: list[str]) -> dict[str, int]:
        """How far each numbered list of this stage is moved: on, where some of its numbers were used before.

        Stages that number their layers through leave gaps, where ranks have several of them.
        """
        seen: dict[str, set[int]] = defaultdict(set)
        for name in map(self._folded, filter(_has_path, names)):
            layer = _NUMBER.search(name.rsplit(".", 2)[0] + ".", self._start(name))
            if layer:
                seen[name[: layer.start()]].add(int(layer[1]))
        offsets = {}
        for path, numbers in seen.items():
            used = self._used[path]
            offsets[path] = max(used) + 1 - min(numbers) if used & numbers else 0
            used |= {number + offsets[path] for number in numbers}
        return offsets


def items_of_list(stages: Sequence[Iterable[str]], other: Iterable[str]) -> str:
    """The list of modules of the other run of which each stage is one item, by the calls of both; none if empty.

    Stages that are items of a list, not parts of the model, lack that list's name: all their paths lie in the item.
    """
    items: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in _module_paths(other):
        if found := _ITEM.match(path):
            items[found[1]][int(found[2])].add(found[3])
    held = [_module_paths(stage) - {""} for stage in stages]
    for name, inside in items.items():
        if sorted(inside) == list(range(len(held))) and all(inside[at] == own for at, own in enumerate(held)):
            return name
    return ""


def _module_paths(names: Iterable[str]) -> set[str]:
    return {_BARE_CHUNK.sub("", parse_op(name).body) for name in names if is_module(name)}


def in_expert(name: str, parents: dict[str, str | None], lists: tuple[str, ...] = ()) -> bool:
    """Whether a call belongs to one of a list of experts: by its own name, or by the module around it."""
    around: str | None = name
    pattern = _experts(lists)
    for _ in range(1000):  # parents of a damaged dump may go in circles
        if around is None:
            return False
        if pattern.search(around):
            return True
        around = parents.get(around)
    return False


def experts_in(names: Iterable[str], lists: tuple[str, ...] = ()) -> dict[str, set[int]]:
    """The numbers of the experts that each list of experts has on a rank."""
    found: dict[str, set[int]] = defaultdict(set)
    for name in names:
        for one in _experts(lists).finditer(name):
            found[one[1]].add(int(one[2]))
    return found


@dataclass(frozen=True)
class Part:
    """Ranks that share calls of one pipeline stage (of one chunk), and those calls' names in the whole model.

    ``expert`` is set where experts lie on several ranks: the part holds those of one rank, or (-1) all but experts.
    ``around`` has the new names of modules that belong to another part and hold calls of this one.
    ``lists`` are the names of lists of experts that are not called so.
    """

    stage: int
    chunk: int
    ranks: list[tuple[tuple[int, ...], Run]]
    names: dict[str, str]
    expert: int | None = None
    around: dict[str, str] = field(default_factory=dict)
    lists: tuple[str, ...] = ()

    @property
    def first(self) -> Run:
        """The rank that the order of the calls, their parents and stacks are taken from."""
        return self.ranks[0][1]


def in_order(parts: list[Part], names: list[list[str]]) -> list[str]:
    """The new names of all parts' calls: round by round, forward from the first stage to the last, then back.

    A part that is all there is (no stages, no experts) has its own order: its modules may take turns with optimizers.
    """
    if len(parts) == 1:
        return list(dict.fromkeys(parts[0].names[name] for name in names[0] if name in parts[0].names))
    keyed: dict[str, tuple[int, ...]] = {}
    for part, own in zip(parts, names, strict=True):
        turn = part.chunk * 10_000 + part.stage
        parents = part.first.parents
        micro = shared = 0
        for at, name in enumerate(own):
            inside = part.expert is not None and in_expert(name, parents, part.lists)
            shared += not inside
            if name not in part.names:
                continue
            module = name if parse_op(name).is_module else parents.get(name)
            micro = max(parse_op(module).call, 0) if module is not None else micro
            phase = _phase(name, parents)
            # Experts of other ranks come where those of the first do: between the same two calls that all ranks have.
            block = (shared, 1, (-part.expert if phase else part.expert)) if part.expert is not None and inside else ()
            key = (micro, phase, -turn if phase else turn, *(block or (shared, 0, 0)), at)
            # What wraps several stages ends with the last of them.
            new = part.names[name]
            keyed[new] = max(key, keyed[new]) if new in keyed else key
    return sorted(keyed, key=keyed.__getitem__)


def in_turn(ranks: Sequence[Sequence[str]]) -> list[str]:
    """The calls of several ranks in the order of the first; what others alone call comes where they call it."""
    place: dict[str, tuple[int, ...]] = {name: (at,) for at, name in enumerate(ranks[0])}
    for own in ranks[1:]:
        last: tuple[int, ...] = (-1,)
        for at, name in enumerate(own):
            last = place.setdefault(name, (*last[:1], at))
    return sorted(place, key=place.__getitem__)


def _phase(name: str, parents: dict[str, str | None]) -> int:
    """0 for the forward pass, 1 for the backward pass and what is computed inside it, 2 for gradients."""
    if GRADIENTS in name:
        return 2
    return int(".backward" in name or ".backward" in (parents.get(name) or ""))
