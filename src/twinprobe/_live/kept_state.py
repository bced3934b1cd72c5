"""What a comparison changes in the user's models: what can be put back is, and an error says what is not.

Gradients and buffers are as before afterwards, but buffers stay where optimizers have moved the models on. Copied
weights stay: a second copy of a model, for the rare error, would cost every comparison its memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._live.weights.stores import Array, store_of
from twinprobe.errors import TwinProbeError

if TYPE_CHECKING:
    from twinprobe._live.running import Model


class KeptModel:
    """What one model held before it was compared."""

    def __init__(self, one: Model) -> None:
        self._one = one
        self._layers = one.paths.layer
        self.store = store_of(one.model)
        self._gradients = one.adapter.take_gradients(self._layers.values())
        self.buffers: dict[tuple[str, str], tuple[Any, Any, Array]] = {}  # path and name -> layer, tensor, values

    def keep_buffers(self) -> None:
        """The model is about to run."""
        for path, layer in self._layers.items():
            for name, tensor in self.store.state(layer).items():
                self.buffers[path, name] = layer, tensor, np.array(self.store.read(tensor))

    def put_back_buffers(self) -> None:
        """As if the model had not run."""
        for (_, name), (layer, tensor, values) in self.buffers.items():
            if self.store.state(layer).get(name) is not tensor:  # replaced, not written to
                setattr(layer, name, tensor)
            if not np.array_equal(self.store.read(tensor), values, equal_nan=values.dtype.kind in "fc"):
                self.store.write(tensor, values)

    def clear_gradients(self) -> None:
        """Those of the comparison are no concern of the user."""
        self._one.adapter.clear_gradients(self._one.model, self._layers.values())

    def put_back_gradients(self) -> None:
        """Where the models share parameters, nothing may be cleared after this."""
        self._one.adapter.set_gradients(self._gradients)


class KeptState:
    """What the models held before they were compared, and in which way they are not what they were."""

    def __init__(self, models: list[Model]) -> None:
        self._models = {one.role: KeptModel(one) for one in models}
        self.steps = 0  # of their optimizers
        self.copied = ""  # what copying weights has done so far

    def __getitem__(self, one: Model) -> KeptModel:
        return self._models[one.role]

    def keep_buffers(self) -> None:
        """The models are about to run."""
        for kept in self._models.values():
            kept.keep_buffers()

    def put_back(self) -> None:
        """The comparison is over."""
        for kept in self._models.values():
            kept.clear_gradients()
        for kept in self._models.values():
            kept.put_back_gradients()
            if not self.steps:
                kept.put_back_buffers()

    @property
    def changed(self) -> str:
        """What stays otherwise than it was."""
        taken = f"the optimizers have changed the weights {self.steps} times" if self.steps else ""
        return "; ".join(filter(None, (self.copied, taken)))


@contextmanager
def state_kept(*models: Model | Path) -> Iterator[KeptState]:
    """Put back what a comparison changes in the models, whatever ends it."""
    kept = KeptState([one for one in models if not isinstance(one, Path)])
    try:
        yield kept
    except BaseException as error:
        if kept.changed:
            _tell(error, kept.changed)
        raise
    finally:
        kept.put_back()


@contextmanager
def copying(kept: KeptState, target: Model, source: str) -> Iterator[None]:
    """Weights are copied in this block: all of them, or none where it raises an error of our own."""
    kept.copied = f"{target.title} may hold some of the weights of {source}"
    try:
        yield
    except TwinProbeError:
        kept.copied = ""
        raise
    kept.copied = f"{target.title} holds the weights of {source} now"


def _tell(error: BaseException, text: str) -> None:
    if isinstance(error, TwinProbeError):
        error.hint = f"{error.hint}; {text}" if error.hint else text
    elif hasattr(error, "add_note"):
        error.add_note(text)
    else:  # before Python 3.11
        from twinprobe._live.console import say

        say(text)
