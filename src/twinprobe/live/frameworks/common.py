"""What all adapters do alike: recording in memory, calls of one class of modules, arrays of numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe.live.memory import MemoryEngine
from twinprobe.live.recorder_shelf import RecorderShelf
from twinprobe.record.config import RecordConfig
from twinprobe.record.eager.calls import ModuleInfo
from twinprobe.runs.host_tensor import HostTensor


def memory_config(*, backward: bool, apis: bool) -> RecordConfig:
    """Whole tensors of everything, kept in memory and not measured."""
    modes = frozenset({"all"} if backward else {"forward"})
    return RecordConfig(Path(), task="tensor", level="mix" if apis else "L0", data_mode=modes, summary_mode="none")


@contextmanager
def recorded_in_memory(
    shelf: RecorderShelf, config: RecordConfig, model: Any, is_whole: Callable[[Any], bool]
) -> Iterator[MemoryEngine]:
    """Record a model with an eager recorder. What a framework's own layers (``is_whole``) call inside is left out: it
    says nothing that their output does not."""
    with shelf.lend(config) as recorder:
        engine = recorder.engine
        assert isinstance(engine, MemoryEngine)
        container = "Cell" if recorder.name == "mindspore" else "Module"
        recorder.modules.infos[id(model)] = ModuleInfo(model, f"{container}.{type(model).__name__}.")
        recorder.start(model)
        for info in recorder.modules.infos.values():
            info.closed = is_whole(info.module)
        try:
            yield engine
        finally:
            recorder.stop()


@contextmanager
def calls_around(kind: Any, modules: Iterator[tuple[str, Any]], before: Any, after: Any) -> Iterator[None]:
    """Run functions before and after every call of these modules, all of them of this class."""
    original = kind.__call__
    inside = {id(module) for _, module in modules}

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        if id(module) not in inside:
            return original(module, *args, **kwargs)
        args, kwargs = before(module, args, kwargs) or (args, kwargs)
        output = original(module, *args, **kwargs)
        other = after(module, output)
        return output if other is None else other

    kind.__call__ = call
    try:
        yield
    finally:
        kind.__call__ = original


def array_on_host(value: np.ndarray) -> HostTensor:
    """An array as the kernels take it."""
    name = _names.get(value.dtype)
    if name is None:
        name = _names[value.dtype] = value.dtype.name
    flat = value if value.flags.c_contiguous else np.ascontiguousarray(value)
    return HostTensor(name, value.shape, flat.reshape(-1))


_names: dict[np.dtype[Any], str] = {}  # numpy makes a name anew each time it is asked


class Modes:
    """Training and evaluation mode, which all frameworks keep in the same attribute."""

    def training(self, module: Any) -> bool:
        """Whether a module is in training mode."""
        return bool(module.training)

    def set_training(self, module: Any, training: bool) -> None:
        """Change the mode of this module alone."""
        module.training = training
