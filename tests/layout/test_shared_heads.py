"""Fewer heads of keys and values than tensor parallel ranks: several ranks in a row hold the same head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_wrong_ranks import record

from twinprobe._cli import main

KEYS, UPDATE = "Module.attention.k.Linear", "Optimizer.attention.k.weight.SGD.0.forward"
HEADS, WIDTH = 2, 8


def arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The weight of two heads, what it is given, and the gradient of both heads from each of the four queries."""
    generator = np.random.default_rng(11)
    shapes = ((HEADS * WIDTH, WIDTH), (4, WIDTH), (4, WIDTH, WIDTH), (4, 4, WIDTH))
    return tuple(generator.standard_normal(shape, dtype=np.float32) for shape in shapes)  # type: ignore[return-value]


def one_process(folder: Path) -> None:
    weight, words, parts, _ = arrays()
    gradient = np.concatenate([parts[0] + parts[1], parts[2] + parts[3]])
    calls = {f"{KEYS}.forward.0": {"parameters.weight": weight, "output.0": words @ weight.T},
             f"{KEYS}.parameters_grad.0": {"gradient.weight": gradient}}  # fmt: skip
    record(folder / "step0" / "proc1", calls)
    record(folder / "step0" / "proc1", {UPDATE: update(weight, gradient)}, name="optimizer")


def update(weight: np.ndarray, gradient: np.ndarray) -> dict[str, Any]:
    return {"input.0": gradient, "parameters.before": weight, "output.0": weight - np.float32(0.1) * gradient}


def ranks_of(folder: Path, ranks: int, *, heads: tuple[int, ...] = (), reduced: bool = True) -> None:
    """Each rank has the head that its queries need (or one of ``heads``), and the gradient that its queries give."""
    weight, words, parts, _ = arrays()
    each = 4 // ranks
    share = ranks // HEADS
    for rank in range(ranks):
        head = heads[rank] if heads else rank // share
        own = weight[head * WIDTH : (head + 1) * WIDTH]
        gradient = parts[rank * each : (rank + 1) * each].sum(axis=0)
        whole = parts[rank // share * 2 : rank // share * 2 + 2].sum(axis=0)
        place = folder / "step0" / f"rank{rank}"
        calls = {f"{KEYS}.forward.0": {"parameters.weight": own, "output.0": words @ own.T},
                 f"{KEYS}.parameters_grad.0": {"gradient.weight": gradient}}  # fmt: skip
        record(place, calls)
        record(place, {UPDATE: update(own, whole if reduced else gradient)}, name="optimizer")


def compared(folder: Path, capsys: pytest.CaptureFixture[str], *layouts: str) -> dict[str, dict[str, Any]]:
    words = ["compare", "-tp", str(folder / "t"), "-gp", str(folder / "g"), "-o", str(folder / "out"), "--json"]
    assert main([*words, "--layout", *layouts]) == 0
    return {one["rank"]: one for one in json.loads(capsys.readouterr().out)["ranks"]}


def test_ranks_that_share_a_head_have_copies_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks_of(tmp_path / "t", 4)
    one_process(tmp_path / "g")
    for result in compared(tmp_path, capsys, "tp=4").values():
        assert result["first"] is None
        assert (result["verdicts"]["warning"], result["verdicts"]["error"]) == (0, 0)


def test_two_ranks_against_four_that_share_heads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks_of(tmp_path / "t", 2)
    ranks_of(tmp_path / "g", 4)
    for result in compared(tmp_path, capsys, "tp=2", "tp=4").values():
        assert result["first"] is None
        assert result["verdicts"]["error"] == 0


def test_gradients_of_a_shared_head_that_nothing_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ranks_of(tmp_path / "t", 4, reduced=False)
    one_process(tmp_path / "g")
    found = compared(tmp_path, capsys, "tp=4")
    assert found["step0/whole"]["first"] is None
    first = found["step0/optimizer"]["first"]
    assert first["op"] == UPDATE
    assert (
        "golden's is the sum of what ranks 0, 1 and of ranks 2, 3 hold, but nothing adds them up" in first["sentence"]
    )


@pytest.mark.parametrize(("heads", "words"), [
    ((0, 1, 1, 1), "rank 1's replica differs from the others"),
    ((0, 1, 0, 1), "the copies of ranks 0, 1 and of ranks 2, 3 differ"),  # statistics do not tell which of them
])  # fmt: skip
def test_a_rank_with_the_head_of_others(
    heads: tuple[int, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks_of(tmp_path / "t", 4, heads=heads)
    one_process(tmp_path / "g")
    first = compared(tmp_path, capsys, "tp=4")["step0/whole"]["first"]
    assert first["module"] == "attention.k"
    assert words in first["sentence"]
