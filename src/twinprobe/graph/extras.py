"""What our page knows beyond the old viewers: continuous errors, origins, rules, the first divergence.

It lives in tables (or, in ``.vis`` files, under a key) that old viewers never look at.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isnan
from typing import Any

from twinprobe.graph.picture import Picture

CREATE_EXTRAS = """
CREATE TABLE tb_twinprobe (
    data_source TEXT NOT NULL, step INTEGER NOT NULL, rank INTEGER NOT NULL, node_name TEXT NOT NULL, error REAL,
    verdict TEXT, origin TEXT, matched_by TEXT, node_order INTEGER, drift REAL,
    PRIMARY KEY (step, rank, data_source, node_name)
) WITHOUT ROWID;
CREATE TABLE tb_twinprobe_summary (step INTEGER NOT NULL, rank INTEGER NOT NULL, key TEXT NOT NULL, value TEXT);
"""


def node_extras(picture: Picture) -> Iterator[tuple[object, ...]]:
    """One row per compared node of the run under test, in the order of the table's key."""
    side, values = picture.target, picture.values
    if values is None:
        return
    place = {node: at for at, node in enumerate(side.order)}
    compared = [node for node, op in enumerate(side.tree.ops) if op >= 0 and values.severity[op] >= 0]
    for node in sorted(compared, key=side.tree.names.__getitem__):
        op = side.tree.ops[node]
        yield (
            side.source, picture.step, picture.rank, side.tree.names[node], _number(values.error[op]),
            values.verdict(op), values.origin[op], values.rule[op], place[node], _number(values.drift[op]),
        )  # fmt: skip


def node_facts(picture: Picture) -> dict[str, dict[str, Any]]:
    """The same for ``.vis`` files, by node."""
    return {
        str(name): {"error": error, "verdict": verdict, "origin": origin, "matched_by": rule}
        for _, _, _, name, error, verdict, origin, rule, _, _ in node_extras(picture)
    }


def summary_facts(picture: Picture) -> dict[str, str]:
    """Where the two runs part, in words, and the counts of the verdicts."""
    if picture.comparison is None or picture.golden is None:
        return {}
    summary = picture.comparison.summary
    facts = {"mode": summary.mode, "verdicts": json.dumps(summary.verdicts)}
    if summary.first is not None:
        node = picture.target.tree.index[summary.first.op]
        partner = picture.target.link[node]
        facts |= {
            "first_node": summary.first.op,
            "first_golden_node": picture.golden.tree.names[partner] if partner >= 0 else "",
            "first_sentence": summary.first.sentence,
            "first_stack": summary.first.stack_line,
        }
    return facts


def summary_rows(picture: Picture) -> Iterator[tuple[object, ...]]:
    """The rows of the summary table for one step and rank."""
    for key, value in summary_facts(picture).items():
        yield picture.step, picture.rank, key, value


def _number(value: float) -> float | None:
    return None if isnan(value) else float(value)
