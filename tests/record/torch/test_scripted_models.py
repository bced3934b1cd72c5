"""TorchScript modules refuse hooks by their own methods; they are recorded all the same, from outside."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from twinprobe import auto_diff
from twinprobe.torch import record


@pytest.fixture(autouse=True)
def _no_farewell() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is on its way out
        warnings.simplefilter("ignore", FutureWarning)
        yield


def scripted(kind: str) -> nn.Module:
    torch.manual_seed(1)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled: Any = torch.jit.script(inner) if kind == "scripted" else torch.jit.trace(inner, torch.ones(2, 4))
    return nn.Sequential(nn.Linear(4, 4), compiled, nn.Linear(4, 3))


@pytest.mark.parametrize("kind", ["scripted", "traced"])
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_what_a_scripted_module_took_and_gave_is_recorded(kind: str, level: str, tmp_path: Path, dump_of: Any) -> None:
    model, given = scripted(kind), torch.randn(2, 4)
    expected = model(given)
    with record(model, tmp_path / "dump", level=level, task="tensor"):
        found = model(given)
        found.sum().backward()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    names = [name for name in dump_of(tmp_path / "dump").data if name.startswith("Module.1.")]
    assert [name.rpartition(".")[0].rpartition(".")[2] for name in names if name.endswith("ward.0")] == [
        "forward",
        "backward",
    ]
    entry = dump_of(tmp_path / "dump").data[names[0]]
    assert entry["input_args"][0]["shape"] == entry["output"][0]["shape"] == [2, 4]
    model(given)  # nothing is left on it
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("kind", ["scripted", "traced"])
def test_auto_diff_finds_the_scripted_module_that_differs(kind: str) -> None:
    base, given = scripted(kind), torch.randn(2, 4)
    raw = copy.deepcopy(base)
    assert auto_diff(base, raw, (given, given), auto_weights=False)
    with torch.no_grad():
        next(iter(raw[1].parameters())).mul_(1.5)
    result = auto_diff(base, raw, (given, given), auto_weights=False)
    assert not result
    assert result.first is not None
    assert result.first.raw.startswith("Module.1.")
