"""A dozen pairs of the judge's benchmark (bench/judge): planted bugs are found, harmless pairs are left alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
BUGS = (
    "llama.attention_scale_is_too_large",
    "gpt2.projection_bias_not_loaded",
    "bert.norm_weights_not_loaded",
    "resnet.convolution_is_dilated",
    "unet.corners_aligned",
    "lstm.gates_in_another_order",
    "decoder.residual_forgotten",
    "decoder.gradient_scaled_in_a_hook",
)
HARMLESS = (
    "llama.gradient_checkpointing",
    "resnet.foreach_sgd",
    "decoder.loss_from_log_softmax",
    "decoder.statistics_for_a_log",
)


@pytest.mark.parametrize(
    ("bugs", "harmless"),
    [
        pytest.param(BUGS[-2:-1], HARMLESS[2:3], id="one of each"),
        pytest.param((*BUGS[:-2], BUGS[-1]), (*HARMLESS[:2], HARMLESS[3]), id="the others", marks=pytest.mark.slow),
    ],
)
def test_a_dozen_pairs_are_judged_rightly(tmp_path: Path, bugs: tuple[str, ...], harmless: tuple[str, ...]) -> None:
    answers = tmp_path / "answers.json"
    subprocess.run(
        [
            sys.executable, str(BENCH), "judge", "--only", ",".join(bugs + harmless), "--dtype", "float32",
            "--levels", "mix", "--tasks", "statistics", "--keep", str(tmp_path / "runs"), "--json", str(answers),
            "--workers", "1",
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    found = {one["case"]: one for one in json.loads(answers.read_text())}
    assert sorted(found) == sorted(bugs + harmless)
    assert [name for name in bugs if not found[name]["right_call"]] == []
    assert {name: found[name]["claims"] for name in harmless if found[name]["claims"]} == {}
    assert [name for name in found if found[name]["failed"]] == []
