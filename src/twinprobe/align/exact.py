"""Equal names belong together."""

from __future__ import annotations

from twinprobe.align.keys import op_keys, row_keys
from twinprobe.align.pairs import Pairs, from_partners
from twinprobe.runs.run import Run

RULE = "name"


def match_names(target: Run, golden: Run) -> Pairs:
    """Pair rows of equal name; backward calls by their order of appearance, on both sides."""
    if _same_calls(target, golden):
        rows = target.table.height
        return from_partners(list(range(rows)), rows, [RULE] * rows)
    return join_names(target, golden)


def join_names(target: Run, golden: Run) -> Pairs:
    """The same for any two runs, key by key."""
    golden_keys = row_keys(golden, op_keys(golden))
    place = dict(zip(reversed(golden_keys), range(len(golden_keys) - 1, -1, -1), strict=True))
    partners = [place.pop(key, -1) for key in row_keys(target, op_keys(target))]
    return from_partners(partners, len(golden_keys), [RULE if at >= 0 else "" for at in partners])


def _same_calls(target: Run, golden: Run) -> bool:
    """Whether both runs hold the same rows in the same order, none of them twice: every row meets its like then."""
    if target.ops != golden.ops:
        return False
    names, place = target.table["name"], ["op", "name"]
    return names.n_unique() == len(names) and target.table.select(place).equals(golden.table.select(place))
