"""The inputs and results of an optimizer of MindSpore or Paddle, once for each of its steps: optimizer.json.

The file is the one that PyTorch's recorder writes: gradients after clipping, settings under PyTorch's names, parameters
before and after the step. Nothing is changed; everything is only read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twinprobe._record.entries import Entry, Note, with_total_norm
from twinprobe._runs.names import TOTAL_NORM

Named = tuple[str, str | None]  # a parameter's name in the model, and how it is stored if that is the framework's own


@dataclass
class Group:
    """Parameters of an optimizer that share their settings."""

    parameters: list[Any]
    settings: dict[str, Any] = field(default_factory=dict)  # parts of one setting by their place: betas.0, betas.1


@dataclass
class _Step:
    kind: str
    number: int
    entries: dict[int, tuple[Entry, Any]] = field(default_factory=dict)  # by the id of a parameter, which stands beside
    clipped: list[float] = field(default_factory=list)  # what clipping inside of the step found: norms of its parts


class Updates:
    """Follows the optimizers of a recording, one step at a time."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._names: dict[int, Named] = {}
        self._open: _Step | None = None
        self._before_clipping: float | None = None
        self.wanted = recorder.config.optimizer and recorder.config.measures

    def follow(self, models: Iterable[Any]) -> None:
        """Parameters get the names that they have in these models, behind their position where models share names."""
        recorder, own = self._recorder, list[dict[int, Named]]()
        for model in models:
            own.append({})
            # Few frameworks count a model among its own modules; it may have parameters of its own all the same.
            for path, module, compiled in [("", model, False), *recorder.watched_modules(model)]:
                front = f"{path}." if path and module is not model else ""
                for name, parameter in recorder.own_parameters(module, compiled).items():
                    # The outermost name: Paddle's recurrent layers and their cells hold the same parameters.
                    own[-1].setdefault(id(parameter), (front + name, recorder.layout_of(module, name)))
        several = len({name for names in own for name, _ in names.values()}) < sum(map(len, own))
        self._names = {
            one: (f"{position}.{name}" if several else name, mark)
            for position, names in reversed(list(enumerate(own))) for one, (name, mark) in names.items()
        }  # fmt: skip

    def forget(self) -> None:
        """The recording stops."""
        self._names, self._open, self._before_clipping = {}, None, None

    # -- what the frameworks' hooks call ----------------------------------------------------------------------------

    def step(
        self, optimizer: Any, gradients: Callable[[], Mapping[int, Any]], groups: Callable[[], list[Group]],
        act: Callable[[], Any],
    ) -> Any:  # fmt: skip
        """An optimizer makes a step: ``act``. ``gradients`` are found by the id of their parameter."""
        recorder = self._recorder
        if not self.wanted or self._open is not None or not recorder.listening():
            return act()
        recorder.work("recording what an optimizer sees", self._begin, optimizer, gradients, groups)
        try:
            result = act()
        except BaseException:
            self._open = None
            raise
        recorder.row_cache.forget()
        recorder.work("recording what an optimizer did", self._end)
        return result

    def clipping(self, norm: Callable[[], float]) -> None:
        """The program clips gradients; the next step records the norm that they had before."""
        if self.wanted and self._recorder.listening():

            def note() -> None:
                self._before_clipping = norm()

            self._recorder.work("noting the norm before clipping", note)

    def clip_inside(self, pairs: Iterable[tuple[Any, Any]], act: Callable[[], Any]) -> Any:
        """An optimizer clips inside its step, parameters with gradients: the step sees what comes out."""
        step = self._open
        if step is None:
            return act()
        norm = self._recorder.work("noting the norm before clipping", self.norm, [gradient for _, gradient in pairs])
        step.clipped += [] if norm is None else [norm]
        result = act()
        self._recorder.row_cache.forget()  # it may have been done in place
        self._recorder.work("recording clipped gradients", self._take_clipped, step, result)
        return result

    # -- the work ---------------------------------------------------------------------------------------------------

    def _begin(
        self, optimizer: Any, gradients: Callable[[], Mapping[int, Any]], groups: Callable[[], list[Group]]
    ) -> None:
        recorder = self._recorder
        kind = type(optimizer).__name__
        gradient_of = gradients()
        step = _Step(kind, recorder.engine.count(f"Optimizer.{kind}"))
        for number, group in enumerate(groups()):
            settings: dict[str, Any] = {}
            for key, value in group.settings.items():
                whole, dot, _ = key.partition(".")
                settings[whole] = [*settings.get(whole, ()), value] if dot else value
            for place, parameter in enumerate(group.parameters):
                gradient = gradient_of.get(id(parameter))
                if gradient is None:
                    continue
                name, mark = self._names.get(id(parameter), (f"group{number}.{place}", None))
                entry = Entry(
                    f"Optimizer.{name}.{kind}.{step.number}.forward",
                    {
                        "input_args": [self._note(gradient, mark)],
                        "input_kwargs": settings,
                        "parameters": {"before": self._note(parameter, mark)},
                    },
                )
                step.entries[id(parameter)] = entry, parameter
        self._open = step

    def _end(self) -> None:
        step, self._open = self._open, None
        assert step is not None
        engine = self._recorder.engine
        for entry, parameter in step.entries.values():
            entry.parts["output"] = [self._note(parameter, self._names.get(id(parameter), ("", None))[1])]
            engine.note_update(entry)
        before, self._before_clipping = self._before_clipping, None
        if step.clipped:
            before = math.hypot(*step.clipped)
        seen = [entry.parts["input_args"][0] for entry, _ in step.entries.values()]
        parts = {"input_args": [before], "output": seen}
        total = Entry(f"{TOTAL_NORM}{step.kind}.{step.number}.forward", parts)
        engine.note_update(with_total_norm(total))  # last, so that a parameter is the first to differ

    def _note(self, tensor: Any, mark: str | None = None) -> Note:
        note: Note = self._recorder.note(tensor, save=False)
        if mark is not None:
            note.extra = {**(note.extra or {}), "layout": mark}
        if note.requires_grad is not None:
            note.requires_grad = False
        return note

    def norm(self, tensors: Iterable[Any]) -> float:
        """The norm that tensors have together."""
        rows = [self._note(tensor).row for tensor in tensors if tensor is not None]
        values = [row.values.norm for row in rows if row is not None and row.values is not None]
        return math.hypot(*(norm for norm in values if norm is not None))

    def _take_clipped(self, step: _Step, pairs: Any) -> None:
        for parameter, gradient in pairs:
            entry, _ = step.entries.get(id(parameter), (None, None))
            if entry is not None and gradient is not None:
                mark = self._names.get(id(parameter), ("", None))[1]
                entry.parts["input_args"] = [self._note(gradient, mark)]
