"""One recording of an eager framework: modules, API calls, gradients and the engine, tied together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import IO, Any

from twinprobe._record.bench_check import BenchCheck
from twinprobe._record.config import RecordConfig
from twinprobe._record.debugger import check_token_range
from twinprobe._record.eager.adapter import Adapter, Guard, ProgramFault, Quiet
from twinprobe._record.eager.apis import ApiWatch, Patches, WriteWatch
from twinprobe._record.eager.gradients import Crossing, Crossings, ParameterGradients
from twinprobe._record.eager.host_rows import HostRows
from twinprobe._record.eager.modules import ModuleInfo, ModuleWatch
from twinprobe._record.engine import Engine
from twinprobe._record.render import NOT_MINE, Capturer, unrecorded
from twinprobe._record.rows import Entry, GradientWatch, Note

_LAYOUTS: dict[str, dict[str, Any]] = {}  # shared by all notes that say no more, and changed by none


class EagerRecorder:
    """Starts and stops observing. Implements what the engine asks of a framework."""

    deferred = False

    def __init__(
        self,
        config: RecordConfig,
        make_adapter: Callable[[HostRows], Adapter],
        make_engine: Callable[[RecordConfig, Any], Engine] = Engine,
    ) -> None:
        structure = config.task == "structure"
        self.config = config
        self.rows = HostRows(values=config.measures, digest=config.digest)
        self.adapter = make_adapter(self.rows)
        self.name, self.tensor_suffix = self.adapter.name, self.adapter.tensor_suffix
        self.subfolder = ""
        self.engine = make_engine(config, self)
        self.capture = Capturer(self._value, self._failed, dict.fromkeys(self.adapter.tensor_types, self._tensor))
        self.forward = config.wants("forward")
        self.backward = config.wants("backward") and not structure
        self.inputs = config.wants("input")
        self.outputs = config.wants("output")
        self.save = False
        self.busy = False  # the recorder itself is at work
        self.in_api = False  # inside a recorded API, where further ones are not recorded
        self.muted = 0
        self.paused = False
        self.passes = 0  # backward passes under way
        self.crossings = Crossings(self)
        self.modules = ModuleWatch(self)
        self.parameters: GradientWatch = ParameterGradients(self)
        self.apis = ApiWatch(self)
        package = self.adapter.module_class.__module__.partition(".")[0]
        self.patches = Patches(self.apis.wrap, package, self.adapter.scanned)
        self.writes = WriteWatch(self.adapter.known.settle, self.collect, package)
        self._thread = 0
        self.records_apis = config.level in {"L1", "mix"}
        self._handles: list[Any] = []
        self._keep_all = config.task == "tensor"
        self.takes_all = self.engine.filter.takes_all
        self._parents: dict[str, str | None] = {}
        if config.bench_path is not None:  # checksums are always there already, so none is asked for later
            self.engine.bench = BenchCheck(config.bench_path, config.diff_nums, lambda _: None, self._keep_no_more)

    # -- what the engine asks ---------------------------------------------------------------------------------------

    def rank(self) -> int | None:
        return self.adapter.rank()

    def save_tensor(self, payload: Any, stream: IO[bytes]) -> None:
        self.adapter.save_tensor(payload, stream)

    def collect(self) -> None:
        self.adapter.known.forget()

    def let_go(self) -> None:
        """Everything is on the host, and no lock is held."""

    # -- the verbs --------------------------------------------------------------------------------------------------

    def start(self, model: Any = None, token_range: Any = None) -> None:
        """Begin observing; ``model`` is a module or several."""
        models = self.adapter.check_models(model, self.config.level)
        check_token_range(token_range)
        self.subfolder = self.adapter.subfolder(models) if self.config.level != "debug" else ""
        if not self.engine.begin() or self.config.level == "debug":
            return
        self._thread = threading.get_ident()
        try:
            self._observe(models, isinstance(model, list | tuple), token_range)
        except BaseException:
            self._release()
            raise

    def _observe(self, models: list[Any], several: bool, token_range: Any) -> None:
        level = self.config.level
        self.paused = token_range is not None
        self._handles.append(self.writes.attached(self.adapter.writing_sites(self.records_apis)))
        self._handles += self.adapter.write_hooks()
        self._handles += self.adapter.suspend_hooks(self._aside, self._back)
        self.modules.watch_roots(models)
        if level in {"L0", "mix"}:
            self.modules.watch_models(models, several)
            if self.backward:
                self.parameters.attach(self.modules.infos.values())
        if token_range is not None:
            self.modules.watch_tokens(models, token_range)
        if self.backward:
            self._handles += self.adapter.pass_hooks(self._pass_begins, self._pass_ends)
            self._handles += self.adapter.use_hooks()
        self.modules.attach()
        if self.records_apis:
            self._handles += self.adapter.call_hooks(models)
            self.patches.attach(self.adapter.sites())
        self.adapter.known.trust()

    def _aside(self) -> None:
        self.patches.aside()
        self.writes.aside()

    def _back(self) -> None:
        self.writes.back()
        self.patches.back()

    @property
    def attached(self) -> bool:
        """Whether anything is being watched."""
        return self.modules.attached or self.patches.attached

    def stop(self) -> None:
        """Stop observing; every replaced function is back afterwards."""
        try:
            self._release()
        finally:
            self.engine.end()

    def _release(self) -> None:
        self.patches.detach()
        for part in (self.crossings.close, self.parameters.detach, self.modules.detach):
            with self.quiet(), self.guard("stopping"):
                part()
        for handle in reversed(self._handles):
            handle.remove()
        self._handles.clear()
        self._parents.clear()
        self.adapter.known.distrust()
        self.paused = False
        self.passes = 0

    def _keep_no_more(self) -> None:
        self._keep_all = self.save = False

    def next_step(self) -> None:
        """Later records belong to the next step; stops first if that was forgotten."""
        if self.attached:
            self.stop()
        self.engine.next_step()

    # -- what the watches share -------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        return self.engine.active and not self.paused

    def listening(self) -> bool:
        """Whether a call that begins now is recorded."""
        if not self.engine.active or self.paused or self.muted or threading.get_ident() != self._thread:
            return False
        return not self.adapter.tracing()

    def guard(self, doing: str) -> Guard:
        """The recorder's errors are noted, the program's are raised."""
        return Guard(self.engine.problems.note, doing)

    def work(self, doing: str, act: Callable[..., Any], *what: Any) -> Any:
        """``act(*what)``, quiet and guarded, in one call: hooks do it thousands of times. None where it failed."""
        before, self.busy = self.busy, True
        try:
            return act(*what)
        except ProgramFault as fault:
            raise fault.error from None
        except Exception as error:
            self.engine.problems.note(doing, error)
            return None
        finally:
            self.busy = before

    def quiet(self) -> Quiet:
        """While the recorder works, its own calls are not recorded."""
        return Quiet(self)

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Whether scope and list ask for this call; sets whether its real tensors are kept."""
        if self.takes_all:
            self.save = self._keep_all
            return self.engine.active
        if not self.engine.wants(name, ancestors):
            return False
        self.save = self._keep_all or self.engine.filter.wants_tensors(name)
        return True

    def _failed(self, value: Any, error: Exception) -> Any:
        if isinstance(error, ProgramFault):
            raise error
        self.engine.problems.note("recording a value", error)
        return unrecorded(value, error)

    def _tensor(self, tensor: Any) -> Note:
        return self.adapter.note(tensor, save=self.save)

    def _value(self, value: Any, key: str | None) -> Any:
        if self.adapter.is_tensor(value):
            return self.adapter.note(value, save=self.save)
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return self.rows.array_note(value, save=self.save)
        found = self.adapter.special(value, key)
        return found if found is not NOT_MINE else NOT_MINE

    def parameters_of(self, info: ModuleInfo) -> dict[str, Any]:
        """The module's own parameters as they are now. Inside a compiled one nobody else records them: all of them."""
        found = self.adapter.parameters(info.module, info.compiled)
        return {
            name: self._marked(info.module, name, self.adapter.note(one, save=self.save)) for name, one in found.items()
        }

    def _marked(self, module: Any, name: str, note: Note) -> Note:
        """The note of a parameter or of its gradient, marked where its layout is the framework's own."""
        mark = self.adapter.layout_of(module, name)
        if mark is not None:
            note.extra = {**note.extra, "layout": mark} if note.extra else _LAYOUTS.setdefault(mark, {"layout": mark})
        return note

    # -- trees ------------------------------------------------------------------------------------------------------

    def link(self, child: str, parent: str | None, backward: str | None = None) -> None:
        """Note a call's parent, and with it the parent that its backward will have."""
        self.engine.link(child, parent)
        if backward is not None:
            self._parents[backward] = parent

    def loose_parent(self) -> str | None:
        """The parent of a call outside every module: none is known."""
        return None

    def backward_parent(self, name: str) -> str | None:
        """The mirror of the forward tree: the backward of the enclosing module call."""
        parent = self._parents.get(name)
        return parent.replace(".forward.", ".backward.") if parent else None

    def ancestors(self, name: str) -> Iterable[str]:
        """Enclosing backward calls, innermost first."""
        parent = self.backward_parent(name)
        while parent is not None:
            yield parent
            parent = self.backward_parent(parent)

    # -- gradients --------------------------------------------------------------------------------------------------

    def backward_begins(self, name: str) -> None:
        """The first gradient of a call arrived."""
        if not self.takes_all:
            self.engine.filter.entering(name)

    def note_gradient(self, name: str, gradient: Any) -> Any:
        """Note a gradient that belongs to the backward of a call."""
        if self.paused or self.muted or not self.wants(name, () if self.takes_all else self.ancestors(name)):
            return None
        return self._gradient(self.adapter.note(gradient, save=self.save))

    def parameter_gradient(self, module: Any, name: str, gradient: Any) -> Note:
        """Note the gradient of a module's parameter."""
        return self._gradient(self._marked(module, name, self.adapter.note_sum(gradient, save=self.save)))

    @staticmethod
    def _gradient(note: Note) -> Note:
        if note.requires_grad is not None:
            note.requires_grad = False  # some frameworks say otherwise while a pass runs; nobody differentiates it
        return note

    def add_gradients(self, parts: list[Any]) -> Any:
        return self.adapter.add(parts)

    def backward_ended(self, crossing: Crossing) -> None:
        """All gradients of a call that will come have come."""
        name = crossing.name
        if not self.paused and self.wants(name, () if self.takes_all else self.ancestors(name)):
            self.engine.link(name, self.backward_parent(name))
            if name.endswith(".backward"):  # of a function; that of a module has a number at its end
                self.adapter.mark(name.removesuffix(".backward").rpartition(".")[0] + ".", crossing.outgoing, {})
            parts = {}
            if self.inputs:
                parts["input"] = crossing.incoming
            if self.outputs:
                parts["output"] = without_last_nulls(crossing.outgoing)
            self.engine.emit(Entry(name, parts))
        if not self.takes_all:
            self.engine.filter.leaving(name)

    def _pass_begins(self) -> None:
        self.passes += 1

    def _pass_ends(self) -> None:
        self.passes = max(0, self.passes - 1)
        if self.passes == 0:
            with self.quiet(), self.guard("recording gradients"):
                self.crossings.pass_ended()
                self.parameters.flush()

    def emit_forward(self, name: str, parts: dict[str, Any]) -> None:
        """Hand over a forward entry; keys that were not asked for are absent."""
        self.engine.emit(Entry(name, parts))


def without_last_nulls(items: list[Any]) -> list[Any]:
    """The list without the empty places at its end."""
    end = len(items)
    while end and items[end - 1] is None:
        end -= 1
    return items[:end]
