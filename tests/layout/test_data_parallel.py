"""Data parallel trainings: what they do otherwise than one process is no difference, and a fault in it is named."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pytest
from test_parallel_layouts import assert_agreement, compared

from support import slow
from twinprobe._compare.updates import noise_of_steps
from twinprobe._judge.deviation import DIFFERS
from twinprobe._runs.names import TOTAL_NORM

if TYPE_CHECKING:  # the tests of other folders have a conftest as well
    from conftest import Trained

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("level", ["L0", *slow("mix")])
def test_parameters_that_fsdp_has_flattened_are_compared_one_by_one(
    trained: Trained, level: str, tmp_path: Path, capsys: Capture
) -> None:
    document = compared(trained("fsdp1+flat+clip", 2, level), trained("single+clip", 1, level), tmp_path, capsys)
    assert_agreement(document)
    # Every parameter, as modules and as the optimizer have it.
    assert document["by_name"]["step1/optimizer"]["golden_only"] == 0
    table = next((tmp_path / "step0").glob("compare_result_whole*.csv")).read_text()
    assert "Module.layers.1.mlp.up.Linear.forward.0.parameters.weight,Module.layers.1.mlp.up" in table
    assert ".parameters._flat_param" not in table


def test_a_parameter_in_a_flattened_one_is_named(trained: Trained, tmp_path: Path, capsys: Capture) -> None:
    """A rank's shard of a flat parameter has a part of each parameter in it, or none."""
    fault = "scaled:1:layers.1._fsdp_wrapped_module._flat_param:1.5"
    document = compared(trained("fsdp1+flat", 2, fault=fault), trained("single"), tmp_path, capsys)
    first = document["by_name"]["step0/whole"]["first"]
    assert first["module"].startswith("layers.1.")
    assert "the parameter differs" in first["sentence"]


def test_optimizer_states_that_are_spread_over_ranks_have_made_as_many_steps(
    trained: Trained, tmp_path: Path, capsys: Capture
) -> None:
    assert_agreement(compared(trained("ddp+zero"), trained("single"), tmp_path, capsys))


def test_a_scaled_shard_is_named_though_normalisations_hide_it(
    trained: Trained, tmp_path: Path, capsys: Capture
) -> None:
    """Statistics of what a layer norm gives are the same whatever comes in: the difference was lost there."""
    fault = "scaled:3:layers.0.mlp.up.weight:1.5"
    document = compared(trained("hsdp", 4, fault=fault), trained("single"), tmp_path, capsys)
    first = document["by_name"]["step0/whole"]["first"]
    assert first["module"] == "layers.0.mlp.up"
    assert "rank 3's shard differs, which is gathered" in first["sentence"]


@pytest.mark.parametrize("level", ["L0", *slow("mix")])
def test_losses_of_micro_batches_are_divided_and_nothing_differs(
    trained: Trained, level: str, tmp_path: Path, capsys: Capture
) -> None:
    document = compared(trained("ddp+micro", 2, level), trained("single", 1, level), tmp_path, capsys)
    assert [one["first"] for one in document["ranks"]] == [None] * 4
    assert all(result["agrees"] for one in document["ranks"] for result in one["results"])


@pytest.mark.parametrize("level", ["L0", *slow("mix")])
def test_losses_of_micro_batches_that_nobody_divides_are_a_divergence(
    trained: Trained, level: str, tmp_path: Path, capsys: Capture
) -> None:
    target = trained("ddp+micro", 2, level, fault="micro_scale")
    found = compared(target, trained("single", 1, level), tmp_path, capsys)["by_name"]
    assert "2 times golden's" in found["step0/optimizer"]["first"]["sentence"]


def test_words_that_are_dealt_to_ranks_in_another_order_are_the_same_words(
    trained: Trained, tmp_path: Path, capsys: Capture
) -> None:
    """As torch's DistributedSampler does it: each rank gets every second sample."""
    assert_agreement(compared(trained("ddp+dealt"), trained("single"), tmp_path, capsys))
    document = compared(trained("ddp+dealt", fault="wrong_rate"), trained("single"), tmp_path, capsys)
    sentences = [one["first"]["sentence"] for one in document["ranks"] if one["first"]]
    assert sentences
    assert not any("comes from outside and differs on" in text for text in sentences)


def test_ranks_that_clip_before_they_reduce_are_told(trained: Trained, tmp_path: Path, capsys: Capture) -> None:
    document = compared(trained("ddp+clip", fault="clip_first"), trained("single+clip"), tmp_path, capsys)
    sentence = document["by_name"]["step0/optimizer"]["first"]["sentence"]
    assert "ranks 0, 1 clip by norms of their own" in sentence
    assert "that clips gradients" not in sentence


@pytest.mark.slow
def test_places_in_a_ranks_own_batch_are_not_compared(trained: Trained, tmp_path: Path, capsys: Capture) -> None:
    """Which words go to an expert, as nonzero has them: each rank counts from the beginning of its own batch."""
    single = trained("single+moe", 1, "mix")
    document = compared(trained("ddp+moe", 2, "mix"), single, tmp_path, capsys)
    assert [one["first"] for one in document["ranks"]] == [None] * 4
    found: dict[str, Any] = compared(trained("ddp+moe", 2, "mix", fault="replica_differs"), single, tmp_path, capsys)
    first = found["by_name"]["step0/whole"]["first"]
    assert first["module"] == "layers.1.norm1"
    assert "rank 1's replica" in first["sentence"]


@pytest.mark.parametrize("kind", ["fsdp2", *slow("fsdp1+flat")])
def test_whole_parameters_and_shards_on_as_many_ranks_are_put_together(
    trained: Trained, kind: str, tmp_path: Path, capsys: Capture
) -> None:
    """Rank by rank, an optimizer's whole parameters would be compared with pieces of them."""
    golden = "ddp" if kind == "fsdp2" else "fsdp2"
    document = compared(trained(kind), trained(golden), tmp_path, capsys)
    assert [one["first"] for one in document["ranks"]] == [None] * 4
    assert document["by_name"]["step1/optimizer"]["verdicts"]["error"] == 0


def test_a_loss_that_is_divided_by_its_micro_batches_does_not_hide_gradients_that_nothing_reduced(
    trained: Trained, tmp_path: Path, capsys: Capture
) -> None:
    target = trained("ddp+micro", 2, "mix", fault="never_synced")
    document = compared(target, trained("single", 1, "mix"), tmp_path, capsys)
    assert document["by_name"]["step0/whole"]["first"] is None
    assert "ranks 0, 1" in document["by_name"]["step0/optimizer"]["first"]["sentence"]


def judged(errors: list[float], differing: int) -> Any:
    return SimpleNamespace(
        error=np.array(errors), state=np.array([DIFFERS] * differing + [0] * (len(errors) - differing))
    )


@pytest.mark.parametrize(("error", "noise"), [(4e-6, True), (4e-3, False)])
def test_gradients_are_as_far_off_as_the_backward_pass_that_agrees(error: float, noise: bool) -> None:
    """Of an attention whose keys' bias Adam has moved by rounding: nothing but its backward pass tells its noise."""
    gradient = "Optimizer.layers.0.attention.in_proj_weight.AdamW.0.forward.input.0"
    updates = pl.Series(
        [gradient, f"{TOTAL_NORM}.AdamW.0.forward.output.0", "Optimizer.head.weight.AdamW.0.forward.input.0"]
    )
    calls = pl.Series(
        ["Module.layers.0.attention.Attention.backward.0.output.0", "Module.head.Linear.backward.0.output.0"]
    )
    note = noise_of_steps(updates, judged([error, error / 2, 1e-7], 2), calls, judged([5e-6, 1e-7], 0), 1)
    assert bool(note) == noise
    # A parameter that differs is more than a gradient.
    updates = pl.Series([gradient, gradient.replace("input.0", "parameters.before")])
    assert not noise_of_steps(updates, judged([error, error], 2), calls, judged([5e-6, 1e-7], 0), 1)


@pytest.mark.parametrize(("few", "noise"), [(True, True), (False, False)])
def test_one_gradient_of_the_first_step_is_as_far_off_as_its_backward_pass(few: bool, noise: bool) -> None:
    """In 16 bits, of few words; a fault would be in many of them."""
    count = 20
    updates = pl.Series([f"Optimizer.layers.{at}.weight.SGD.0.forward.input.0" for at in range(count)])
    calls = pl.Series([f"Module.layers.{at}.Linear.backward.0.output.0" for at in range(count)])
    begun = 1 if few else count // 2
    found = judged([0.07] * begun + [1e-3] * (count - begun), count)
    found.calls = SimpleNamespace(of_row=np.arange(count))
    found.beginnings = [SimpleNamespace(call=at) for at in range(begun)]
    assert bool(noise_of_steps(updates, found, calls, judged([0.07] * count, 0), 0)) == noise
