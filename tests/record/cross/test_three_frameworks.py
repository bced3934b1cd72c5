"""One transformer, recorded in three frameworks with equal weights: forward passes agree, a planted fault is found.

The recordings are kept in tests/data/cross, where remake.py makes them anew; the tests of each framework make fresh
ones.
"""

from __future__ import annotations

import pytest

from cross import DATA, assert_fault_found, assert_forward_agrees, compared

CALLS = 21
# Paddle keeps the weights of Linear the other way round, and marks them: they are turned before they are compared.
PARTS = ("input", "output", "parameters")
PAIRS = ("mindspore_torch", "paddle_torch", "paddle_mindspore")
SPOILED = {
    "mindspore": "Cell.layers.1.feed_forward.dense_out.",
    "paddle": "Module.blocks.1.ffn.down.",
}


@pytest.mark.parametrize("pair", PAIRS)
def test_every_forward_pair_agrees_within_rounding(pair: str) -> None:
    target, golden = pair.split("_")
    comparison = compared(DATA / target, DATA / golden, f"{pair}.yaml")
    assert_forward_agrees(comparison, calls=CALLS, parts=PARTS)


@pytest.mark.parametrize("pair", PAIRS)
def test_a_fault_in_the_target_is_found_where_it_is(pair: str) -> None:
    target, golden = pair.split("_")
    comparison = compared(DATA / f"{target}_fault", DATA / golden, f"{pair}.yaml")
    assert_fault_found(comparison, SPOILED[target])


@pytest.mark.parametrize("pair", PAIRS)
def test_a_fault_in_the_golden_run_is_found_where_it_is(pair: str) -> None:
    target, golden = pair.split("_")
    comparison = compared(DATA / target, DATA / f"{golden}_fault", f"{pair}.yaml")
    assert_fault_found(comparison, SPOILED[target])


def test_gradients_of_mindspore_and_torch_agree_too() -> None:
    table = compared(DATA / "mindspore", DATA / "torch", "mindspore_torch.yaml").table().to_dicts()
    gradients = [row for row in table if ".backward." in row["NPU Name"] or ".parameters_grad." in row["NPU Name"]]
    assert len(gradients) > 60
    assert [row["NPU Name"] for row in gradients if row["Result"] != "pass"] == []


@pytest.mark.parametrize("golden", ["torch", "mindspore"])
def test_weights_stored_the_other_way_round_are_turned(golden: str) -> None:
    table = compared(DATA / "paddle", DATA / golden, f"paddle_{golden}.yaml").table().to_dicts()
    weights = [row for row in table if ".Linear." in row["NPU Name"] and row["NPU Name"].endswith(".weight")]
    turned = [row for row in weights if "axes 1 0" in row["Matched By"]]
    assert len(turned) == len(weights) == 18  # four in each of two layers, and the head; and their gradients
    assert {row["Result"] for row in turned} == {"pass"}
    assert all("compared in the golden run's layout" in row["Reason"] for row in turned)
