"""Metrics that a user brings: functions in a file, run in a process of their own so that none of them can hang us."""

from __future__ import annotations

import importlib.util
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT32, numbers
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

Answer = tuple[str, str]
_MOST_SILENCES = 3  # a function that hangs costs its whole time limit at every row


class Algorithms:
    """The user's functions. Each takes (golden, my) and returns a value and a message.

    They get float32 tensors of torch if their file imports torch, else arrays of numpy.
    """

    def __init__(self, specs: Sequence[str], *, timeout: float = 60.0) -> None:
        self._specs = tuple(_checked(spec) for spec in specs)
        names = [name for _, name in self._specs]
        self.names = tuple(
            name if names.count(name) == 1 else f"{Path(path).stem}.{name}" for path, name in self._specs
        )
        self._timeout = timeout
        self._process: Any = None
        self._pipe: Connection | None = None
        self._silences = 0

    def __call__(self, golden: HostTensor, target: HostTensor) -> tuple[Answer, ...]:
        """The answer of every function; a failure is its message."""
        if self._silences >= _MOST_SILENCES:
            return tuple(("", f"{name} was not called again: it failed to answer three times") for name in self.names)
        if self._pipe is None:
            self.start()
        assert self._pipe is not None
        try:
            self._pipe.send((_array(golden), _array(target)))
            if self._pipe.poll(self._timeout):
                return cast("tuple[Answer, ...]", self._pipe.recv())
            trouble = f"no answer within {self._timeout:g} s"
        except (OSError, EOFError):
            trouble = "the process that ran it died"
        self._silences += 1
        self.close()
        return tuple(("", f"{name}: {trouble}") for name in self.names)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._pipe is not None:
            self._pipe.close()
        self._process = self._pipe = None

    def start(self) -> None:
        """Load the files and try every function on a single one."""
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._specs), daemon=True)
        self._process.start()
        other.close()
        patience = max(self._timeout, 60.0)  # a short limit is meant for the answers, not for importing torch
        try:
            complaint = self._pipe.recv() if self._pipe.poll(patience) else f"not loaded within {patience:g} s"
        except (OSError, EOFError):
            complaint = "the process that loaded it died"
        if complaint:
            self.close()
            raise BadInput(
                complaint, where="--custom-algorithms", hint="FILE.py:FUNCTION, f(golden, my) -> (value, text)"
            )


def _checked(spec: str) -> tuple[str, str]:
    path, colon, name = spec.rpartition(":")
    if not colon or not path.endswith(".py") or not name.isidentifier():
        raise BadInput(f"{spec!r} is not FILE.py:FUNCTION", where="--custom-algorithms")
    if not Path(path).is_file():
        raise BadInput("does not exist", where=path)
    return path, name


def _array(tensor: HostTensor) -> NDArray[np.float32]:
    return numbers(tensor.dtype, tensor.data, FLOAT32)


def _serve(pipe: Connection, specs: tuple[tuple[str, str], ...]) -> None:
    try:
        functions = [_loaded(path, name) for path, name in specs]
        for function, (path, name) in zip(functions, specs, strict=True):
            _asked(function, np.ones(1, np.float32), np.ones(1, np.float32), f"{path}:{name}")
    except BaseException as error:  # whatever the file does must reach the user as a message
        pipe.send(str(error) or type(error).__name__)
        return
    pipe.send("")
    while True:
        try:
            golden, target = pipe.recv()
        except EOFError:
            return
        answers = []
        for function, (_, name) in zip(functions, specs, strict=True):
            try:
                answers.append(_asked(function, golden, target, name))
            except Exception as error:
                answers.append(("", f"{name}: {type(error).__name__}: {error}"))
        pipe.send(tuple(answers))


def _loaded(path: str, name: str) -> Callable[[Any, Any], Any]:
    spec = importlib.util.spec_from_file_location(f"twinprobe_custom_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    function: Callable[[Any, Any], Any] | None = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{path} has no function {name}")
    return function


def _asked(function: Callable[[Any, Any], Any], golden: Any, target: Any, name: str) -> Answer:
    torch = sys.modules.get("torch")
    if torch is not None:
        golden, target = torch.from_numpy(golden), torch.from_numpy(target)
    answer = function(golden, target)
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], str):
        raise ValueError(f"{name} must return a value and a text, not {answer!r}")
    value = answer[0]
    if isinstance(value, bool) or not isinstance(value, int | float | str | np.number):
        raise ValueError(f"{name} must return a number or a text, not {type(value).__name__}")
    return str(value), answer[1]
