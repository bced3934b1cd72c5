"""Recorded runs, disturbed afterwards: for dumps whose model is not at hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from twinprobe._runs.run import Run
from twinprobe._runs.table import ABSENT, STATS


def without_statistics(run: Run) -> Run:
    """The same run, of which only names, shapes and order are known."""
    columns = [pl.lit(None, dtype=pl.Float64).alias(stat) for stat in STATS]
    columns += [pl.lit(ABSENT, dtype=pl.UInt8).alias(f"{stat}_kind") for stat in STATS]
    return _with_parents(run, replace(run, table=run.table.with_columns(columns)))


def with_other_values(run: Run, seed: int = 5) -> Run:
    """The same run as if its weights were others: every tensor's statistics are stretched by a factor of its own."""
    rng = np.random.default_rng(seed)
    factors: dict[tuple[object, ...], float] = {}
    keys = list(zip(*(run.table[stat].to_list() for stat in STATS), strict=True))
    stretched = np.array([factors.setdefault(key, float(rng.uniform(1.5, 9.0))) for key in keys])
    columns = [(run.table[stat] * pl.Series(stretched)).alias(stat) for stat in STATS]
    return _with_parents(run, replace(run, table=run.table.with_columns(columns)))


def without_layer(run: Run, path: str) -> Run:
    """The same run without the calls of one layer and all that they enclose."""

    def is_inside(name: str | None) -> bool:
        for _ in range(64):
            if name is None:
                return False
            if f".{path}." in name:
                return True
            name = run.parents.get(name)
        return False

    kept = [op for op, name in enumerate(run.ops) if not is_inside(name)]
    numbers = {op: at for at, op in enumerate(kept)}
    table = run.table.filter(pl.col("op").is_in(kept))
    table = table.with_columns(pl.col("op").replace_strict(numbers, return_dtype=pl.Int32))
    return _with_parents(run, replace(run, ops=[run.ops[op] for op in kept], table=table))


def _with_parents(run: Run, made: Run) -> Run:
    made.__dict__["parents"] = run.parents
    return made
