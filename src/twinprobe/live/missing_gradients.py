"""Parameters that belong together, of which only one got a gradient."""

from __future__ import annotations

from collections.abc import Iterator

from twinprobe.live.live_run import Values
from twinprobe.live.measuring import Pair
from twinprobe.runs.names import GRADIENTS, parse_op
from twinprobe.runs.table import GRADIENT, PARAMETER

# The two calls, the parameter, what is wrong, why the two belong together, and the raw run's row.
Missing = tuple[tuple[str, str], str, str, str, int]


def missing_gradients(raw: Values, base: Values, rows: list[Pair]) -> Iterator[Missing]:
    """Each such parameter once, by the pairs of parameters among these rows."""
    sides = _with_gradient(raw), _with_gradient(base)
    if not sides[0] or not sides[1]:
        return
    seen: set[tuple[str, str]] = set()
    roles = raw.columns["role"], base.columns["role"]
    for row, other, rule in rows:
        if roles[0][row] != PARAMETER or roles[1][other] != PARAMETER:
            continue
        mine, theirs = _parameter(raw, row), _parameter(base, other)
        if mine in seen:
            continue
        seen.add(mine)
        has = mine in sides[0], theirs in sides[1]
        if has[0] != has[1]:
            who = "raw" if has[0] else "base"
            calls = f"{mine[0]}.{GRADIENTS}.0", f"{theirs[0]}.{GRADIENTS}.0"
            yield calls, mine[1], f"only the {who} model has a gradient here", rule, row


def _with_gradient(run: Values) -> set[tuple[str, str]]:
    found = set()
    for op, role, name in zip(*(run.columns[column] for column in ("op", "role", "name")), strict=True):
        if role == GRADIENT:
            whole = parse_op(run.ops[op])
            found.add((f"{whole.prefix}.{_joined(whole.body, whole.cls)}", name.removeprefix(whole.text + ".")))
    return found


def _parameter(run: Values, row: int) -> tuple[str, str]:
    whole = parse_op(run.ops[run.columns["op"][row]])
    name = run.columns["name"][row].removeprefix(f"{whole.text}.parameters.")
    return f"{whole.prefix}.{_joined(whole.body, whole.cls)}", name


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))
