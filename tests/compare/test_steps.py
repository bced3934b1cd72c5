"""Runs of many steps: the step where they part, the cause, the pairing of steps, the table and the page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import twinprobe
import watch as bench  # bench/watch.py, which trains
from support import needs
from twinprobe._cli import main
from twinprobe._compare.steps import compare_steps
from twinprobe._runs.watch import STREAM, WatchStream
from twinprobe.errors import NothingToCompare


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of three layers, trained for 60 steps."""
    folder = tmp_path_factory.mktemp("golden") / "run"
    bench.train("gpt2", "plain", folder)
    return folder


@pytest.fixture(scope="module")
def faster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with three times the learning rate from step 23 on."""
    folder = tmp_path_factory.mktemp("faster") / "run"
    bench.train("gpt2", "plain", folder, "learning rate", 23)
    return folder


def test_the_command_names_the_update_and_its_learning_rate_first(
    golden: Path, faster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(faster), str(golden), "-o", str(tmp_path), "--fail-on"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == (
        "the runs agree up to step 23; from step 24 on every parameter differs, beginning with the parameter update of "
        "step 23 (gradients agree, learning rate 0.003 against 0.001)"
    )
    assert not any(line.strip().startswith("22 ") for line in lines)  # a line for each step only on demand
    table = pl.read_csv(next(tmp_path.glob("compare_steps_*.csv")))
    assert table.filter(pl.col("differing") > 0)["step"].to_list() == list(range(23, 60))
    assert table["target_learning_rate"][23] == pytest.approx(0.003)
    assert main(["compare", str(golden), str(golden), "-o", str(tmp_path), "--fail-on", "--each-step"]) == 0
    shown = capsys.readouterr().out
    assert "the runs agree in all 60 steps" in shown
    assert sum(line.split()[:1] == [str(step)] for step in range(60) for line in shown.splitlines()) == 60


def test_python_and_json_say_the_same(
    golden: Path, faster: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = twinprobe.compare(faster, golden)
    assert not found
    assert found.steps is not None
    parting = found.steps.parting
    assert (parting.step, parting.golden_step, parting.cause) == (23, 23, "learning rate")
    assert found.table.height == 60
    assert {path.suffix for path in found.save(tmp_path / "saved")} == {".csv", ".html"}
    assert main(["compare", str(faster), str(golden), "-o", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps"]["sentence"] == parting.sentence
    assert document["agrees"] is False


@pytest.mark.parametrize(("change", "module"), [("kernel", "transformer.h.1"), ("seed", "transformer.h.0")])
def test_the_module_is_named_where_data_and_parameters_agree(
    change: str, module: str, golden: Path, tmp_path: Path
) -> None:
    bench.train("gpt2", "plain", tmp_path / "run", change, 31)
    parting = compare_steps(tmp_path / "run", golden).parting
    assert (parting.step, parting.module, parting.cause) == (31, module, bench.CHANGES[change].cause)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["watch", "L0"])
@pytest.mark.parametrize("model", list(bench.MODELS))
@pytest.mark.parametrize("loop", list(bench.LOOPS))
def test_every_change_is_found_in_its_step(
    loop: str, model: str, level: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """bench/watch.py --parting, a model and a loop at a time: every step, and nine causes of ten."""
    if level == "L0" and (model, loop) != ("gpt2", "plain"):
        pytest.skip("full recordings of 60 steps once")
    assert bench.parting(f"{model} {loop}", level) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("model", list(bench.MODELS))
def test_other_kernels_from_the_start_are_noise_and_another_dtype_is_not(model: str, tmp_path: Path) -> None:
    bench.train(model, "plain", tmp_path / "golden")
    for change in ("kernel", "dtype"):
        bench.train(model, "plain", tmp_path / change, change, 0)
    kernel, dtype = (compare_steps(tmp_path / change, tmp_path / "golden").parting for change in ("kernel", "dtype"))
    assert kernel.sentence == "the runs agree in all 60 steps, within noise"
    assert (dtype.step, dtype.cause) == (0, "dtype")


def test_full_recordings_are_compared_over_their_steps_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, decay in (("golden", 0.0), ("target", 0.5)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
        data = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
        with twinprobe.record(model, tmp_path / name, level="L0") as recording:
            for step in range(5):
                optimizer.param_groups[0]["weight_decay"] = decay if step >= 2 else 0.0
                model(data[step]).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "the parameter update of step 2 (gradients agree, weight decay 0.5 against 0)" in shown
    assert "3 of 5 steps differ; --each-step lists them" in shown
    assert len(list((tmp_path / "out").glob("step*/compare_result_*.xlsx"))) == 5


def test_full_recordings_that_count_otherwise_are_paired_by_their_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, first in (("golden", 0), ("target", 1)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        data = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
        with twinprobe.record(model, tmp_path / name, level="L0") as recording:
            for step in range(5):
                model(data[step] * (1 + (name == "target" and step >= 3)))
                recording.step()
        for step in reversed(range(5)):
            (tmp_path / name / f"step{step}").rename(tmp_path / name / f"step{step + first}")
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "the runs agree up to step 3; step 4 takes other data (input 0)" in told.out
    assert "step 4 of the target is step 3 of the golden run" in told.out
    assert "2 of 5 steps differ" in told.out
    assert "paired by data" in told.err


# Pairing steps. Streams made by hand are enough here: only numbers and data count.

NAMES = ["input.x.digest", "input.x.samples", "loss", "parameter.w.norm"]


def stream(folder: Path, rows: list[tuple[int, float, float]]) -> Path:
    """Steps with their data and their loss."""
    writer = WatchStream(folder / "rank0" / STREAM, 1000)
    for step, data, loss in rows:
        writer.append(step, NAMES, np.array([data, data * data % 1000, loss, 1.0], dtype=np.float32))
    writer.close()
    return folder


def run_of(shift: int = 0, first: int = 0, last: int = 40, bad: int = 99) -> list[tuple[int, float, float]]:
    return [(step + shift, 100.0 + 3 * step, 1.0 / (step + 1) + (step >= bad)) for step in range(first, last)]


@pytest.mark.parametrize(
    ("rows", "steps"),
    [
        (run_of(shift=1, bad=25), (26, 25)),  # counts from one
        (run_of(shift=-20, first=20, bad=25), (5, 25)),  # was resumed and counts anew
        (run_of(last=30, bad=25), (25, 25)),  # ended earlier
        (run_of(bad=25)[::5], (25, 25)),  # every fifth step
    ],
    ids=["from one", "resumed", "shorter", "every fifth"],
)
def test_steps_are_paired_by_data_where_the_numbers_do_not_fit(
    rows: list[tuple[int, float, float]], steps: tuple[int, int], tmp_path: Path
) -> None:
    found = compare_steps(stream(tmp_path / "target", rows), stream(tmp_path / "golden", run_of()))
    assert (found.parting.step, found.parting.golden_step) == steps
    assert found.parting.cause == "loss"


@pytest.mark.parametrize(("order", "cause"), [("turned", "data order"), ("all", "data"), ("one", "data")])
def test_reordered_batches_are_told_from_other_data(order: str, cause: str, tmp_path: Path) -> None:
    rows = run_of()
    tail = rows[10:]
    data = [one[1] for one in tail]
    others = {"turned": data[3:] + data[:3], "one": [data[0] + 0.5, *data[1:]], "all": [one + 1 for one in data]}
    data = others[order]
    changed = rows[:10] + [(step, new, loss) for (step, _, loss), new in zip(tail, data, strict=True)]
    parting = compare_steps(stream(tmp_path / "target", changed), stream(tmp_path / "golden", rows)).parting
    assert (parting.step, parting.cause) == (10, cause)


def test_noise_that_grows_is_no_parting_and_a_jump_is(tmp_path: Path) -> None:
    """Two devices: the losses differ from the first step on, by rounding that each step carries into the next."""
    rows = run_of()
    growing = [(step, data, loss * (1 + 2e-7 * 1.3**step)) for step, data, loss in rows]
    golden = stream(tmp_path / "golden", rows)
    found = compare_steps(stream(tmp_path / "growing", growing), golden)
    assert found.parting.sentence == "the runs agree in all 40 steps, within noise"
    jump = [(step, data, loss * (1.05 if step >= 12 else 1)) for step, data, loss in growing]
    assert compare_steps(stream(tmp_path / "jump", jump), golden).parting.step == 12


@pytest.mark.parametrize(("off", "cause", "words"), [(1e-3, "dtype", "16-bit"), (2e-2, "kernel", "more than rounding")])
def test_only_what_16_bits_leave_is_called_another_dtype(off: float, cause: str, words: str, tmp_path: Path) -> None:
    """A fault that moves a norm by percents, like a mask that is off by one, is no rounding of bfloat16."""
    names = ["output.layers.0.norm", "output.layers.0.eps"]
    for side, factor in (("target", 1 + off), ("golden", 1.0)):
        writer = WatchStream(tmp_path / side / "rank0" / STREAM, 1000)
        for step in range(4):
            writer.append(step, names, np.array([3.0 * (factor if step else 1), 2.0**-23], dtype=np.float32))
        writer.close()
    parting = compare_steps(tmp_path / "target", tmp_path / "golden").parting
    assert (parting.step, parting.cause) == (1, cause)
    assert words in parting.sentence


def test_running_statistics_that_no_output_shows_are_found(tmp_path: Path) -> None:
    """Batch normalisation with another momentum trains alike; what it keeps for evaluations differs."""
    for name, momentum in (("target", 0.3), ("golden", 0.1)):
        torch.manual_seed(0)
        norm = torch.nn.BatchNorm1d(8)
        network = torch.nn.Sequential(torch.nn.Linear(4, 8), norm, torch.nn.ReLU(), torch.nn.Linear(8, 2))
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        with twinprobe.record(network, tmp_path / name, level="watch"):
            for step in range(6):
                norm.momentum = momentum if step >= 3 else 0.1
                network(torch.randn(8, 4)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    parting = compare_steps(tmp_path / "target", tmp_path / "golden").parting
    assert (parting.step, parting.cause, parting.module) == (3, "buffers", "1"), parting.sentence
    assert "1.running_mean and 1 more differ after the forward pass" in parting.sentence


def test_runs_without_a_step_or_a_series_in_common_are_refused(tmp_path: Path) -> None:
    golden = stream(tmp_path / "golden", run_of())
    with pytest.raises(NothingToCompare, match="no step in common"):
        compare_steps(stream(tmp_path / "late", [(step + 90, 7.0, 1.0) for step in range(5)]), golden)
    writer = WatchStream(tmp_path / "other" / "rank0" / STREAM, 1000)
    writer.append(0, ["perplexity"], np.ones(1, dtype=np.float32))
    writer.close()
    with pytest.raises(NothingToCompare, match="no series in common"):
        compare_steps(tmp_path / "other", golden)


def test_the_page_shows_the_curves_and_any_series_that_is_picked(
    golden: Path, faster: Path, tmp_path: Path, chromium: Any
) -> None:
    assert main(["compare", str(faster), str(golden), "-o", str(tmp_path)]) == 0
    page = chromium.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(next(tmp_path.glob("compare_steps_*.html")).as_uri())
    assert "learning rate 0.003 against 0.001" in page.inner_text("h1")
    titles = page.locator("figcaption").all_inner_texts()
    assert [title.splitlines()[0].split("differs")[0].strip() for title in titles[:3]] == [
        "loss",
        "grad_norm",
        "group.0.lr",
    ]
    page.fill("#filter", "h.2 mlp gradient max")
    page.locator("#names button").first.click()
    assert any("gradient.transformer.h.2.mlp" in text for text in page.locator("figcaption").all_inner_texts())
    assert errors == []


def test_what_adam_makes_of_gradients_that_are_noise_is_noise(tmp_path: Path) -> None:
    """Under autocast both forms of GELU agree within bfloat16; Adam's first update is a whole step either way."""
    for form in ("tanh", "none"):
        torch.manual_seed(0)
        blocks = [torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(form), torch.nn.Linear(64, 16))
                  for _ in range(3)]  # fmt: skip
        net = torch.nn.Sequential(*blocks)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
        with twinprobe.record(net, tmp_path / form, level="watch"):
            for step in range(6):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = net(torch.randn(8, 16, generator=torch.Generator().manual_seed(step))).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    parting = twinprobe.compare(tmp_path / "tanh", tmp_path / "none").steps.parting
    assert parting.cause in ("", "kernel"), parting.sentence  # it is one, when it has grown


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_step_that_differs_is_told_as_a_single_one_would_be(
    level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Norms cannot tell why: at L0 no loss is recorded that could agree, and a call outside of modules is no module."""
    for name, temperature in (("golden", 0.1), ("target", 0.2)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(1))
        with twinprobe.record(model, tmp_path / name, level=level) as recording:
            for step in range(3):
                logits = model(data[step]) / (temperature if step else 0.1)
                torch.nn.functional.cross_entropy(logits, torch.arange(6) % 3).backward()
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "the runs agree up to step 0; step 1 differs: " in shown
    assert "loss agree" not in shown.splitlines()[0]
    assert "parameter gradients differ" in shown
    if level == "mix":
        assert "Tensor.__truediv__.0.forward" in shown
        assert "0.2 against 0.1" in " ".join(shown.split())


@needs("torch", "2.4", "there are fused optimizers on the host")
def test_an_optimizer_in_one_kernel_is_noise_although_the_first_step_is_equal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, fused in (("golden", False), ("target", True)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused, foreach=False)
        data = torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1))
        with twinprobe.record(model, tmp_path / name, level="L0") as recording:
            for step in range(3):
                torch.nn.functional.cross_entropy(model(data[step]), torch.arange(6) % 3).backward()
                optimizer.step()
                optimizer.zero_grad()
                recording.step()
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(tmp_path / "out")]) == 0
    assert "the runs agree in all 3 steps, within noise" in capsys.readouterr().out


def test_data_rounded_to_another_dtype_are_no_other_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, dtype in (("golden", torch.float32), ("target", torch.bfloat16)):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)).to(dtype)
        data = torch.randn(3, 6, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
        with twinprobe.record(model, tmp_path / name, level="L0") as recording:
            for step in range(3):
                if name == "target" and step == 1:
                    model[1] = torch.nn.Sigmoid()
                model(data[step])
                recording.step()
    assert main(["compare", str(tmp_path / "target"), str(tmp_path / "golden"), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "the runs agree up to step 0; step 1 differs: Module.1." in said
    assert "other data" not in said


def test_a_rank_is_said_to_differ_only_if_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    demo = Path(__file__).parents[2] / "examples/demo"
    for side in ("target", "golden"):
        for step in range(2):
            for rank in range(2):
                made = side if (step, rank) == (1, 1) else "golden"
                shutil.copytree(demo / made / "step0/rank0", tmp_path / side / f"step{step}/rank{rank}")
    paths = [str(tmp_path / side) for side in ("target", "golden")]
    assert main(["compare", *paths, "-o", str(tmp_path / "out"), "--format", "csv"]) == 0
    told = capsys.readouterr().out.splitlines()[1]
    assert told.startswith("rank 1: the runs agree up to step 0; step 1 differs: Module.layers.1.post_norm")
    assert "rank 0" not in told
