"""The first divergence, told in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import TYPE_CHECKING

from twinprobe.judge.summary import Divergence
from twinprobe.runs.run import Run
from twinprobe.runs.table import STATS

if TYPE_CHECKING:
    from twinprobe.judge.verdicts import Evidence, Judged

_FRAMEWORK_FILES = ("site-packages", "dist-packages", "/torch/", "/mindspore/", "/paddle/", "importlib")


def describe_first(target: Run, evidence: Evidence, judged: Judged) -> Divergence | None:
    """Where the two runs part, with both sides' values; None where they do not."""
    if judged.first_row is None:
        return None
    row = evidence.pairs.row(judged.first_row, named=True)
    op = target.ops[row["t_op"]]
    error = float(judged.error[judged.first_row])
    relative = None if isnan(error) else error
    return Divergence(
        op=op,
        row=row["t_name"],
        golden_row=row["g_name"] or "",
        stack_line=user_line(target.stacks[op]),
        target_values=_values(row, "t"),
        golden_values=_values(row, "g"),
        relative_error=relative,
        sentence=_sentence(op, row["t_name"], judged.reason[judged.first_row], relative) + judged.unread_before,
        origin=judged.origin[judged.first_row],
        order=judged.first_row,
    )


def user_line(frames: Sequence[str]) -> str:
    """The innermost frame that is not inside a framework, else the innermost one."""
    for frame in frames:
        if not any(part in frame.partition(", line ")[0] for part in _FRAMEWORK_FILES):
            return _one_line(frame)
    return _one_line(frames[0]) if frames else ""


def _one_line(frame: str) -> str:
    return " ".join(frame.split())


def _values(row: dict[str, object], side: str) -> dict[str, str]:
    values = {"dtype": str(row[f"{side}_dtype"]), "shape": str(row[f"{side}_shape"])}
    for stat in STATS:
        text = row[f"{side}_{stat}_text"]
        values[stat] = str(text if text is not None else row[f"{side}_{stat}"])
    digest = row[f"{side}_digest"]
    return values | ({"checksum": str(digest)} if digest is not None else {})


def _sentence(op: str, row: str, reason: str, relative: float | None) -> str:
    place = row.removeprefix(op).strip(".") or row
    size = (
        "" if relative is None else f" (relative error {relative:.2%})" if relative < 10 else f" ({relative:.1e} times)"
    )
    return f"{place}: {reason}{size}"
