"""The type of a value in a graph file is the one that was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graph_drawing import draw, nodes

from support import forward, tensor, value, write_dump

NAME = "Torch.zeros.0.forward"
RECORDED = {
    "0": tensor(type="torch.nn.Parameter"),
    "1": value(3),
    "2": value("torch.float32", "torch.dtype"),
    "3": {"type": "torch.memory_format", "format": "torch.contiguous_format"},
}
FOUND = {"0": "torch.nn.Parameter", "1": "int", "2": "torch.dtype", "3": "torch.memory_format"}


@pytest.mark.parametrize("form", ["db", "vis"])
def test_values_are_shown_with_their_recorded_type(tmp_path: Path, form: str) -> None:
    data = {NAME: forward(list(RECORDED.values()), [tensor()])}
    write_dump(tmp_path / "dump", data, level="mix", parents={NAME: None}, stacks={})
    (file,) = draw(tmp_path / "dump", None, tmp_path / "out", form).files
    if form == "db":
        shown = nodes(file)[f"NPU_0_0_{NAME}"]["input_data"]
    else:
        shown = json.loads(file.read_text())["node"][NAME]["input_data"]
    assert {key.removeprefix(f"{NAME}.input."): leaf["type"] for key, leaf in shown.items()} == FOUND
