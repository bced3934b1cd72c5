"""Two runs in memory whose calls all have their like by name, and take and give the same: nothing to align.

The usual case, and told without the tables that the general way needs. It finds exactly what that would find.
"""

from __future__ import annotations

from dataclasses import dataclass

from twinprobe.align.meeting import modules_meet
from twinprobe.align.side import MINDSPORE
from twinprobe.live.live_run import Values
from twinprobe.runs.names import CONTAINERS, FORWARD, parse_op

_MODULES = tuple(f"{one}." for one in sorted(CONTAINERS))


@dataclass
class EqualRuns:
    """For each call of the raw run the same call of the base, and whether it is one of the model itself."""

    partners: list[int]
    is_root: list[bool]


def equal_runs(raw: Values, base: Values) -> EqualRuns | None:
    """The partners of all calls; None where not every call has one, or something else asks for a closer look."""
    if raw.live is None or base.live is None or len(raw.ops) != len(base.ops):
        return None
    is_root = [name.count(".") == 3 and name.startswith(_MODULES) and not parse_op(name).body for name in raw.ops]
    partners: list[int] | None = list(range(len(raw.ops)))
    if raw.ops != base.ops:
        partners = _by_names(raw, base, is_root)
    if partners is None or not _alike(raw, base, partners):
        return None
    return EqualRuns(partners, is_root)


def _by_names(raw: Values, base: Values, is_root: list[bool]) -> list[int] | None:
    """By equal names, but that the two models themselves may be called otherwise. Functions need the aligner."""
    if MINDSPORE in (raw.framework, base.framework) or not all(name.startswith(_MODULES) for name in raw.ops):
        return None
    numbers = {name: number for number, name in enumerate(base.ops)}
    model = next((parse_op(name).cls for name in base.ops if _is_model(name)), "")
    partners = []
    for name, root in zip(raw.ops, is_root, strict=True):
        known = numbers.get(name)
        if known is None and root:
            op = parse_op(name)
            known = numbers.get(f"{op.prefix}.{model}.{op.direction}.{op.call}")
        if known is None:
            return None
        partners.append(known)
    return partners if len(set(partners)) == len(partners) and modules_meet(raw.ops, base.ops) else None


def _is_model(name: str) -> bool:
    if name.count(".") != 3 or not name.startswith(_MODULES):
        return False
    op = parse_op(name)
    return not op.body and op.direction == FORWARD


def _alike(raw: Values, base: Values, partners: list[int]) -> bool:
    """Whether partners have the same rows, by the names within a call."""
    assert raw.live is not None
    assert base.live is not None
    layouts = base.live.layouts
    return all(mine[1] == layouts[other][1] for mine, other in zip(raw.live.layouts, partners, strict=True))
