"""What live comparison asks of a framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from twinprobe.live.memory import MemoryEngine
from twinprobe.runs.host_tensor import HostTensor

Loss = Callable[[Any], Any]
OnGradient = Callable[[HostTensor], HostTensor | None]
NewMask = Callable[[tuple[int, ...], float], Any]


@dataclass
class Call:
    """What a model is called with."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Outcome:
    """What one forward (and backward) pass gave."""

    output: Any = None
    loss: Any = None


class Adapter(Protocol):
    """The verbs of one framework. Nothing here compares or prints."""

    name: str  # as recordings spell it
    title: str
    container: str
    model_class: Any

    def is_tensor(self, value: Any) -> bool:
        """Whether this is a tensor of the framework."""

    def modules(self, model: Any) -> Iterator[tuple[str, Any]]:
        """All modules with their paths in the order of definition, the model itself first under ""."""

    def parameters(self, module: Any) -> Mapping[str, Any]:
        """A module's own parameters."""

    def is_transposed(self, module: Any, name: str) -> bool:
        """Whether this parameter is stored [in, out]."""

    def recording(self, model: Any, *, backward: bool, apis: bool) -> AbstractContextManager[MemoryEngine]:
        """Record a model, itself included, while the block runs. Nothing is left on the model afterwards."""

    def run(self, model: Any, call: Call, loss: Loss | None, *, backward: bool) -> Outcome:
        """One forward pass; with ``backward`` also the loss (the mean of the output by default) and its gradients."""

    def take_gradients(self, modules: Iterable[Any], /) -> list[tuple[Any, Any]]:
        """Take their gradients from the parameters, to be given back with ``set_gradients``."""

    def set_gradients(self, gradients: list[tuple[Any, Any]], /) -> None:
        """Give these parameters their gradients back."""

    def clear_gradients(self, model: Any, modules: Iterable[Any], /) -> None:
        """Forget the gradients that a model's modules have from earlier passes."""

    def step(self, model: Any, optimizer: Any, /) -> None:
        """Let the optimizer change the parameters, then forget the gradients."""

    def to_host(self, value: Any) -> HostTensor:
        """A tensor, or what a recorder kept of one, in host memory."""

    def tensor(self, host: HostTensor, model: Any = None, /) -> Any:
        """A new tensor of the framework, where the model's parameters are if one is given."""

    def copied(self, tensor: Any) -> Any:
        """A copy of an input that a run may change."""

    def seed(self, number: int) -> None:
        """Make random numbers repeatable."""

    def random_state(self) -> Any:
        """The state of the random generators, for ``set_random_state``."""

    def set_random_state(self, state: Any) -> None:
        """Put the random generators back."""

    def training(self, module: Any) -> bool:
        """Whether a module is in training mode."""

    def set_training(self, module: Any, training: bool) -> None:
        """Put this one module, not those inside it, into training or evaluation mode."""

    def dropouts(self, new_mask: NewMask) -> AbstractContextManager[None]:
        """While the block runs, every dropout multiplies with a mask from ``new_mask(shape, p)``."""

    def around_calls(self, model: Any, before: Any, after: Any) -> AbstractContextManager[None]:
        """While the block runs, ``before(module, args, kwargs)`` gives what each module is called with, ahead of the
        recorder, and ``after(module, output)`` what it returns, behind the recorder."""

    def substitute(self, tensor: Any, value: HostTensor, on_gradient: OnGradient) -> Any:
        """A tensor with other values in the place of this one; its gradient passes through ``on_gradient``."""
