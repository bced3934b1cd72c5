"""Recorders, kept between runs: finding and wrapping a framework's thousands of functions takes
longer than running a small model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from twinprobe.live.memory import MemoryEngine
from twinprobe.record.config import RecordConfig


class RecorderShelf:
    """Lends recorders. One that is lent is not there for others; one whose framework has changed is not used again."""

    def __init__(self, make: Callable[[RecordConfig, Any], Any]) -> None:
        self._make = make
        self._free: dict[tuple[str, frozenset[str]], tuple[Any, list[_Snapshot]]] = {}

    @contextmanager
    def lend(self, config: RecordConfig) -> Iterator[Any]:
        """A recorder with an empty engine."""
        key = config.level, frozenset(config.data_mode)
        recorder, seen = self._free.pop(key, (None, []))
        fresh = recorder is None or not all(one.still_holds() for one in seen)
        if fresh:
            recorder = self._make(config, MemoryEngine)
        yield recorder  # one that met an exception is not kept
        if fresh:  # not before: a recorder looks for functions only when some of them are replaced already
            seen = [_Snapshot(owner) for owner in _owners(recorder)]
        recorder.engine = MemoryEngine(config, recorder)
        self._free[key] = recorder, seen


def _owners(recorder: Any) -> list[Any]:
    """The modules and classes in which the recorder replaces functions."""
    adapter = getattr(recorder, "adapter", None)  # PyTorch's recorder replaces none
    found = {id(site.owner): site.owner for site in adapter.sites()} if adapter is not None else {}
    return list(found.values())


class _Snapshot:
    """What a module or class held; somebody may replace a function of it between two runs."""

    def __init__(self, owner: Any) -> None:
        self._owner = owner
        self._held = dict(vars(owner))

    def still_holds(self) -> bool:
        """Whether nothing has been replaced since."""
        now = vars(self._owner)
        return len(now) == len(self._held) and all(map(is_, now.values(), self._held.values()))
