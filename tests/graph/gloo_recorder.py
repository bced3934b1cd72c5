"""Toy models recorded on real gloo ranks, by a program of their own, each way once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Recorder = Callable[..., Path]


def gloo_recorder(program: Path, folders: pytest.TempPathFactory) -> Recorder:
    """Runs the program with a folder, the given words and which rank is faulty (-1: none); gives its first step."""
    pytest.importorskip("torch")
    known: dict[tuple[object, ...], Path] = {}

    def record(*words: object, faulty: int = -1) -> Path:
        key = (*words, faulty)
        if key not in known:
            folder = folders.mktemp(program.stem)
            command = [sys.executable, str(program), str(folder), *map(str, key)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            assert done.returncode == 0, done.stderr
            known[key] = folder / "step0"
        return known[key]

    return record
