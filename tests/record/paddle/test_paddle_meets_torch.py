"""A fresh recording against the kept one of PyTorch: equal weights, other names, a layer mapping between them."""

from __future__ import annotations

import sys
from pathlib import Path

from cross import DATA, assert_fault_found, assert_forward_agrees, compared

sys.path.insert(0, str(DATA))


def test_every_forward_pair_agrees_within_rounding(tmp_path: Path) -> None:
    from remake import record

    record("paddle", tmp_path / "run")
    comparison = compared(tmp_path / "run", DATA / "torch", "paddle_torch.yaml")
    assert_forward_agrees(comparison, calls=21, parts=("input", "output", "parameters"))


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    from remake import record

    record("paddle", tmp_path / "run", fault=True)
    comparison = compared(tmp_path / "run", DATA / "torch", "paddle_torch.yaml")
    assert_fault_found(comparison, "Module.blocks.1.ffn.down.")
