"""Aligned runs that lay their tensors out differently: compared in one layout, and faults are still found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl

from models.catalogue import CLEAN
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.one import Options, compare_runs


def _rows(made: Any) -> pl.DataFrame:
    table = compare_runs(made.target, made.golden, Options(match=build_matcher(MappingOptions()))).table()
    return table.filter((table["NPU Name"] != "N/A") & (table["Bench Name"] != "N/A"))


def test_sequence_first_meets_batch_first(recorded: Callable[..., Any]) -> None:
    for task in ("statistics", "tensor"):
        rows = _rows(recorded("llama / suite", task=task))
        turned = rows.filter(pl.col("Matched By").str.contains("axes 1 0 2"))
        assert turned.height > 300
        assert Counter(rows["Result"].to_list()) == {"pass": rows.height}
        one = turned.filter(pl.col("NPU Name").str.ends_with("layers.0.mlp.ParallelMLP.forward.0.output.0")).to_dicts()[
            0
        ]
        assert (one["NPU Tensor Shape"], one["Bench Tensor Shape"]) == ("[8, 2, 32]", "[2, 8, 32]")
        assert one["Reason"].endswith("compared in the golden run's layout")


def test_fused_projections_are_compared_element_by_element_where_tensors_exist(recorded: Callable[..., Any]) -> None:
    """GPT-NeoX keeps q, k and v head by head; GPT-2's fused weight is stored the other way round, too."""
    for name in ("gpt-neox", "gpt2 / split"):
        rows = _rows(recorded(name, task="tensor")).filter(pl.col("Matched By").str.contains("concatenated"))
        assert rows.height == 40
        assert set(rows["Result"].to_list()) == {"pass"}
        weights = rows.filter(pl.col("NPU Name").str.contains("parameters.weight"))
        assert set(weights["Cosine"].to_list()) == {"1.0"}
        assert {len(names.split(";")) for names in rows["NPU Name"].to_list()} == {3}


def test_one_wrong_head_of_a_fused_projection_is_found(recorded: Callable[..., Any], tmp_path: Any) -> None:
    """Statistics of the whole hardly move when two rows are swapped; the elements tell."""
    from models.catalogue import build, record_run
    from models.held_out import HELD_OUT

    pair = next(pair for pair in HELD_OUT if pair.name.startswith("gpt-neox"))
    published, own, _ = build(pair)
    weight = own.trunk[2].attend.w_key.weight.data
    weight[[8, 9]] = weight[[9, 8]]
    target = record_run(own, pair.inputs(), tmp_path / "t", task="tensor", backward=False)
    golden = record_run(published, pair.inputs(), tmp_path / "g", task="tensor", backward=False)
    table = compare_runs(target, golden, Options(match=build_matcher(MappingOptions()))).table()
    fused = table.filter(
        pl.col("Matched By").str.contains("concatenated") & pl.col("NPU Name").str.contains("parameters.weight")
    )
    results = dict(zip(fused["NPU Name"].str.extract(r"trunk\.(\d)").to_list(), fused["Result"].to_list(), strict=True))
    assert results == {"0": "pass", "1": "pass", "2": "warning", "3": "pass"}
    assert np.isclose(float(fused["NPU l2norm"][2]), float(fused["Bench l2norm"][2]), rtol=1e-6)


def test_channels_last_meets_channels_first(recorded: Callable[..., Any]) -> None:
    rows = _rows(recorded("convnext", CLEAN, task="tensor"))
    bad = rows.filter(pl.col("Result") != "pass")
    assert bad.height <= 2  # the exponent and the mean's axis are arguments, and differ
    assert rows.filter(pl.col("Matched By").str.contains("axes")).height > 250


def test_operands_in_another_order_are_paired_by_what_they_hold(recorded: Callable[..., Any]) -> None:
    rows = _rows(recorded("llama / suite")).filter(pl.col("Matched By").str.contains("argument order"))
    assert rows.height > 0
    assert set(rows["Result"].to_list()) == {"pass"}
