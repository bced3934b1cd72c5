"""Functions that write to a tensor without being recorded: what was measured before them counts no more."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from twinprobe.record.eager.adapter import Site
from twinprobe.record.eager.patches import Patches


class WriteWatch:
    """Replaces the functions that write by ones that say so before and afterwards."""

    def __init__(self, settle: Callable[[], None], forget: Callable[[], None], package: str) -> None:
        self._settle = settle
        self._forget = forget
        self._patches = Patches(self._wrap, package, (package,))

    def attached(self, sites: Iterable[Site]) -> WriteWatch:
        """Watch these; remove() ends it."""
        self._patches.attach(sites)
        return self

    def remove(self) -> None:
        """Put the originals back."""
        self._patches.detach()

    def aside(self) -> None:
        """The originals, for a while."""
        self._patches.aside()

    def back(self) -> None:
        """End of aside()."""
        self._patches.back()

    def _wrap(self, site: Site) -> Any:
        original, settle, forget = site.original, self._settle, self._forget

        @functools.wraps(original)
        def writing(*args: Any, **kwargs: Any) -> Any:
            settle()
            try:
                return original(*args, **kwargs)
            finally:
                forget()

        return writing
