"""While the recorder works, its own calls are not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinprobe.record.eager.recorder import EagerRecorder


class Quiet:
    """A context in which the recorder is at work."""

    __slots__ = ("_before", "_recorder")

    def __init__(self, recorder: EagerRecorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._before, self._recorder.busy = self._recorder.busy, True

    def __exit__(self, *_: Any) -> None:
        self._recorder.busy = self._before
