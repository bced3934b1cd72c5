"""Which tensor is which: one row per distinct content, found again by storage identity and version."""

from __future__ import annotations

import threading
from collections.abc import Callable
from operator import is_
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._python_dispatch import _disable_current_modes

from twinprobe._record.entries import Note, Row
from twinprobe._record.torch.device import DeviceRows
from twinprobe._record.torch.host import (
    describe,
    host_digest,
    host_measures,
    host_statistics,
    measurable,
    plain_type,
    shard_sketch,
)
from twinprobe._record.torch.values import BACKWARD, REACHES, UNSEEN, WRITES, effect_of, writes_by_keyword

# Storages are told apart even after they are freed: an address that is used again means another storage.

_PURGE_AT = 8192
_expired: Any = torch.UntypedStorage._expired
_free: Any = torch.UntypedStorage._free_weak_ref


class StorageNumbers:
    """Gives every storage a number of its own: that of its record, which a weak reference keeps, though not its memory,
    so that the record's place cannot be given to another one."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}  # weak references by the place of the record; TensorRegistry.note adds them
        self.moved: dict[int, int] = {}  # those with another number by now; both are always the same dictionaries
        self._next = -1  # no place is negative

    def renumber(self, storage: Any) -> None:
        """Nothing known by this storage's number holds any longer."""
        identity = storage._cdata
        if identity in self.held:
            self.moved[identity] = self._next
            self._next -= 1

    def purge(self) -> set[int]:
        """Forget storages that are gone, all of them if too many live; returns the numbers that still stand."""
        if sum(1 for reference in self.held.values() if not _expired(reference)) >= _PURGE_AT:
            self.clear()
            return set()
        for identity in [place for place, reference in self.held.items() if _expired(reference)]:
            _free(self.held.pop(identity))
            self.moved.pop(identity, None)
        return {self.moved.get(identity, identity) for identity in self.held}

    def clear(self) -> None:
        """Forget every storage; numbers may then be used again, of which nothing may be left."""
        references = list(self.held.values())
        self.held.clear()
        self.moved.clear()
        for reference in references:
            _free(reference)

    def __del__(self) -> None:
        self.clear()


# The recorder's own tensor operations are hidden from every function mode and dispatch mode.

_no_functions: Any = torch._C.DisableTorchFunction
_dispatch_modes: Any = torch._C._len_torch_dispatch_stack


def silence() -> Any:
    """A context in which neither this recorder's mode nor anyone else's (selective checkpointing has one) is active."""
    return _NoModes() if _dispatch_modes() else _no_functions()


class _NoModes:
    """Dispatch modes off too."""

    __slots__ = ("_dispatch", "_function")

    def __enter__(self) -> None:
        self._function: Any = _no_functions()
        self._function.__enter__()
        self._dispatch: Any = _disable_current_modes()
        self._dispatch.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._dispatch.__exit__(*error)
        self._function.__exit__(*error)


DEVICE_TYPES = {"cuda"}  # measured where they are; a test adds the host, under Triton's interpreter
_tensor_type = torch.Tensor
_parameter_type = torch.nn.Parameter
_is_grad_enabled: Any = torch.is_grad_enabled
_HOST = torch.device("cpu")
_FREED = {"remark": "its memory was freed"}  # as sharded parameters are between their uses
_inherited: list[Any] = []
Key = tuple[Any, ...]

# Element types of real numbers, as they are called in a dump.
_REAL = {
    one: str(one)
    for name, one in vars(torch).items()
    if isinstance(one, torch.dtype) and not one.is_complex and not name.startswith(("q", "bits"))
}


class TensorRegistry:
    """Notes tensors. A tensor already noted with the same storage, view and version gets the same row again."""

    def __init__(self, *, values: bool, digest: str | None, sketch: bool = False) -> None:
        self._values = values
        self._sketch = sketch
        self._digest = digest
        self._measures = values or digest is not None
        self._host_too = "cpu" in DEVICE_TYPES
        self._numbers = StorageNumbers()
        self._references, self._moved = self._numbers.held, self._numbers.moved
        self._notes: dict[Key, Note] = {}
        self._devices: dict[int, DeviceRows] = {}
        self._lock = threading.RLock()
        self.may_wait = False

    def note(self, tensor: torch.Tensor, save: bool = False) -> Note:
        """Note one tensor as it is now. No operation here may reach a mode: call with torch functions off.

        What was noted before comes back as the same object: notes without a file are never changed.
        """
        kind = type(tensor)
        if kind is not _tensor_type and kind is not _parameter_type:
            return self._unusual(tensor, save)
        try:
            storage = tensor.untyped_storage()
            shape, version, address, dtype = tensor.shape, tensor._version, tensor.data_ptr(), tensor.dtype
            strides = None if tensor.is_contiguous() else tensor.stride()
        except RuntimeError:  # no memory of its own, no version, no shape
            return self._special(tensor, save)
        number = storage._cdata
        if self._moved:
            number = self._moved.get(number, number)
        key = (number, address, shape, strides, dtype, version)
        known = self._notes.get(key)
        if known is None or tensor.is_neg():
            if number not in self._references and number >= 0:
                if len(self._references) >= _PURGE_AT:
                    self._purge()
                self._references[number] = storage._weak_ref()
            name = _REAL.get(dtype)
            on_device = tensor.is_cuda or (self._host_too and tensor.is_cpu)
            plain = name is not None and address and (on_device or tensor.is_cpu) and storage.data_ptr()
            if name is None or not plain or tensor.is_neg():
                return self._special(tensor, save, key)
            row = Row()
            if on_device and self._measures:
                self._measure_on_device(tensor, row, version, address)
            elif self._measures:
                self._measure(tensor, row, version)
            known = Note("torch.Tensor", name, shape, row, tensor.requires_grad)
            if number in self._references or number < 0:  # not if another thread has just let all of them go
                self._notes[key] = known
        if save:
            self._keep(tensor, known.row)
        elif known.requires_grad is tensor.requires_grad:
            return known
        return Note("torch.Tensor", known.dtype, shape, known.row, tensor.requires_grad, save)

    def _special(self, tensor: torch.Tensor, save: bool, key: Key = ()) -> Note:
        """Note what is no versioned tensor of real numbers in memory. ``key``: where it lies, if anywhere."""
        if not measurable(tensor):
            return self._unusual(tensor, save)
        turned = tensor.is_neg(), tensor.is_conj()
        if not key or any(turned) or tensor._is_zerotensor():  # no version, or not what memory says
            return self._fresh(tensor, tensor.shape, save, None)
        key = (*key, turned)
        known = self._notes.get(key)
        if known is None:
            known = self._fresh(tensor, tensor.shape, False, tensor._version)
            if known.row is None:
                return known
            self._notes[key] = known
        if save:
            self._keep(tensor, known.row)
        elif known.requires_grad is tensor.requires_grad:
            return known
        return Note("torch.Tensor", known.dtype, known.shape, known.row, tensor.requires_grad, save)

    def _fresh(self, tensor: torch.Tensor, shape: torch.Size, save: bool, version: int | None) -> Note:
        name = str(tensor.dtype)
        if version is None and tensor._is_zerotensor():  # takes no memory
            tensor = torch.zeros_like(tensor.detach())
        elif not tensor.untyped_storage().data_ptr() and tensor.numel():
            return Note("torch.Tensor", name, shape, None, tensor.requires_grad, False, None, _FREED)
        row = Row()
        if self._measures:
            self._measure(tensor, row, version)
        if save:
            self._keep(tensor, row)
        return Note("torch.Tensor", name, shape, row, tensor.requires_grad, save)

    def _unusual(self, tensor: torch.Tensor, save: bool) -> Note:
        text, extra = describe(tensor)
        content = plain_type(tensor)
        row = None
        if content is not None and type(content) in (_tensor_type, _parameter_type) and measurable(content):
            if type(tensor).__name__ == "DTensor":  # its piece gets no new version when it is written to
                row = self._fresh(content, content.shape, save, content._version).row
            else:
                row = self.note(content, save).row
        shape = tuple(int(size) for size in tensor.shape) if not getattr(tensor, "is_nested", False) else ()
        shard = None
        if self._sketch and row is not None and content is not None and text.endswith("DTensor"):
            shard = shard_sketch(tensor, content)
        return Note(text, str(tensor.dtype), shape, row, bool(tensor.requires_grad), save, None, extra, shard)

    @staticmethod
    def _keep(tensor: torch.Tensor, row: Row | None) -> None:
        if row is not None and row.payload is None and not (row.file or row.summary) and tensor.numel():
            row.payload = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)

    def _measure(self, tensor: torch.Tensor, row: Row, version: int | None) -> None:
        if not tensor.numel():
            return
        if tensor.is_cuda or (self._host_too and tensor.is_cpu):
            data = _resolved(tensor) if version is None else tensor
            self._measure_on_device(data, row, version, data.data_ptr())
            return
        if version is None or not tensor.is_cpu:
            tensor = _resolved(tensor).to(_HOST)
        if self._sketch:
            row.values, row.sketch = host_measures(tensor)
        elif self._values:
            row.values = host_statistics(tensor)
        if self._digest:
            row.digest = host_digest(tensor, self._digest)

    def _measure_on_device(self, tensor: torch.Tensor, row: Row, version: int | None, address: int) -> None:
        index = tensor.get_device()
        rows = self._devices.get(index) or self._new_device(index, tensor.device)
        # Autograd may take over a gradient that has no other owner, but never with gradients on.
        if rows.add(tensor if _is_grad_enabled() else tensor.detach(), row, version, address) or not self.may_wait:
            with self._lock:
                rows.launch()

    def _new_device(self, index: int, device: torch.device) -> DeviceRows:
        with self._lock:
            if index not in self._devices:
                self._devices[index] = DeviceRows(device, values=self._values, digest=self._digest, sketch=self._sketch)
            return self._devices[index]

    def settle(self) -> None:
        """Memory is about to change: measure all waiting tensors now."""
        for rows in self._devices.values():
            if rows.waiting:
                with self._lock, silence():
                    rows.launch()

    def forget(self) -> None:
        """Memory may have changed without a new version: reuse no row from before."""
        self.settle()
        self._notes = {}
        self._numbers.clear()
        self._notes = {}  # another thread may have noted something meanwhile

    def forget_storage(self, tensor: torch.Tensor) -> None:
        """One tensor's memory may change without a new version."""
        self.settle()
        with silence():
            if type(tensor) in (torch.Tensor, _parameter_type) and tensor.layout is torch.strided:
                self._numbers.renumber(tensor.untyped_storage())

    @property
    def deferred(self) -> bool:
        """Whether results are still on a device."""
        return bool(self._devices)

    def collect(self) -> Callable[[], None] | None:
        """End of a stretch: forget everything; returns the job that fills rows from the device."""
        self.forget()
        with self._lock, silence():
            jobs = [rows.collect() for rows in self._devices.values()]

        def fill() -> None:
            for job in jobs:
                job()

        return fill if jobs else None

    def let_go(self) -> None:
        """This process is a forked child: tensors that wait for a device are the parent's and must not be freed."""
        _inherited.append(self._devices)
        self._devices = {}
        self._lock = threading.RLock()

    def _purge(self) -> None:
        standing = self._numbers.purge()
        self._notes = {key: note for key, note in self._notes.items() if key[0] in standing}


def _resolved(tensor: torch.Tensor) -> torch.Tensor:
    """The values as the program sees them; memory may hold their negatives or conjugates."""
    return tensor.detach().resolve_conj().resolve_neg()


# A function mode that records nothing: it makes sure that waiting tensors are measured before they are written to.

_INSIDE_BACKWARD = ("_tensor_or_tensors_to_tuple", "_make_grads", "_engine_run_backward")


def _modes() -> list[Any]:
    """The function modes of this thread, the outermost first."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    modes.reverse()
    for mode in modes:
        _push_mode(mode)
    return modes


class WatchMode(TorchFunctionMode):  # type: ignore[misc]  # torch is not followed by mypy
    """Settles before calls that write. Backward passes run under it too, on whatever thread the engine uses."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder
        self._effects: dict[Any, int] = {}
        self._gradients = True
        self.attached = self.leaving = False
        self.aside = 0
        self._removed = False
        self._resting: tuple[int, int] | None = None  # the modes beneath its place, and the thread that has it
        self._left: tuple[list[Any], int] = [], 0  # the program's modes when it left, and how many of them were beneath

    def attach(self) -> None:
        """Become the innermost mode, or, from one step to the next, be where this mode was: a mode that the program has
        entered since leaves from the top of the stack."""
        if self.leaving:
            self.detach()
        modes, beneath = self._left
        others = _modes()
        same = len(modes) == len(others) and all(map(is_, modes, others))
        above = [_pop_mode() for _ in range(len(others) - beneath)] if same else []
        for mode in (self, *reversed(above)):
            _push_mode(mode)
        self._left = [], 0
        self.attached = True

    def detach(self) -> None:
        """Leave the stack of modes for good. A backward pass puts the stack back when it ends: then again."""
        self.aside = 0
        self._removed = False
        self._resting = None
        if self.attached or self.leaving:
            self._leave()
            self.attached = False
            self.leaving = torch._C._current_graph_task_id() >= 0

    def _leave(self) -> int:
        """Leave the stack of modes, wherever in it this mode is by now; gives the number of those beneath, or -1."""
        above = []
        found = False
        while torch._C._len_torch_function_stack() and not found:
            above.append(_pop_mode())
            found = above[-1] is self
        beneath: int = torch._C._len_torch_function_stack()
        for mode in reversed(above[:-1] if found else above):
            _push_mode(mode)
        self._left = (_modes(), beneath) if found else ([], 0)
        return beneath if found else -1

    def rest(self) -> None:
        """Leave the stack of modes until a module is called. Meanwhile no tensor waits, so no call need be seen: half
        of a step's calls only read gradients and parameters in an optimizer's loops."""
        if type(self) is not WatchMode or not self.attached or self.aside or self._recorder.graph.waiting:
            return
        if torch._C._current_graph_task_id() >= 0:  # an optimizer that steps while gradients are computed
            return
        self._recorder.registry.forget()
        beneath = self._leave()
        if beneath >= 0:
            self._resting = beneath, threading.get_ident()
            self.attached = self._recorder.registry.may_wait = False

    def wake(self) -> None:
        """A module is called: be where this mode was. Modes above it are the program's, which leave from the top."""
        if self._resting is None or torch._C._current_graph_task_id() >= 0:  # a pass puts the stack back when it ends
            return
        beneath, thread = self._resting
        if thread != threading.get_ident():
            return
        self._resting = None
        self._recorder.registry.forget()
        self._recorder.registry.may_wait = True
        if self.aside:
            self._removed = True
            return
        above = [_pop_mode() for _ in range(torch._C._len_torch_function_stack() - beneath)]
        for mode in (self, *reversed(above)):
            _push_mode(mode)
        self.attached = True

    def step_aside(self) -> None:
        """A compiled region begins: it must not see the mode, or it would be compiled anew. Regions may be nested."""
        self._recorder.work("measuring", self._recorder.registry.settle)  # its writes go unseen
        self.aside += 1
        if self.aside == 1 and self.attached and self._leave() >= 0:
            self._removed = True
            self.attached = False

    def step_back(self) -> None:
        """The compiled region ended."""
        self.aside = max(0, self.aside - 1)
        if not self.aside and self._removed:
            self._removed = False
            self.attach()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            effect = self._effects.get(func)
            if effect is None or _is_grad_enabled() is not self._gradients:
                effect = self.effect(func)
        except Exception as error:
            self._recorder.trouble("looking a function up", error)
            effect = UNSEEN
        if not effect:  # PLAIN
            if not kwargs:
                return func(*args)
        elif effect >= UNSEEN:
            return self.pass_on(effect, func, args, kwargs or {})
        self.settle_before(effect, args, kwargs)
        return func(*args, **kwargs) if kwargs else func(*args)

    def effect(self, func: Any) -> int:
        """What the function does to memory. Also notices where gradients are switched off: the forward of a custom
        autograd function begins like this, and its kernels may write to their inputs."""
        gradients = torch.is_grad_enabled()
        if gradients is not self._gradients:
            self._gradients = gradients
            if not gradients:
                self._recorder.registry.settle()
        effect = self._effects.get(func)
        if effect is None:
            effect = self._effects[func] = effect_of(func)
        return effect

    def settle_before(self, effect: int, args: Any, kwargs: Any) -> None:
        """Measure waiting tensors if the call writes; reuse no row of memory that the call hands out."""
        try:
            if effect == WRITES or (kwargs and writes_by_keyword(kwargs)):
                self._recorder.registry.settle()
            elif effect == REACHES and args and isinstance(args[0], torch.Tensor):
                self._recorder.registry.forget_storage(args[0])
        except Exception as error:
            self._recorder.trouble("measuring what is about to be written", error)

    def pass_on(self, effect: int, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls that run other code or leave no trace: backward, collectives, foreign operators that write."""
        if effect == BACKWARD:
            if torch._C._len_torch_function_stack():
                return func(*args, **kwargs)
            if func is torch.Tensor.backward:
                return self._run_backward(*args, **kwargs)
            return self._run_engine(*args, **kwargs)
        work, forget = self._recorder.work, self._recorder.registry.forget
        work("measuring before a call that writes", forget)
        try:
            return func(*args, **kwargs)
        finally:
            work("measuring after a call that writes", forget)

    def _run_backward(
        self, tensor: torch.Tensor, gradient: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
        inputs: Any = None,
    ) -> None:  # fmt: skip
        # What Tensor.backward does, with this mode on: what backward recomputes is seen as well.
        with self:
            torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)

    def _run_engine(
        self, tensors: Any, grad_tensors: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
        inputs: Any = None, **more: Any,
    ) -> None:  # fmt: skip
        # What torch.autograd.backward does after asking the modes (it asks from 2.12 on), with this mode on.
        autograd: Any = torch.autograd
        if more or not all(hasattr(autograd, name) for name in _INSIDE_BACKWARD):
            options = {"retain_graph": retain_graph, "create_graph": create_graph, "inputs": inputs, **more}
            autograd.backward(tensors, grad_tensors, **options)
            return
        given = autograd._tensor_or_tensors_to_tuple(grad_tensors, len(tensors))
        gradients = autograd._make_grads(tensors, given, is_grads_batched=False)
        keep = create_graph if retain_graph is None else retain_graph
        with self:
            autograd._engine_run_backward(
                tensors, gradients, keep, create_graph, inputs or (), allow_unreachable=True, accumulate_grad=True
            )

    def custom(self, _api: Any, func: Any, args: Any, kwargs: Any, _frame: Any) -> Any:
        """A function that was registered by hand: this mode records none."""
        return func(*args, **kwargs)
