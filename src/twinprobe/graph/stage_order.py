"""In which order the calls of several stages would have run on one rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from twinprobe.graph.stage_names import in_expert
from twinprobe.runs.names import GRADIENTS, parse_op
from twinprobe.runs.run import Run


@dataclass(frozen=True)
class Part:
    """Ranks that share calls of one pipeline stage (of one chunk), and those calls' names in the whole model.

    ``expert`` is set where experts lie on several ranks: the part holds those of one rank, or (-1) all but experts.
    ``around`` has the new names of modules that belong to another part and hold calls of this one.
    """

    stage: int
    chunk: int
    ranks: list[tuple[tuple[int, int, int], Run]]
    names: dict[str, str]
    expert: int | None = None
    around: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> Run:
        """The rank that the order of the calls, their parents and stacks are taken from."""
        return self.ranks[0][1]


def in_order(parts: list[Part], names: list[list[str]]) -> list[str]:
    """The new names of all parts' calls: round by round, forward from the first stage to the last, then back."""
    keyed: dict[str, tuple[int, ...]] = {}
    for part, own in zip(parts, names, strict=True):
        turn = part.chunk * 10_000 + part.stage
        parents = part.first.parents
        micro = shared = 0
        for at, name in enumerate(own):
            inside = part.expert is not None and in_expert(name, parents)
            shared += not inside
            if name not in part.names:
                continue
            micro = _micro_step(name, parents, micro)
            phase = _phase(name, parents)
            # Experts of other ranks come where those of the first do: between the same two calls that all ranks have.
            block = (shared, 1, (-part.expert if phase else part.expert)) if part.expert is not None and inside else ()
            key = (micro, phase, -turn if phase else turn, *(block or (shared, 0, 0)), at)
            # What wraps several stages ends with the last of them.
            new = part.names[name]
            keyed[new] = max(key, keyed[new]) if new in keyed else key
    return sorted(keyed, key=keyed.__getitem__)


def _phase(name: str, parents: dict[str, str | None]) -> int:
    """0 for the forward pass, 1 for the backward pass and what is computed inside it, 2 for gradients."""
    if GRADIENTS in name:
        return 2
    return int(".backward" in name or ".backward" in (parents.get(name) or ""))


def _micro_step(name: str, parents: dict[str, str | None], current: int) -> int:
    around = name if parse_op(name).is_module else parents.get(name)
    return max(parse_op(around).call, 0) if around is not None else current
