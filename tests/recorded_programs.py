"""A program recorded twice, once with a change, and both recordings compared."""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn

import twinprobe

WIDTH = 32


def compared(
    folder: Path, program: Callable[..., None], model: Callable[[], nn.Module], level: str = "mix", step: int = 0
) -> Any:
    """Record a program with a change (the target) and without, from the same seed, and compare one step.

    The program takes the model, whether it is to be changed and, if it wants to, the recording.
    """
    dumps = []
    for changed in (True, False):
        torch.manual_seed(0)
        with twinprobe.record(made := model(), folder / str(changed), level=level) as recording:
            torch.manual_seed(1)
            program(*(made, changed, recording)[: len(signature(program).parameters)])
        dumps.append(next((folder / str(changed)).rglob(f"step{step}/*/dump.json")))
    return twinprobe.compare(*dumps)


def said(result: Any) -> str:
    """The first divergence in words."""
    assert result.first is not None
    return f"{result.first.op}: {result.first.sentence}"
