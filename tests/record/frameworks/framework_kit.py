"""What the tests shared by MindSpore and Paddle must know of a framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dump_reading import Dump
from twinprobe._record.config import load_config

Observe = Callable[[Any], Any]


class Kit(ABC):
    """One framework. ``api`` is its facade, ``networks`` the module with the networks that its tests train."""

    api: Any
    networks: Any
    transformer: Any
    container: str
    base: type
    method: str
    make_recorder: Any
    script: str  # trains three steps; its places are path, task, before and inside
    seed_script: str
    models: dict[str, Callable[[], Any]]
    writes: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]  # what writes, and what numpy makes of it

    @abstractmethod
    def tensor(self, values: Any) -> Any: ...

    @abstractmethod
    def array(self, tensor: Any) -> np.ndarray: ...

    @abstractmethod
    def bfloat16(self, values: Any) -> tuple[Any, Callable[[], Any], str]:
        """A tensor, a call that takes it and is recorded, and the name of that call."""

    @abstractmethod
    def differentiate(self, function: Callable[..., Any], *inputs: Any) -> None:
        """One backward pass through ``function``, to its inputs and to every parameter that it meets."""

    @abstractmethod
    def trained(self, make: Callable[[], Any], observe: Observe, **options: Any) -> list[np.ndarray]:
        """Two training steps; everything that could differ, as arrays."""

    @abstractmethod
    def gradients(self, transformer: Any) -> list[np.ndarray]:
        """Of all parameters, after one step of the small transformer."""

    @abstractmethod
    def functions(self) -> dict[str, Any]:
        """Everything that the recorder could have replaced."""

    @abstractmethod
    def hooks(self, model: Any) -> int:
        """How many hooks are left on the model."""

    @abstractmethod
    def optimizer_functions(self) -> dict[Any, Any]:
        """What the recorder stands before to see optimizers and clipping."""

    def module(self, name: str, call: Callable[..., Any], **parts: Any) -> Any:
        """A small module: its call, and what it holds."""
        base, method = self.base, self.method

        def begin(module: Any) -> None:
            base.__init__(module)
            for part, value in parts.items():
                setattr(module, part, value)

        return type(name, (base,), {"__init__": begin, method: call})()

    def recorded(self, path: Path, model: Any, **options: Any) -> Dump:
        """The dump of one pass forward and backward."""
        with self.api.record(model, path, **options):
            self.differentiate(lambda x: model(x).sum(), self.networks.batch())
        return Dump(path)

    def measured(self, path: Path, model: Any, *inputs: Any, **options: Any) -> tuple[Dump, int]:
        """The dump of one call, and how many tensors were measured for it."""
        recorder = self.make_recorder(load_config(dump_path=path, task="statistics", **options))
        recorder.start(model)
        model(*inputs)
        recorder.stop()
        recorder.engine.close()
        return Dump(path), recorder.rows._measured


def saved(dump: Dump, name: str, part: str, at: int = 0) -> np.ndarray:
    """A tensor file."""
    return np.load(dump.folder / "dump_tensor_data" / dump.data[name][part][at]["data_name"])


def assert_same_bits(first: list[np.ndarray], second: list[np.ndarray]) -> None:
    assert len(first) == len(second)
    for at, (one, other) in enumerate(zip(first, second, strict=True)):
        assert one.dtype == other.dtype
        assert one.tobytes() == other.tobytes(), at
