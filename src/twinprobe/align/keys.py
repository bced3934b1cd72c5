"""The keys by which rows of two runs are joined."""

from __future__ import annotations

from collections import Counter

from twinprobe.runs.names import BACKWARD, parse_op
from twinprobe.runs.run import Run


def op_keys(run: Run) -> list[str]:
    """One key per call. Backward calls are numbered by their order of appearance.

    Autograd replays calls in an order of its own, so the n-th backward entry of an API is the n-th to run, whatever
    number it carries; both runs are numbered the same way, or two equal runs would not pair with themselves.
    """
    if run.single_points:
        return run.ops
    seen: Counter[str] = Counter()
    keys = []
    for name in run.ops:
        if BACKWARD not in name:
            keys.append(name)
            continue
        op = parse_op(name)
        if op.direction != BACKWARD:
            keys.append(name)
            continue
        kind = op.without_call
        keys.append(op.renumbered(seen[kind]))
        seen[kind] += 1
    return keys


def row_keys(run: Run, keys: list[str]) -> list[str]:
    """One key per row: its call's key and its place among the call's values."""
    ops = run.ops
    result = []
    for at, shown in zip(run.table["op"].to_list(), run.table["name"].to_list(), strict=True):
        op, key, name = ops[at], keys[at], shown
        if key is not op and name.startswith(op):
            name = key + name[len(op) :]
        # A keyword argument's file says .kwargs., its row without a file says .input.
        if ".kwargs." in name:
            name = name.replace(".kwargs.", ".input.", 1)
        result.append(name)
    return result
