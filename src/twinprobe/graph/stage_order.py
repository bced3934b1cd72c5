"""In which order the calls of several stages would have run on one rank."""

from __future__ import annotations

from dataclasses import dataclass

from twinprobe.runs.names import GRADIENTS, parse_op
from twinprobe.runs.run import Run


@dataclass(frozen=True)
class Part:
    """The shards of one pipeline stage (of one chunk), and the names of their calls in the whole model."""

    stage: int
    chunk: int
    runs: list[Run]
    names: dict[str, str]


def in_order(parts: list[Part], names: list[list[str]]) -> list[str]:
    """The new names of all parts' calls: round by round, forward from the first stage to the last, then back."""
    keyed: dict[str, tuple[int, ...]] = {}
    for part, own in zip(parts, names, strict=True):
        turn = part.chunk * 10_000 + part.stage
        micro = 0
        for at, name in enumerate(own):
            if name not in part.names:
                continue
            micro = _micro_step(name, part.runs[0].parents, micro)
            phase = _phase(name, part.runs[0].parents)
            key = (micro, phase, -turn if phase else turn, at)
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
