"""A line per compared call, for those who watch a comparison go by."""

from __future__ import annotations

import sys
from math import isnan

from twinprobe.graph.picture import Picture
from twinprobe.report.text import visible


def log_calls(picture: Picture) -> None:
    """Write one line per call of the run under test to standard error: its counterpart, its error, its verdict."""
    if picture.values is None or picture.golden is None:
        return
    side, values = picture.target, picture.values
    for node in side.order:
        op, partner = side.tree.ops[node], side.link[node]
        if op < 0:
            continue
        if partner < 0:
            line = f"{side.tree.names[node]} <-> no counterpart"
        else:
            error = values.error[op]
            size = "" if isnan(error) else f" relative error {error:.6g}"
            origin = f" ({values.origin[op]})" if values.origin[op] else ""
            other = picture.golden.tree.names[partner]
            line = f"{side.tree.names[node]} <-> {other}{size} {values.verdict(op) or 'no values'}{origin}"
        sys.stderr.write(visible(line) + "\n")
