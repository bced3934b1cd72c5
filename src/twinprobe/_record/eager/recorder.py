"""The recorder of frameworks whose functions are replaced to be seen: MindSpore and Paddle."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import IO, Any, ClassVar

import numpy as np

from twinprobe._record.calls import FOCUS, Api, ModuleInfo, Site, tensors_in
from twinprobe._record.config import RecordConfig
from twinprobe._record.eager.apis import ApiWatch, Patches, writing
from twinprobe._record.eager.host_rows import HostRows, ProgramFault, RowCache
from twinprobe._record.eager.modules import CallWatch, Crossing, Crossings
from twinprobe._record.eager.updates import Updates
from twinprobe._record.engine import Engine
from twinprobe._record.entries import Capturer, Note
from twinprobe._record.recorder import GradientWatch, ParameterGradients, Recorder
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.foreign import host_tensor

_LAYOUTS: dict[str, dict[str, Any]] = {}  # shared by all notes that say no more, and changed by none


class EagerRecorder(Recorder):
    """The common part of both frameworks; each extends it."""

    tensor_suffix = ".npy"
    tensor_class: ClassVar[Any]
    tensor_types: ClassVar[tuple[type, ...]]  # the commonest kinds of tensors, which are known without a look
    scanned: ClassVar[tuple[str, ...]]  # the framework's own modules where imported names are replaced as well

    def __init__(self, config: RecordConfig, make_engine: Callable[[RecordConfig, Any], Engine] = Engine) -> None:
        super().__init__(config, make_engine)
        self.rows = HostRows(values=config.measures, digest=config.digest, sketch=config.sketches)
        self.row_cache = self.make_cache(self.rows)
        self.note = self.row_cache.note
        self.capture = Capturer(self._value, self.failed, dict.fromkeys(self.tensor_types, self._tensor))
        self.busy = False  # the recorder itself is running
        self.in_api = False  # inside a recorded API, where further ones are not recorded
        self.passes = 0  # backward passes that are running
        self.crossings = Crossings(self)
        self.modules = CallWatch(self)
        self.parameters: GradientWatch = ParameterGradients(self)
        self.apis = ApiWatch(self)
        self.updates = Updates(self)
        package = self.module_class.__module__.partition(".")[0]
        self.patches = Patches(self.apis.wrap, package, self.scanned)
        # Functions that write to a tensor without being recorded.
        self.writes = Patches(lambda site: writing(self.row_cache)(site.original), package, (package,))
        self._sites: list[Site] | None = None
        self._thread = 0
        self._handles: list[Any] = []

    # -- what a framework knows: the hooks return handles with remove() ---------------------------------------------

    @abstractmethod
    def make_cache(self, rows: HostRows) -> RowCache:
        """The cache of rows: notes tensors, and finds those that were measured already."""

    @abstractmethod
    def special(self, value: Any, key: str | None) -> Any:
        """The framework's other types as leaves; NOT_MINE for the rest."""

    @abstractmethod
    def watched_modules(self, model: Any) -> Iterator[tuple[str, Any, bool]]:
        """The modules to watch: path, module, whether it runs as a compiled graph."""

    @abstractmethod
    def own_parameters(self, module: Any, deep: bool) -> Mapping[str, Any]:
        """A module's own parameters; ``deep`` adds those of its submodules."""

    @abstractmethod
    def find_sites(self) -> Iterable[Site]:
        """All functions to watch."""

    @abstractmethod
    def writing_sites(self) -> Iterable[Site]:
        """The functions that write to a tensor; those among sites() only where APIs are not recorded."""

    @abstractmethod
    def write_hooks(self) -> Iterable[Any]:
        """Watch other ways to write: exposed memory, compiled code."""

    @abstractmethod
    def pass_hooks(self, begin: Callable[[], None], end: Callable[[], None]) -> Iterable[Any]:
        """Call ``begin`` and ``end`` around every backward pass."""

    def hold_gradient(self, part: Any) -> Any:
        """One part of a gradient, as it will still be when the others have come."""
        return part

    @abstractmethod
    def add_gradients(self, parts: list[Any]) -> Any:
        """The sum of a gradient's parts."""

    @abstractmethod
    def update_hooks(self) -> Iterable[Any]:
        """Call ``updates`` around every step of an optimizer and around clipping."""

    def tracing(self) -> bool:
        """Whether a graph is being built: values are symbols, nothing may be recorded."""
        return False

    def call_hooks(self, _models: list[Any]) -> Iterable[Any]:
        """Watch API calls that are no functions."""
        return ()

    def use_hooks(self) -> Iterable[Any]:
        """Follow the uses of tensors, where gradients need that."""
        return ()

    def suspend_hooks(self) -> Iterable[Any]:
        """Put the originals back around every compilation, which must find the framework's own functions."""
        return ()

    def layout_of(self, _module: Any, _name: str) -> str | None:
        """A mark for parameters stored otherwise than in the other frameworks."""
        return None

    # -- what the engine and the calls ask --------------------------------------------------------------------------

    @property
    def attached(self) -> bool:
        return self.modules.attached or self.patches.attached

    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        np.save(stream, payload, allow_pickle=False)

    def host(self, payload: Any) -> HostTensor | None:
        return host_tensor("", payload)

    def collect(self) -> None:
        self.row_cache.forget()

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, self.tensor_class)

    def after_call(self, _name: str, watch: Any, output: Any, _depth: int = -1) -> None:
        watch.after(tensors_in(output, self.tensor_class, []))

    def call_failed(self, watch: Any) -> None:
        watch.cancel()

    @staticmethod
    def custom_api(kind: str, name: str) -> Api:
        return Api(f"{kind}.{name}.", FOCUS)

    def call_custom(self, api: Api, original: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        if not self.patches.attached or self.busy or self.in_api or not self.listening():
            return original(*args, **kwargs)
        return self.apis.record(api, original, args, kwargs, frame)

    def sites(self) -> list[Site]:
        """All functions to watch, looked up once."""
        if self._sites is None:
            self._sites = list(self.find_sites())
        return self._sites

    # -- starting and stopping --------------------------------------------------------------------------------------

    def _observe(self, models: list[Any], several: bool, token_range: Any) -> None:
        self._thread = threading.get_ident()
        self.writes.attach(self.writing_sites())
        self._handles += self.write_hooks()
        self._handles += self.suspend_hooks()
        if self.updates.wanted:
            self.updates.follow(models)
            self._handles += self.update_hooks()
        self.modules.watch_roots(models)
        if self.records_modules:
            self.modules.watch_models(models, several)
            if self.backward:
                self.parameters.attach(self.modules.infos.values())
        if token_range is not None:
            self.modules.watch_tokens(models, token_range)
        if self.backward:
            self._handles += self.pass_hooks(self._pass_begins, self._pass_ends)
            self._handles += self.use_hooks()
        self.modules.attach()
        if self.records_apis:
            self._handles += self.call_hooks(models)
            self.patches.attach(self.sites())
        self.row_cache.trust()

    def originals_back(self) -> None:
        """The framework's own functions, for a while."""
        self.patches.suspend()
        self.writes.suspend()

    def wrappers_back(self) -> None:
        """End of originals_back()."""
        self.writes.resume()
        self.patches.resume()

    def memory_exposed(self) -> None:
        """The memory of a tensor is exposed: writes to it cannot be observed."""
        if not self.busy:
            self.row_cache.distrust()

    def _release(self) -> None:
        self.patches.detach()
        for part in (self.crossings.close, self.parameters.detach, self.modules.detach):
            self.work("stopping", part)
        for handle in reversed(self._handles):
            handle.remove()
        self._handles.clear()
        self.updates.forget()
        self.writes.detach()
        self.row_cache.distrust()
        self.passes = 0
        super()._release()

    def _pass_begins(self) -> None:
        self.passes += 1

    def _pass_ends(self) -> None:
        self.passes = max(0, self.passes - 1)
        for finish in (self.crossings.pass_ended, self.parameters.flush) if self.passes == 0 else ():
            self.work("recording gradients", finish)

    # -- what the watchers share ------------------------------------------------------------------------------------

    def listening(self) -> bool:
        """Whether a call that begins now is recorded."""
        if not self.engine.active or self.paused or self.muted or threading.get_ident() != self._thread:
            return False
        return not self.tracing()

    def work(self, doing: str, act: Callable[..., Any], *args: Any) -> Any:
        """``act(*args)`` as the recorder's own work: its calls are not recorded, its errors noted, those of the program
        raised. Called by hooks thousands of times. None where it failed."""
        before, self.busy = self.busy, True
        try:
            return act(*args)
        except ProgramFault as fault:
            raise fault.error from None
        except Exception as error:
            self.engine.problems.note(doing, error)
            return None
        finally:
            self.busy = before

    def failed(self, value: Any, error: Exception) -> Any:
        if isinstance(error, ProgramFault):
            raise error
        return super().failed(value, error)

    def _tensor(self, tensor: Any) -> Note:
        return self.note(tensor, save=self.save)

    def _value(self, value: Any, key: str | None) -> Any:
        if isinstance(value, self.tensor_class):
            return self.note(value, save=self.save)
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return self.rows.array_note(value, save=self.save)
        return self.special(value, key)

    # -- parameters and gradients -----------------------------------------------------------------------------------

    def parameters_of(self, info: ModuleInfo) -> dict[str, Any]:
        """The module's own parameters as they are now; of a compiled module also those of the modules inside it."""
        parameters = self.own_parameters(info.module, info.compiled)
        return {
            name: self._marked(info.module, name, self.note(parameter, save=self.save))
            for name, parameter in parameters.items()
        }

    def watched_parameters(self, info: ModuleInfo) -> dict[str, Any]:
        parameters = self.own_parameters(info.module, info.compiled)
        return {name: parameter for name, parameter in parameters.items() if self.needs_gradient(parameter)}

    def _marked(self, module: Any, name: str, note: Note) -> Note:
        """The note of a parameter or of its gradient, marked where its layout is the framework's own."""
        mark = self.layout_of(module, name)
        if mark is not None:
            note.extra = {**note.extra, "layout": mark} if note.extra else _LAYOUTS.setdefault(mark, {"layout": mark})
        return note

    def note_gradient(self, name: str, gradient: Any) -> Any:
        note = super().note_gradient(name, gradient)
        if isinstance(note, Note) and note.requires_grad is not None:
            note.requires_grad = False  # some frameworks report True during a pass, though it is never differentiated
        return note

    def note_parameter_gradient(self, module: Any, name: str, gradient: Any) -> Note:
        note = self._marked(module, name, self.row_cache.note_sum(gradient, save=self.save))
        if note.requires_grad is not None:
            note.requires_grad = False
        return note

    def backward_ended(self, crossing: Crossing) -> None:
        name = crossing.name
        if name.endswith(".backward"):  # of a function; that of a module has a number at its end
            self.mark_layouts(name.removesuffix(".backward").rpartition(".")[0] + ".", crossing.outgoing, {})
        super().backward_ended(crossing)
