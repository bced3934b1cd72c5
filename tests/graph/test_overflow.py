"""Where NaN, infinity or a jump in size begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_drawing import draw, nodes

from support import forward, tensor, value, write_dump
from twinprobe._graph.node_values import overflow_levels
from twinprobe._runs.run import open_run

BAD = {"high": float("inf"), "norm": float("nan")}


def level_of(folder: Path, name: str, entry: dict[str, Any]) -> str | None:
    write_dump(folder, {name: entry})
    (level,) = overflow_levels(open_run(folder))
    return level


@pytest.mark.parametrize(("inputs", "outputs", "expected"), [
    ([tensor()], [tensor()], None),
    ([tensor()], [tensor(**BAD)], "critical"),
    ([tensor(**BAD)], [tensor(low=float("nan"))], "high"),
    ([tensor(norm=1.0)], [tensor(norm=101.0)], "high"),
    ([tensor(norm=1.0)], [tensor(norm=99.0)], None),
    ([tensor(norm=0.0)], [tensor(norm=99.0)], None),
    ([tensor(**BAD)], [tensor()], "medium"),
])  # fmt: skip
def test_levels(tmp_path: Path, inputs: list[Any], outputs: list[Any], expected: str | None) -> None:
    assert level_of(tmp_path, "Torch.add.0.forward", forward(inputs, outputs)) == expected


def test_memory_that_nobody_wrote_raises_no_alarm(tmp_path: Path) -> None:
    assert level_of(tmp_path, "Torch.empty.0.forward", forward([value(3)], [tensor(**BAD)])) is None


def test_a_receive_buffer_is_no_input(tmp_path: Path) -> None:
    entry = forward([tensor(**BAD)], [tensor()])
    assert level_of(tmp_path, "Distributed.all_to_all_single.0.forward", entry) is None


def test_an_infinity_that_the_program_passes_in_is_no_accident(tmp_path: Path) -> None:
    entry = forward([tensor(), value(float("-inf"))], [tensor(low=float("-inf"))])
    assert level_of(tmp_path, "Tensor.masked_fill.0.forward", entry) is None


def test_levels_reach_both_generations_of_files(tmp_path: Path) -> None:
    name = "Module.a.A.forward.0"
    write_dump(tmp_path / "dump", {name: forward([tensor()], [tensor(**BAD)])}, parents={name: None}, stacks={})
    (db,) = draw(tmp_path / "dump", None, tmp_path / "db", overflow_check=True).files
    assert nodes(db)[f"NPU_0_0_{name}"]["overflow_level"] == "critical"
    (plain,) = draw(tmp_path / "dump", None, tmp_path / "plain").files
    assert nodes(plain)[f"NPU_0_0_{name}"]["overflow_level"] is None
    (vis,) = draw(tmp_path / "dump", None, tmp_path / "vis", "vis", overflow_check=True).files
    text = vis.read_text()
    assert '"OverflowCheck":true' in text
    assert '"data":{"overflow_level": "critical"}' in text
