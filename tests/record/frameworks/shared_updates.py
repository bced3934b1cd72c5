"""optimizer.json of MindSpore and Paddle: what an optimizer saw and did, and what compare makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_kit import Kit, assert_same_bits
from update_programs import MOST, train

import twinprobe
from support import slow
from twinprobe._judge.summary import Summary

KEPT = Path(__file__).parents[2] / "data" / "cross" / "updates_torch"
TOTAL = "Optimizer.total_norm."


def updates(folder: Path) -> dict[str, Any]:
    (file,) = folder.rglob("optimizer.json")
    return json.loads(file.read_text())["data"]  # type: ignore[no-any-return]


def compared(target: Path, golden: Path) -> Summary:
    pairs = twinprobe.compare(*(next(side.rglob("dump.json")) for side in (target, golden))).pairs
    return next(iter(pairs.values())).summary


@pytest.fixture(scope="session")
def plain(kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    """One recorded step: its folder, and the parameters before and after it."""
    folder = tmp_path_factory.mktemp("updates")
    return folder, *train(kit.make_recorder.name, folder)


def test_gradients_settings_and_parameters_are_those_of_the_step(plain: Any) -> None:
    folder, before, after = plain
    data = updates(folder)
    assert [name.split(".AdamW.")[0].removeprefix("Optimizer.") for name in data] == [*before, "total_norm"]
    for name in before:
        entry = data[f"Optimizer.{name}.AdamW.0.forward"]
        for leaf, value in ((entry["parameters"]["before"], before[name]), (entry["output"][0], after[name])):
            assert leaf["Max"] == value.max()
            assert leaf["Norm"] == pytest.approx(np.linalg.norm(value), rel=1e-6)
        settings = entry["input_kwargs"]
        assert settings["lr"] == {"type": "float", "value": 0.05}
        assert settings["weight_decay"]["value"] == 0.25
        assert [one["value"] for one in settings["betas"]] == [0.9, 0.999]


def test_the_norm_of_all_gradients_is_known_before_and_after_clipping(plain: Any) -> None:
    data = updates(plain[0])
    (total,) = [entry for name, entry in data.items() if name.startswith(TOTAL)]
    seen = [entry["input_args"][0]["Norm"] for name, entry in data.items() if not name.startswith(TOTAL)]
    assert total["output"][0]["Norm"] == pytest.approx(np.linalg.norm(seen), rel=1e-6) == pytest.approx(MOST, rel=1e-4)
    kept = updates(KEPT)[f"{TOTAL}AdamW.0.forward"]
    assert total["input_args"][0]["Norm"] == pytest.approx(kept["input_args"][0]["Norm"], rel=1e-5)


@pytest.mark.parametrize("level", [*slow("L0"), "mix"])
def test_training_is_bit_identical_and_every_step_is_noted(kit: Kit, tmp_path: Path, level: str) -> None:
    framework = kit.make_recorder.name
    _, bare = train(framework, None, steps=2)
    _, recorded = train(framework, tmp_path, steps=2, level=level)
    assert_same_bits([*bare.values()], [*recorded.values()])
    assert [name.split(".")[-2] for name in updates(tmp_path) if name.startswith(TOTAL)] == ["0", "1"]


def test_updates_agree_with_those_of_pytorch(plain: Any) -> None:
    """Other names of parameters, of settings and of the optimizer; weights that are stored the other way round."""
    summary = compared(plain[0], KEPT)
    assert summary.first is None, summary.first
    assert {one.name: one.agrees for one in summary.results}["updated parameters"]


def test_another_rate_is_named_in_the_same_framework_and_across(kit: Kit, plain: Any, tmp_path: Path) -> None:
    train(kit.make_recorder.name, tmp_path, rate=0.06)
    for golden in (plain[0], KEPT):  # PyTorch's optimizer is among its calls, the others' are not
        first = compared(tmp_path, golden).first
        assert first is not None
        assert first.op.startswith("Optimizer.")
        assert "lr: 0.06 against 0.05" in first.sentence


def test_every_layer_has_its_partner_in_pytorch(plain: Any) -> None:
    """Also those whose weights are not square, and are stored the other way round."""
    pairs = twinprobe.compare(*(next(side.rglob("dump.json")) for side in (plain[0], KEPT))).pairs
    table = next(iter(pairs.values())).table()
    rows = zip(table["NPU Name"].to_list(), table["Bench Name"].to_list(), strict=True)
    layers = {name: partner for name, partner in rows if ".forward.0.output" in name and name[:4] in ("Cell", "Modu")}
    assert len(layers) == 3
    assert "N/A" not in layers.values(), layers


@pytest.mark.parametrize(("fault", "layer"), [("eps", "norm"), ("last.bias", "last")])
def test_a_fault_is_found_in_its_layer_and_nothing_before_it(kit: Kit, tmp_path: Path, fault: str, layer: str) -> None:
    """Not in a product that takes what was transposed before, nor in what the optimizer makes of it."""
    train(kit.make_recorder.name, tmp_path, fault=fault)
    first = compared(tmp_path, KEPT).first
    assert first is not None
    assert layer in (first.module, first.op.split(".")[1]), first
    if (kit.make_recorder.name, fault) == ("paddle", "eps"):  # an attribute of a primitive in MindSpore, no argument
        assert "epsilon: 0.001 against 1e-05" in first.sentence


def test_it_can_be_switched_off_and_the_recorder_leaves_nothing_behind(kit: Kit, tmp_path: Path) -> None:
    bare = kit.optimizer_functions()
    for wanted in (True, False):
        with kit.api.record(kit.networks.PostNorm(), tmp_path / str(wanted), level="L0", optimizer=wanted):
            assert (kit.optimizer_functions() != bare) is wanted
        assert kit.optimizer_functions() == bare
