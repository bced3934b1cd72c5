"""What each model is called with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from twinprobe.errors import BadInput
from twinprobe.live.frameworks.adapter import Adapter, Call
from twinprobe.runs.host_tensor import STORAGE, HostTensor


def two_calls(inputs: Any) -> tuple[Any, Any]:
    """What the first and the second model get: a tuple or list of two is one for each, anything else is for both."""
    if isinstance(inputs, tuple | list) and type(inputs) in (tuple, list):
        if len(inputs) == 2:
            return inputs[0], inputs[1]
        raise BadInput(
            f"inputs is a {type(inputs).__name__} of {len(inputs)}",
            hint="give (inputs of the first model, inputs of the second), or one dict, tensor or array for both",
        )
    return inputs, inputs


def prepare_call(inputs: Any, adapter: Adapter, model: Any) -> Call:
    """A call of a model: a dict is keyword arguments, a tuple positional ones, ``((args...), {kwargs})`` both.

    Arrays become tensors of the model's framework; tensors are copied, so that no run changes the user's.
    """
    if isinstance(inputs, tuple) and len(inputs) == 2 and type(inputs[0]) is tuple and type(inputs[1]) is dict:
        args, kwargs = inputs
    elif isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        args, kwargs = (), dict(inputs)
    elif type(inputs) in (tuple, list):
        args, kwargs = tuple(inputs), {}
    else:
        args, kwargs = (inputs,), {}
    change = _changer(adapter, model)
    return Call(tuple(rebuilt(one, change) for one in args), {key: rebuilt(one, change) for key, one in kwargs.items()})


def _changer(adapter: Adapter, model: Any) -> Callable[[Any], Any]:
    made: dict[int, Any] = {}  # one tensor given twice stays one tensor

    def change(value: Any) -> Any:
        if adapter.is_tensor(value):
            if id(value) not in made:
                made[id(value)] = adapter.copied(value)
            return made[id(value)]
        if isinstance(value, np.ndarray) and value.dtype.name in STORAGE:
            flat = np.ascontiguousarray(value).reshape(-1)
            return adapter.tensor(HostTensor(value.dtype.name, value.shape, flat), model)
        name = type(value).__module__.partition(".")[0]
        if name in ("torch", "paddle", "mindspore") and type(value).__name__ in (
            "Tensor",
            "Parameter",
            "EagerParamBase",
        ):
            return adapter.tensor(_foreign(value, name), model)
        return value

    return change


def _foreign(value: Any, framework: str) -> HostTensor:
    from importlib import import_module

    found: HostTensor = import_module(f"twinprobe.live.frameworks.{framework}").adapter.to_host(value)
    return found


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with every leaf changed; containers of other kinds stay as they are."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(rebuilt(one, change) for one in value)
    if kind is dict:
        return {key: rebuilt(one, change) for key, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*(rebuilt(one, change) for one in value))
    return change(value)
