"""What an optimizer sees and does, once for each of its steps: written to optimizer.json beside dump.json.

Gradients are noted when the step begins, after every exchange between ranks and after clipping; parameters before and
after it. Nothing is changed: all of it is read, by hooks that torch offers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from twinprobe._record.entries import Entry
from twinprobe._record.recorder import OptimizerCycle
from twinprobe._record.torch.placements import FLAT, stretches_of
from twinprobe._runs.names import TOTAL_NORM

_PLAIN = (bool, int, float, str, type(None))


class Cycle(OptimizerCycle):
    """Of PyTorch's optimizers."""

    def is_optimizer(self, candidate: Any) -> bool:
        # Wrappers of trainers, whose class has a step of its own, are none.
        kind = type(candidate)
        return issubclass(kind, torch.optim.Optimizer) and getattr(kind.step, "hooked", False)


def settings_in(group: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a group of parameters; parts of one by their place: betas.0, betas.1."""
    for key, value in group.items():
        if isinstance(value, list | tuple):
            parts = enumerate(value) if key not in ("params", "param_names") else ()
            yield from ((f"{key}.{place}", part) for place, part in parts)
        elif key not in ("params", "param_names"):
            yield key, value


class Updates:
    """What the optimizers of a recording see and do. Made when the first of them steps or clips."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._open: dict[int, list[tuple[Entry, Any]]] = {}
        self._before_clipping: Any = None

    def note_norm(self, norm: Any) -> None:
        """Note what clipping has found before it changes the gradients."""
        if isinstance(norm, torch.Tensor):
            self._before_clipping = self._recorder.registry.note(norm.detach().clone())
        elif isinstance(norm, int | float):
            self._before_clipping = float(norm)

    def note_gradients(self, optimizer: Any, models: list[torch.nn.Module]) -> None:
        """A step begins: note gradients, settings and parameters, by the names that they have in these models."""
        recorder = self._recorder
        names = _names(models)
        kind = type(optimizer).__name__
        if self._open and self._inside_another(optimizer, kind):
            return
        number = recorder.engine.count(f"Optimizer.{kind}")
        noted = []
        gradients = []
        for at, group in enumerate(optimizer.param_groups):
            settings = {key: _setting(value) for key, value in group.items() if key not in ("params", "param_names")}
            given = group.get("param_names") or ()
            for place, parameter in enumerate(group["params"]):
                gradient = parameter.grad
                if gradient is None:
                    continue
                own = given[place] if place < len(given) else f"group{at}.{place}"
                name = names.get(id(parameter), own)
                values = [(name, gradient, parameter)]
                if stretches := stretches_of(parameter):  # each by the name that it has in a run without FSDP
                    head, whole = name.removesuffix(FLAT), parameter.detach()
                    values = [(head + part, gradient[at], whole[at]) for part, at in stretches]
                for called, slope, value in values:
                    gradients.append(recorder.registry.note(slope))
                    parts = {
                        "input_args": [gradients[-1]],
                        "input_kwargs": settings | _steps_taken(optimizer.state.get(parameter)),
                        "parameters": {"before": recorder.registry.note(value)},
                    }
                    noted.append((Entry(f"Optimizer.{called}.{kind}.{number}.forward", parts), value))
        self._open[id(optimizer)] = noted
        before, self._before_clipping = self._before_clipping, None
        total = Entry(f"{TOTAL_NORM}{kind}.{number}.forward", {"input_args": [before], "output": gradients})
        noted.append((total, None))  # last, so that a parameter is the first to differ

    def _inside_another(self, optimizer: Any, kind: str) -> bool:
        """Whether another optimizer makes this one step for a part of its parameters, as ZeroRedundancyOptimizer does.

        What the outer one has noted of all parameters gets the name of the one that does the work, and the steps that
        it has taken: the state is the inner one's. Of parameters that other ranks update there is none here.
        """
        outer = next(reversed(self._open.values()))
        known = {id(parameter) for _, parameter in outer}
        if not all(id(one) in known for group in optimizer.param_groups for one in group["params"]):
            return False
        number = outer[-1][0].name.rsplit(".", 2)[1]
        own = {id(one): one for group in optimizer.param_groups for one in group["params"]}
        for at, (entry, parameter) in enumerate(outer):
            head = entry.name.rsplit(".", 3)[0]
            if parameter is not None:
                entry.parts["input_kwargs"].pop("step", None)
                if id(parameter) in own:
                    entry.parts["input_kwargs"] |= _steps_taken(optimizer.state.get(parameter))
            outer[at] = (Entry(f"{head}.{kind}.{number}.forward", entry.parts), parameter)
        return True

    def note_parameters(self, optimizer: Any) -> None:
        """The step is over: note the parameters, and hand over what was noted."""
        recorder, registry = self._recorder, self._recorder.registry
        waits, registry.may_wait = registry.may_wait, True  # nobody writes to them here: one launch for many
        try:
            for entry, parameter in self._open.pop(id(optimizer), ()):
                if parameter is not None:
                    entry.parts["output"] = [registry.note(parameter)]
                recorder.engine.note_update(entry)
        finally:
            registry.may_wait = waits
            registry.forget()


def _names(models: list[torch.nn.Module]) -> dict[int, str]:
    """The names of all parameters, by their ids. Where models share names (stages of a pipeline on one rank), the
    position of the model comes first, as in the names of its modules."""
    own = [dict(model.named_parameters(remove_duplicate=False)) for model in models]
    several = len({name for names in own for name in names}) < sum(map(len, own))
    return {
        id(one): f"{position}.{name}" if several else name
        for position, names in enumerate(own)
        for name, one in names.items()
    }


def _steps_taken(state: Any) -> dict[str, Any]:
    """How many steps the state of a parameter has seen, as far as it tells: one that was reset begins again."""
    steps = _setting(state.get("step")) if state else 0.0
    return {} if steps is None else {"step": steps}


def _setting(value: Any) -> Any:
    """A setting of a parameter group as it is written: plain values, and tensors of one number."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    if isinstance(value, list | tuple):
        return [_setting(item) for item in value]
    return value if isinstance(value, _PLAIN) else None
