"""Findings as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinprobe.live.findings import Finding

if TYPE_CHECKING:
    import polars as pl


def table_of(findings: list[Finding]) -> pl.DataFrame:
    """One row per pair of tensors."""
    import polars as pl

    texts = {
        "phase": [one.phase for one in findings],
        "raw": [one.raw for one in findings],
        "base": [one.base for one in findings],
        "place": [one.place for one in findings],
        "tensor": [one.tensor for one in findings],
        "verdict": [_verdict(one) for one in findings],
        "cause": [one.cause for one in findings],
        "why": [one.gap.why for one in findings],
        "raw shape": [one.raw_shape for one in findings],
        "base shape": [one.base_shape for one in findings],
        "dtype": [one.dtype for one in findings],
    }
    numbers = {
        "max abs": [one.gap.max_abs for one in findings],
        "mean abs": [one.gap.mean_abs for one in findings],
        "max rel": [one.gap.max_rel for one in findings],
        "relative norm": [one.gap.relative_norm for one in findings],
        "cosine": [one.gap.cosine for one in findings],
    }
    counts = {
        "mismatched": [one.gap.mismatched for one in findings],
        "elements": [one.gap.elements for one in findings],
    }
    columns = [pl.Series("step", [one.step for one in findings], dtype=pl.Int64)]
    columns += [pl.Series(name, values, dtype=pl.String) for name, values in texts.items()]
    columns += [pl.Series(name, values, dtype=pl.Float64) for name, values in numbers.items()]
    columns += [pl.Series(name, values, dtype=pl.Int64) for name, values in counts.items()]
    columns.append(pl.Series("rule", [one.rule for one in findings], dtype=pl.String))
    return pl.DataFrame(columns)


def _verdict(one: Finding) -> str:
    if not one.differs:
        return "same"
    return "differs" if one.decides else "differs (does not decide)"
