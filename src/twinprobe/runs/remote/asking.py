"""Asking a file system of fsspec: with bounded patience, and whatever goes wrong put into words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twinprobe.errors import BadInput
from twinprobe.runs.remote.trouble import NoAnswer, understood

Found = TypeVar("Found")
Options = tuple[tuple[str, Any], ...]

PATIENCE = 15.0  # seconds for the first answer; after it, the library's own limits hold
_SILENCES = 3  # requests in a row without an answer, after which the storage counts as gone


class Asking:
    """A file system that is made when it is first asked something."""

    def __init__(self, protocol: str, options: Options) -> None:
        import fsspec

        self.protocol = protocol
        self._made: Any = None
        # An instance of our own: listings are kept here, and nobody else's instance should lose its cache for that.
        settings = dict(options) | {"skip_instance_cache": True, "use_listings_cache": False}
        self._make: Callable[[], Any] = partial(fsspec.filesystem, protocol, **settings)
        self._lock = threading.Lock()
        self._answered = False
        self._silences = 0

    def ask(self, where: str, call: Callable[[Any], Found]) -> Found:
        """Call a function of the file system; whatever goes wrong is an OSError with words, or BadInput."""
        try:
            found = call(self._filesystem()) if self._answered else self._patiently(call)
        except BadInput:
            raise
        except Exception as error:
            raise self._judged(error, where) from None
        self._answered, self._silences = True, 0
        return found

    def _judged(self, error: Exception, where: str) -> Exception:
        known = understood(error, where)
        if isinstance(known, NoAnswer):
            self._silences += 1
            if not self._answered or self._silences >= _SILENCES:
                self._answered = False
                return BadInput(
                    str(known.strerror), where=where, hint="check the address (endpoint), the network and any proxy"
                )
        elif isinstance(known, OSError):
            self._answered, self._silences = True, 0
        return known

    def _patiently(self, call: Callable[[Any], Found]) -> Found:
        """The first call, in a thread that is left behind if there is no answer in time."""
        results: list[Found] = []
        errors: list[BaseException] = []

        def attempt() -> None:
            try:
                results.append(call(self._filesystem()))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=attempt, name="twinprobe-remote", daemon=True)
        thread.start()
        thread.join(PATIENCE)
        if errors:
            raise errors[0]
        if not results:
            raise TimeoutError(f"nothing was heard for {PATIENCE:.0f} s")
        return results[0]

    def _filesystem(self) -> Any:
        if self._made is None:
            with self._lock:
                if self._made is None:
                    self._made = self._make()
        return self._made
