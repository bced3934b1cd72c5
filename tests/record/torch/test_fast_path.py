"""Modules that leave PyTorch's fast path because they are watched: warned of by name, marked in the dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from twinprobe.torch import record

ENCODER = "Module.encoder.layers.1.TransformerEncoderLayer.forward.0"


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(x)


def run(path: Path, *, train: bool, level: str = "mix") -> torch.Tensor:
    torch.manual_seed(0)
    model = Reader().train(train)
    with record(model, path, level=level), torch.set_grad_enabled(train):
        return model(torch.ones(2, 3, 8))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_it_is_said_once_and_marked_in_the_dump(
    tmp_path: Path, dump_of: Any, caplog: pytest.LogCaptureFixture, level: str
) -> None:
    run(tmp_path / "dump", train=False, level=level)
    (said,) = [record.getMessage() for record in caplog.records if "fast path" in record.getMessage()]
    assert "encoder.layers.1.TransformerEncoderLayer" in said
    assert "fast path" in dump_of(tmp_path / "dump").data[ENCODER]["remark"]["value"]


def test_without_module_hooks_it_is_said_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "dump", train=False, level="L1")
    assert "encoder.layers.0.TransformerEncoderLayer" in caplog.text


def test_training_has_no_fast_path_to_leave(tmp_path: Path, dump_of: Any, caplog: pytest.LogCaptureFixture) -> None:
    run(tmp_path / "dump", train=True)
    assert "fast path" not in caplog.text
    assert "remark" not in dump_of(tmp_path / "dump").data[ENCODER]


def test_the_difference_is_in_the_last_digits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Reader().eval()
    with torch.no_grad():
        plain = model(torch.ones(2, 3, 8))
    watched = run(tmp_path / "dump", train=False)
    assert torch.allclose(plain, watched, atol=1e-5)


def test_a_marked_dump_can_be_compared(tmp_path: Path) -> None:
    from twinprobe._compare.one import compare_paths

    for side in "ab":
        run(tmp_path / side, train=False)
    (first,), (second,) = ((tmp_path / side).rglob("dump.json") for side in "ab")
    assert compare_paths(first, second).summary.verdicts["error"] == 0
