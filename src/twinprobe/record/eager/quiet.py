"""While the recorder works, its own calls are not recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinprobe.record.eager.faults import Guard

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


class Hearing(Guard):
    """What a gradient's hook works in: quiet and guarded."""

    __slots__ = ("_before", "_recorder")

    def __init__(self, recorder: EagerRecorder, doing: str) -> None:
        self._note = recorder.engine.problems.note
        self._doing = doing
        self._recorder = recorder

    def __enter__(self) -> None:
        recorder = self._recorder
        self._before, recorder.busy = recorder.busy, True

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._recorder.busy = self._before
        return False if error is None else super().__exit__(kind, error, trace)
