"""What an optimizer sees and does, once for each of its steps: written to optimizer.json beside dump.json.

Gradients are noted when the step begins, after every exchange between ranks and after clipping; parameters before and
after it. Nothing is changed: all of it is read, by hooks that torch offers.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from twinprobe._record.rows import Entry, Leaf, Note
from twinprobe._record.torch.tensors import silence

_PLAIN = (bool, int, float, str, type(None))
# The function that computes the norm all gradients have together: clip_grad_norm_ itself where there is no such one.
_NORMS = ("_get_total_norm", "get_total_norm", "clip_grad_norm_")


class OptimizerScope:
    """Knows whether an optimizer is at work. Parameters change there, so rows are forgotten afterwards."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._wrapped: list[tuple[Any, str, Any]] = []
        self._models: list[torch.nn.Module] = []
        self._open: dict[int, list[tuple[Entry, Any]]] = {}
        self._before_clipping: Any = None
        self._keeps = recorder.config.optimizer and recorder.config.measures
        self.inside = 0

    def attach(self, models: list[torch.nn.Module]) -> None:
        """Watch all optimizers; parameters get the names that they have in these models."""
        self._models = models
        self._handles = [
            register_optimizer_step_pre_hook(self._before),
            register_optimizer_step_post_hook(self._after),
        ]
        if self._keeps:
            self._watch_clipping()

    def detach(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        for home, name, original in self._wrapped:
            setattr(home, name, original)
        self._handles.clear()
        self._wrapped.clear()
        self._open.clear()
        self._models = []
        self._before_clipping = None
        self.inside = 0

    def _before(self, optimizer: Any, *_: Any) -> None:
        self.inside += 1
        recorder = self._recorder
        recorder.work("measuring before an optimizer's step", recorder.book.settle)
        if self._keeps and recorder.active:
            recorder.work("recording what an optimizer sees", self._note_gradients, optimizer)

    def _after(self, optimizer: Any, *_: Any) -> None:
        self.inside = max(0, self.inside - 1)
        recorder = self._recorder
        recorder.work("measuring after an optimizer's step", recorder.book.forget)
        if self._keeps and recorder.active:
            recorder.work("recording what an optimizer did", self._note_parameters, optimizer)

    # -- what is recorded -------------------------------------------------------------------------------------------

    def _note_gradients(self, optimizer: Any) -> None:
        recorder = self._recorder
        names = {
            id(one): name for model in self._models for name, one in model.named_parameters(remove_duplicate=False)
        }
        kind = type(optimizer).__name__
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
                gradients.append(recorder.book.note(gradient))
                parts = {
                    "input_args": [gradients[-1]],
                    "input_kwargs": settings,
                    "parameters": {"before": recorder.book.note(parameter)},
                }
                noted.append((Entry(f"Optimizer.{name}.{kind}.{number}.forward", parts), parameter))
        self._open[id(optimizer)] = noted
        before, self._before_clipping = self._before_clipping, None
        total = Entry(f"Optimizer.total_norm.{kind}.{number}.forward", {"input_args": [before], "output": gradients})
        noted.append((total, None))  # last, so that a parameter is the first to differ

    def _note_parameters(self, optimizer: Any) -> None:
        recorder = self._recorder
        for entry, parameter in self._open.pop(id(optimizer), ()):
            if parameter is not None:
                entry.parts["output"] = [recorder.book.note(parameter)]
            recorder.engine.note_update(entry)
        recorder.book.forget()

    # -- the norm before clipping -----------------------------------------------------------------------------------

    def _watch_clipping(self) -> None:
        home: Any = torch.nn.utils.clip_grad
        self._watch_norm(home, next(name for name in _NORMS if hasattr(home, name)))
        sharded = sys.modules.get("torch.distributed.fsdp")
        if sharded is not None:
            self._watch_norm(sharded.FullyShardedDataParallel, "clip_grad_norm_")

    def _watch_norm(self, home: Any, name: str) -> None:
        original = getattr(home, name)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            norm = original(*args, **kwargs)
            if self._recorder.active:
                with silence():
                    self._recorder.work("noting the norm before clipping", self._note_norm, norm)
            return norm

        # A name that other modules have imported stays as it was for them.
        self._wrapped.append((home, name, original))
        setattr(home, name, watched)

    def _note_norm(self, norm: Any) -> None:
        if isinstance(norm, torch.Tensor):
            self._before_clipping = self._recorder.book.note(norm.detach().clone())
        elif isinstance(norm, int | float):
            self._before_clipping = float(norm)


def _setting(value: Any) -> Any:
    """A setting of a parameter group as it is written: plain values, and tensors of one number."""
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    if isinstance(value, list | tuple):
        return [_setting(item) for item in value]
    return value if isinstance(value, _PLAIN) else None


def with_total_norm(entry: Entry) -> Entry:
    """The entry of a step's total norm: its gradients, measured by now, give way to the norm they have together.

    Without parts of tensors that other ranks hold the rest of, it is that of all gradients; else only this rank's.
    """
    notes = entry.parts["output"]
    if not isinstance(notes, list) or not all(isinstance(one, Note) for one in notes):
        return entry
    norms = [one.row.values.norm for one in notes if one.row is not None and one.row.values is not None]
    total = sum(norm * norm for norm in norms if norm is not None) ** 0.5
    four = dict.fromkeys(("Max", "Min", "Mean", "Norm"), total)
    leaf = Leaf({"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], **four})
    return Entry(entry.name, entry.parts | {"output": [leaf]})
