"""Whether the names of two runs meet, or whether pairing them needs more than names."""

from __future__ import annotations

from twinprobe.align.side import MINDSPORE
from twinprobe.runs.names import FORWARD
from twinprobe.runs.run import Run

# Names meet where at least one call in twenty of the smaller run has its like.
_MEETING = 20
_STRANGERS = 0.05  # so many modules without their like do not make two code bases


def needs_help(target: Run, golden: Run) -> bool:
    """Whether equal names alone would leave much unpaired: other framework, other code base."""
    across = (target.framework == MINDSPORE) != (golden.framework == MINDSPORE)
    return across or not names_meet(target, golden) or not modules_meet(target.ops, golden.ops)


def names_meet(target: Run, golden: Run) -> bool:
    """Whether some calls of the two runs have equal names."""
    if target.ops == golden.ops:
        return True
    common = len(set(target.ops) & set(golden.ops))
    return common * _MEETING >= min(len(target.ops), len(golden.ops))


def modules_meet(target: list[str], golden: list[str]) -> bool:
    """Whether the modules of one run nearly all have their names in the other (or there are none)."""
    if target == golden:
        return True
    mine, theirs = _forward_modules(target), _forward_modules(golden)
    common = len(mine & theirs)
    fewest = min(len(mine), len(theirs))
    return fewest - common <= _STRANGERS * fewest


def _forward_modules(ops: list[str]) -> set[str]:
    return {name for name in ops if name.startswith(("Module.", "Cell.")) and f".{FORWARD}." in name}
