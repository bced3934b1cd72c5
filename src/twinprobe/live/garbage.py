"""The garbage collector, out of the way for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """A step makes thousands of small objects and keeps them: searching them for garbage takes longer than the models.

    Afterwards the collector goes on as before; what the step left behind is young to it and is looked at first.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
