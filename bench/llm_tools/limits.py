"""What a machine takes for the same files at the least: listing, opening, reading, closing, and numpy.sum over them."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice, repeat
from multiprocessing import get_context
from pathlib import Path

import numpy as np

_ROOM = 64 << 20
_IN_MEMORY = 1024  # files


@dataclass(frozen=True)
class Taken:
    """Seconds by the clock, and of the processors."""

    seconds: float
    processor: float


@dataclass(frozen=True)
class Limits:
    """List, open, read and close every file; the same with numpy.sum; numpy.sum of bytes in memory, bytes a second."""

    read: Taken
    summed: Taken
    sum_rate: float


def limits(roots: list[Path], workers: int) -> Limits:
    """Measure the files under these folders with so many processes, the best of two rounds."""
    tokens = [str(folder) for root in roots for folder in root.rglob("*") if _is_token(folder)]
    read, summed = (min((_taken(tokens, workers, adds) for _ in range(2)), key=_processor) for adds in (False, True))
    return Limits(read, summed, _sum_rate(tokens[0]))


def _is_token(folder: Path) -> bool:
    return folder.name.isdecimal() and folder.parent.name != "model" and folder.is_dir()


def _processor(taken: Taken) -> float:
    return taken.processor


def _taken(tokens: list[str], workers: int, adds: bool) -> Taken:
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
        list(pool.map(_read_token, tokens, repeat(adds)))
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Taken(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


_room = np.empty(_ROOM, np.uint8)


def _read_token(folder: str, adds: bool) -> None:
    view = _room.data
    for path in _files(folder):
        handle = os.open(path, os.O_RDONLY)
        length = os.readv(handle, (view,))
        os.close(handle)
        if adds:
            _sum(_room[:length])


def _sum(octets: np.ndarray) -> None:
    """The bytes as float32, whatever they are."""
    with np.errstate(all="ignore"):
        np.sum(octets[: octets.size // 4 * 4].view(np.float32))


def _files(folder: str) -> Iterator[str]:
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry.path


def _sum_rate(token: str) -> float:
    """All bytes of a token in one piece, as large as the cache will not hold where there are enough."""
    held = np.concatenate([np.fromfile(path, np.uint8) for path in islice(_files(token), _IN_MEMORY)])
    rounds = []
    for _ in range(5):
        began = time.perf_counter()
        _sum(held)
        rounds.append(time.perf_counter() - began)
    return held.size / min(rounds)
