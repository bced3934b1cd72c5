"""Equal names belong together."""

from __future__ import annotations

from twinprobe.align.keys import op_keys, row_keys
from twinprobe.align.pairs import Pairs, from_partners
from twinprobe.runs.run import Run

RULE = "name"


def match_names(target: Run, golden: Run) -> Pairs:
    """Pair rows of equal name; backward calls by their order of appearance, on both sides."""
    golden_keys = row_keys(golden, op_keys(golden))
    place = dict(zip(reversed(golden_keys), range(len(golden_keys) - 1, -1, -1), strict=True))
    partners = [place.pop(key, -1) for key in row_keys(target, op_keys(target))]
    return from_partners(partners, len(golden_keys), [RULE if at >= 0 else "" for at in partners])
