"""Toy models recorded on real gloo ranks, by a program of their own, each way once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from warm_python import run_warm

Recorder = Callable[..., Path]


def gloo_recorder(program: Path, folders: pytest.TempPathFactory) -> Recorder:
    """Runs the program with a folder, the given words and which rank is faulty (-1: none); gives its first step."""
    pytest.importorskip("torch")
    known: dict[tuple[object, ...], Path] = {}

    def record(*words: object, faulty: int = -1) -> Path:
        key = (*words, faulty)
        if key not in known:
            folder = folders.mktemp(program.stem)
            done = run_warm(program, str(folder), *map(str, key))
            assert done.returncode == 0, done.stderr
            known[key] = folder / "step0"
        return known[key]

    return record
