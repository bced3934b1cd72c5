"""What one layout does and another does not (communication, a bias added later, clipping) is no difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import forward, tensor, value, write_dump
from twinprobe._cli import main

MODULE, LINEAR, REDUCE = (
    "Module.down.Linear.forward.0",
    "Functional.linear.0.forward",
    "Distributed.all_reduce.0.forward",
)
NORM, GATHER, COPY = (
    "Module.norm.LayerNorm.forward.0",
    "_c10d_functional.all_gather.0.forward",
    "fsdp.chunk_cat.0.forward",
)
UPDATE, TOTAL = "Optimizer.down.weight.SGD.0.forward", "Optimizer.total_norm.SGD.0.forward"


def of(shape: list[int], high: float, norm: float = 3.0, mean: float = 0.0) -> dict[str, Any]:
    return tensor(shape=shape, high=high, low=-high, mean=mean, norm=norm)


def one_process(folder: Path, *, clipped: bool = False) -> Path:
    """A linear layer with its bias in one call, and a layer norm."""
    bias = of([4], 0.5)
    linear = [of([2, 8], 1.0), of([4, 8], 2.0, 5.0), bias]
    data = {
        LINEAR: forward(linear, [of([2, 4], 2.5)]),
        MODULE: {**forward([of([2, 8], 1.0)], [of([2, 4], 2.5)]), "parameters": {"weight": linear[1], "bias": bias}},
        NORM: forward([of([2, 4], 2.5)], [of([2, 4], 1.5)]),
    }
    write_dump(folder / "step0" / "proc1", data, level="mix", parents={LINEAR: MODULE, MODULE: None, NORM: None})
    optimizer(folder / "step0" / "proc1", of([4, 8], 0.25), clipped=clipped)
    return folder


def two_ranks(
    folder: Path, *, output: float = 2.5, clipped: bool = False, gradient: float = 0.25, rates: tuple[float, ...] = ()
) -> Path:
    """Each rank has half of the weight's columns; partial outputs are added up, then the bias."""
    for rank in range(2):
        bias, weight = of([4], 0.5), of([4, 4], 2.0 - rank, 3.0 + rank)
        halves = of([2, 4], 1.0 - rank / 2, 2.0 if rank else 5**0.5)
        partial, whole = of([2, 4], 1.2 + rank / 10, 1.5 + rank), of([2, 4], 2.1)
        data = {
            LINEAR: forward([halves, weight], [partial]),
            REDUCE: forward([partial], [whole]),
            GATHER: forward([partial], [whole]),
            COPY: forward([partial], [whole]),
            MODULE: {**forward([halves], [of([2, 4], output)]), "parameters": {"weight": weight, "bias": bias}},
            NORM: forward([of([2, 4], output)], [of([2, 4], 1.5 * output / 2.5)]),
        }
        inside = dict.fromkeys((LINEAR, REDUCE, GATHER, COPY), MODULE)
        write_dump(folder / "step0" / f"rank{rank}", data, level="mix", parents={**inside, MODULE: None, NORM: None})
        place, part = folder / "step0" / f"rank{rank}", of([4, 4], gradient, 9**0.5 / 2**0.5)
        optimizer(place, part, clipped=clipped, rate=rates[rank] if rates else 0.01)
    return folder


def optimizer(folder: Path, gradient: dict[str, Any], *, clipped: bool, rate: float = 0.01) -> None:
    total = of([], 3.0) if clipped else None
    before, after = (of(gradient["shape"], high, gradient["Norm"]) for high in (1.0, 1.0 - gradient["Max"] / 10))
    update = forward([gradient], [after], lr=value(rate)) | {"parameters": {"before": before}}
    data = {TOTAL: forward([value(1.0)] if clipped else [], [total]), UPDATE: update}
    write_dump(folder, data, level="L0", name="optimizer.json")


def compared(
    target: Path, golden: Path, out: Path, capsys: pytest.CaptureFixture[str], layouts: tuple[str, ...] = ("tp=2",)
) -> dict[str, dict[str, Any]]:
    words = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--csv", "--json"]
    words += ["--layout", *layouts]
    assert main(words) == 0
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def test_what_only_one_layout_needs_is_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = compared(two_ranks(tmp_path / "t"), one_process(tmp_path / "g"), tmp_path / "out", capsys)["step0/whole"]
    assert found["first"] is None
    assert found["target_only"] == 6  # the inputs and outputs of three collectives
    assert found["golden_only"] == 1  # the bias
    assert found["verdicts"] == {"pass": found["rows"] - 1, "warning": 1, "error": 0}
    assert not [note for note in found["notes"] if "differs" in note]


def test_a_module_around_a_collective_is_blamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_ranks(tmp_path / "t", output=3.5), one_process(tmp_path / "g")
    found = compared(target, golden, tmp_path / "out", capsys)["step0/whole"]
    assert found["first"]["op"] == MODULE


def test_the_summary_of_a_layout_says_what_agrees_and_where_it_diverges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target, golden, out = two_ranks(tmp_path / "t", output=3.5), one_process(tmp_path / "g"), tmp_path / "out"
    words = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--format", "html", "--layout", "tp=2"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "2 results compared, the ranks as one run" in shown
    assert "note: target: 2 ranks, layout tp=2" in shown
    assert "warning:" not in shown  # how a layout was merged is none
    assert shown.index("outputs differ") < shown.index("updated parameters agree") < shown.index("first divergence (")
    assert MODULE in shown[shown.index("first divergence (") :]
    page = next(out.glob("compare_summary_*.html")).read_text(encoding="utf-8")
    assert "2 results (the ranks as one run)" in page
    assert '"parts":["calls","optimizer"]' in page  # which are no ranks


def test_a_run_that_does_not_clip_is_no_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_ranks(tmp_path / "t"), one_process(tmp_path / "g", clipped=True)
    found = compared(target, golden, tmp_path / "out", capsys)["step0/optimizer"]
    assert found["verdicts"]["error"] == 0
    assert found["verdicts"]["warning"] == found["golden_only"]


def test_a_gradient_that_differs_is_named_before_the_update(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_ranks(tmp_path / "t", gradient=0.5), one_process(tmp_path / "g")
    found = compared(target, golden, tmp_path / "out", capsys)["step0/optimizer"]
    assert found["first"]["argument"] == "input.0"


def test_the_rank_of_another_learning_rate_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = two_ranks(tmp_path / "t", rates=(0.01, 0.02)), one_process(tmp_path / "g")
    found = compared(target, golden, tmp_path / "out", capsys)["step0/optimizer"]
    assert found["notes"][0] == f"{UPDATE}.input.lr: rank 1's setting differs from the others"
    assert found["verdicts"]["pass"] < found["rows"]


def test_parts_of_a_sum_that_nothing_adds_up_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = {MODULE: forward([of([2, 8], 1.0)], [of([2, 4], 2.5, 4.0, mean=0.5)])}
    write_dump(tmp_path / "g" / "step0" / "proc1", golden, level="L0", parents={MODULE: None})
    for rank, mean in enumerate((0.125, 0.375)):
        inputs, output = of([2, 4], 1.0, 9**0.5 / 2**0.5), of([2, 4], 1.5, 2.5 + rank, mean=mean)
        calls = {MODULE: forward([inputs], [output])}
        write_dump(tmp_path / "t" / "step0" / f"rank{rank}", calls, level="L0", parents={MODULE: None})
    found = compared(tmp_path / "t", tmp_path / "g", tmp_path / "out", capsys)["step0/whole"]
    assert found["first"]["op"] == MODULE
    assert found["notes"][0] == (
        f"{MODULE}.output.0: golden's is the sum of what ranks 0, 1 hold, but nothing adds them up"
    )


def test_what_backward_computes_once_more_is_no_micro_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forward_again, backward = MODULE.replace("forward.0", "forward.1"), MODULE.replace("forward", "backward")
    for folder, size in (("g/step0/proc1", 8), ("t/step0/rank0", 4), ("t/step0/rank1", 4)):
        half, share = (1.0, 1.0) if size == 8 else (2**-0.5, 2.0)  # gradients are those of a rank's own mean loss
        call = forward([of([size, 8], 1.0, 3 * half)], [of([size, 4], 2.0, 4 * half)])
        gradients = [of([size, width], share, share * half) for width in (4, 8)]
        data = {MODULE: call, backward: {"input": gradients[:1], "output": gradients[1:]}}
        parents: dict[str, Any] = {MODULE: None, backward: None}
        if size == 4:
            data = {MODULE: call, forward_again: call, backward: data[backward]}
            parents[forward_again] = backward
        write_dump(tmp_path / folder, data, level="L0", parents=parents)
    found = compared(tmp_path / "t", tmp_path / "g", tmp_path / "out", capsys, ("dp=2",))["step0/whole"]
    assert (found["target_only"], found["golden_only"]) == (0, 0)
    assert found["first"] is None
    assert "target: 2 calls of functions inside backward (checkpointing, communication): left out" in found["notes"]


def test_pieces_that_look_like_repetitions_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first rank's pieces in two layouts may have equal extremes and means, as if one repeated the other."""
    for ranks in (2, 4):
        for rank in range(ranks):
            part = of([2, 16 // ranks, 4], 1.0, (64 / ranks) ** 0.5)
            data = {NORM: forward([part], [part])}
            write_dump(tmp_path / f"{ranks}" / "step0" / f"rank{rank}", data, level="L0", parents={NORM: None})
    layouts = ("cp=2", "cp=4")
    found = compared(tmp_path / "2", tmp_path / "4", tmp_path / "out", capsys, layouts)["step0/whole"]
    assert found["verdicts"] == {"pass": 2, "warning": 0, "error": 0}


@pytest.mark.parametrize(("off", "moved", "named"), [(2, 0.002, False), (8, 0.002, True), (2, 0.2, True)])
def test_a_few_updates_of_adam_may_be_noise(
    off: int, moved: float, named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a part of a gradient is zero in theory, Adam moves its elements by the rate, one way or the other.

    It cannot move them further, and if most of its updates are off, they are off for another reason.
    """
    for side in "tg":
        data = {}
        for at in range(16):
            gradient = of([64], 0.25, 1.0 + 2e-7 * (side == "t"))
            before, after = of([64], 1.0, 4.0), of([64], 1.0, 4.01 + moved * (side == "t" and at < off))
            update = forward([gradient], [after], lr=value(0.001)) | {"parameters": {"before": before}}
            data[f"Optimizer.layers.{at}.bias.AdamW.0.forward"] = update
        write_dump(tmp_path / side, data, level="L0", name="optimizer.json")
    files = [str(tmp_path / side / "optimizer.json") for side in "tg"]
    assert main(["compare", "-tp", files[0], "-gp", files[1], "-o", str(tmp_path / "out"), "--csv", "--json"]) == 0
    assert (json.loads(capsys.readouterr().out)["first"] is not None) == named


@pytest.mark.parametrize("norm", [3.1, 3.0])
def test_ranks_that_clip_by_norms_of_their_own_are_told(
    norm: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = one_process(tmp_path / "g", clipped=True)
    for rank in range(2):
        place = tmp_path / "t" / "step0" / f"rank{rank}"
        write_dump(place, json.loads((golden / "step0" / "proc1" / "dump.json").read_text())["data"], level="mix")
        optimizer(place, of([4, 8], 0.2), clipped=True)
        file = place / "optimizer.json"
        document = json.loads(file.read_text())
        document["data"][TOTAL]["input_args"] = [of([], norm if rank else 3.0)]
        file.write_text(json.dumps(document))
    words = compared(tmp_path / "t", golden, tmp_path / "out", capsys, ("dp=2",))["step0/optimizer"]["first"][
        "sentence"
    ]
    assert ("ranks 0, 1 clip by norms of their own (3, 3.1)" in words) == (norm > 3.0)
    assert "only the" not in words
