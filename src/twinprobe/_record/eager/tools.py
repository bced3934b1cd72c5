"""The verbs of an eager framework, made from its recorder."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import Debugger, Recording, recording
from twinprobe._record.eager.adapter import FOCUS, Api
from twinprobe._record.eager.recorder import EagerRecorder
from twinprobe._record.tools import SinglePoints, custom_api, whole_module


class EagerPoints(SinglePoints):
    """Single-point saves by an eager recorder."""

    @contextmanager
    def working(self, doing: str) -> Iterator[None]:
        with self._recorder.quiet(), self._recorder.guard(doing):
            yield

    def is_tensor(self, value: Any) -> bool:
        return bool(self._recorder.adapter.is_tensor(value))

    def gets_gradient(self, tensor: Any) -> bool:
        adapter = self._recorder.adapter
        return bool(adapter.grad_enabled() and adapter.needs_gradient(tensor))


class EagerDebugger(Debugger, ABC):
    """The debugger of an eager framework."""

    recorder: EagerRecorder

    @staticmethod
    def make_points(recorder: Any) -> SinglePoints:
        return EagerPoints(recorder)


class Verbs:
    """The functions beside the debugger. All of them but ``record`` act on the one debugger of this process."""

    def __init__(self, debugger: type[EagerDebugger], make: Callable[[RecordConfig], EagerRecorder]) -> None:
        self._debugger = debugger
        self._make = make

    def record(
        self, model: Any, dump_path: str | Path, *, level: str = "L1", task: str = "statistics", **more: Any
    ) -> AbstractContextManager[Recording]:
        """Record everything inside the block. All keys of config.json may be given; files are complete when it ends."""
        return recording(self._make, model, dump_path, level=level, task=task, **more)

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Save one value under a name, level ``debug``."""
        self._debugger.current().save(variable, name, save_backward)

    def module_dump(self, module: Any, dump_name: str) -> None:
        """Record this module as a whole, under this name, and nothing inside it, until module_dump_end()."""
        recorder = self._debugger.current().recorder
        kind = recorder.adapter.module_class
        whole_module(recorder, module, dump_name, kind, f"{recorder.adapter.name}.nn.{kind.__name__}")

    def module_dump_end(self) -> None:
        """End the recording that module_dump() started."""
        self._debugger.current().recorder.modules.end_whole()

    def register_custom_api(self, module: Any, api_name: str, api_prefix: str | None = None) -> None:
        """Record a function that the framework does not know, as ``<api_prefix>.<api_name>``."""
        custom_api(module, api_name, api_prefix, self._custom)

    def _custom(self, prefix: str, name: str) -> Any:
        api = Api(f"{prefix}.{name}.", FOCUS, False)

        def record(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType) -> Any:
            debugger = self._debugger._current
            recorder = debugger.recorder if debugger is not None else None
            if recorder is None or not recorder.patches.attached or recorder.busy or recorder.in_api:
                return original(*args, **kwargs)
            if not recorder.listening():
                return original(*args, **kwargs)
            return recorder.apis.record(api, original, args, kwargs, frame)

        return record
