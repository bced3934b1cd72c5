"""What a framework's adapter must know; everything else about recording is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Protocol

from twinprobe._record.eager.gradients import Crossing, Crossings
from twinprobe._record.eager.host_rows import KnownRows
from twinprobe._record.rows import Note

if TYPE_CHECKING:
    from twinprobe._record.eager.recorder import EagerRecorder

CORE, FOCUS, LOW, MINOR = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A function that is recorded: ``Functional.linear.``, how much it matters, whether it writes to its arguments.

    What a ``collective`` gives is what its arguments hold afterwards.
    """

    prefix: str
    rank: int
    in_place: bool
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """Where a function is found: an attribute of a module or a class, and what it is called in a dump."""

    owner: Any
    attribute: str
    original: Any
    api: Api


class Adapter(Protocol):
    """One framework."""

    name: str
    tensor_suffix: str
    container: str
    module_class: Any
    tensor_types: tuple[type, ...]  # the commonest of them, which are known without a look
    scanned: tuple[str, ...]  # the framework's own modules where imported names are replaced as well

    @property
    def known(self) -> KnownRows:
        """What was measured in this step."""

    def rank(self) -> int | None: ...
    def grad_enabled(self) -> bool: ...
    def tracing(self) -> bool:
        """Whether a graph is being built: values are symbols, nothing may be recorded."""

    def is_tensor(self, value: Any) -> bool: ...
    def note(self, tensor: Any, *, save: bool) -> Note:
        """Measure a tensor as it is now."""

    def note_sum(self, gradient: Any, *, save: bool) -> Note:
        """Measure the gradient of a parameter, summed up over its uses: nothing more is added to it in this pass."""

    def special(self, value: Any, key: str | None) -> Any:
        """The framework's other types as leaves; NOT_MINE for the rest."""

    def modules(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        """The modules to watch: path, module, whether it runs as a compiled graph."""

    def parameters(self, module: Any, deep: bool, /) -> Mapping[str, Any]:
        """A module's own parameters; ``deep`` adds those of its submodules."""

    def mark(self, prefix: str, args: list[Any], kwargs: Mapping[str, Any], /) -> None:
        """Mark the same among an API's noted arguments, or among their gradients."""

    def needs_gradient(self, tensor: Any) -> bool: ...
    def sites(self) -> Iterable[Site]:
        """All functions to watch."""

    def writing_sites(self, recorded: bool, /) -> Iterable[Site]:
        """The functions that write to a tensor; those among sites() only where these are not ``recorded``."""

    def write_hooks(self) -> Iterable[Any]:
        """Watch other ways to write: memory handed out, compiled code. Returns handles with remove()."""

    def call_hooks(self, models: list[Any], /) -> Iterable[Any]:
        """Watch API calls that are no functions; returns handles with remove()."""

    def use_hooks(self) -> Iterable[Any]:
        """Follow the uses of tensors, where gradients need that; returns handles with remove()."""

    def check_models(self, model: Any, level: str) -> list[Any]:
        """The modules to watch; refuses what is none."""

    def subfolder(self, models: list[Any], /) -> str:
        """A folder between the dump path and the step folders; empty for the usual layout."""

    def layout_of(self, module: Any, name: str, /) -> str | None:
        """A mark for parameters stored otherwise than in the other frameworks."""

    def before_call(self, crossings: Crossings, name: str, args: Any, kwargs: Any, in_place: bool, /) -> Any:
        """Prepare to see the gradients of a call; None when it has none."""

    def pass_hooks(self, begin: Any, end: Any, /) -> Iterable[Any]:
        """Call ``begin`` and ``end`` around every backward pass; returns handles with remove()."""

    def suspend_hooks(self, aside: Any, back: Any, /) -> Iterable[Any]:
        """Call ``aside`` and ``back`` around every compilation, which must find the framework's own functions."""

    def add(self, parts: list[Any]) -> Any: ...
    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None: ...


class Watch(Protocol):
    """A call between its start and its end, as far as gradients go. ``args`` are to be passed on."""

    args: Any
    kwargs: Any
    crossing: Crossing

    def after(self, outputs: list[Any]) -> None:
        """The call gave these tensors."""

    def cancel(self) -> None:
        """The call failed."""


# Errors that are not the recorder's: a kernel that failed earlier and is only reported now.


class ProgramFault(Exception):
    """Reading a tensor raised what an operation of the program had left behind. ``error`` belongs to the program."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


class Guard:
    """``with guard("recording inputs"):`` -- the recorder's errors are noted, the program's are raised as they are."""

    __slots__ = ("_doing", "_note")

    def __init__(self, note: Callable[[str, BaseException], None], doing: str) -> None:
        self._note = note
        self._doing = doing

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        if error is None:
            return False
        if isinstance(error, ProgramFault):
            raise error.error from None
        if isinstance(error, Exception):
            self._note(self._doing, error)
            return True
        return False


# While the recorder works, its own calls are not recorded.


class Quiet:
    """A context in which the recorder is at work."""

    __slots__ = ("_before", "_recorder")

    def __init__(self, recorder: EagerRecorder) -> None:
        self._recorder = recorder

    def __enter__(self) -> None:
        self._before, self._recorder.busy = self._recorder.busy, True

    def __exit__(self, *_: Any) -> None:
        self._recorder.busy = self._before
