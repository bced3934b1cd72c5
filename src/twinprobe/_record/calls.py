"""Calls of modules and APIs while they run: numbered, noted before and after, who encloses whom, from which lines."""

from __future__ import annotations

import dataclasses
import difflib
import linecache
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from twinprobe._record.config import RecordConfig
from twinprobe._record.entries import without_values

CORE, FOCUS, LOW, MINOR = 0, 1, 2, 3
Names = frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class Api:
    """A function that is recorded: ``Functional.linear.``, how much it matters, whether it writes to its arguments.

    The results of a ``collective`` are its arguments, as they are afterwards.
    """

    prefix: str
    rank: int
    in_place: bool = False
    collective: bool = False


@dataclass(frozen=True, slots=True)
class Site:
    """Where a function is found: an attribute of a module or a class, and what it is called in a dump."""

    owner: Any
    attribute: str
    original: Any
    api: Api


def wanted_ranks(config: RecordConfig) -> tuple[int, int]:
    """Up to which rank calls are recorded, and up to which they are numbered and shown in the tree."""
    wanted = MINOR if config.scope or config.names else {"ALL": MINOR, "FOCUS": FOCUS, "CORE": CORE}[config.risk_level]
    return wanted, max(wanted, LOW)


def words(text: str) -> Names:
    """The words of a text."""
    return frozenset(text.split())


# Matrix products, convolutions, normalisation, embedding, attention: risk level CORE keeps only these.
CORE_NAMES = words(
    """
    matmul __matmul__ bmm addmm addmm_ addbmm addbmm_ baddbmm baddbmm_ mm mv addmv addmv_ addr addr_ chain_matmul
    einsum conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution
    _convolution linear bilinear linalg.matmul linalg.multi_dot linalg.vecdot batch_norm instance_norm
    layer_norm rms_norm group_norm local_response_norm embedding embedding_bag multi_head_attention_forward
    scaled_dot_product_attention _fused_adam_ _fused_adamw_ lstm gru rnn_tanh rnn_relu
    """
)
# Calls that move, cast or create values without computing: numbered and shown in the tree, recorded under ALL only.
LOW_NAMES = words(
    """
    squeeze unsqueeze reshape reshape_as view_as flatten unflatten expand expand_as repeat repeat_interleave tile
    transpose permute moveaxis movedim swapaxes swapdims chunk unsafe_chunk split split_with_sizes unsafe_split
    unsafe_split_with_sizes tensor_split hsplit vsplit dsplit unbind stack cat concat concatenate hstack vstack
    dstack column_stack row_stack align_as align_to atleast_1d atleast_2d atleast_3d ravel clamp unfold type_as
    to float double int long half bfloat16 byte char bool cfloat numpy full full_like arange linspace logspace
    eye diag diagflat diag_embed triu tril triu_indices tril_indices __bool__
    """
)
# The same, met so often that even the tree leaves them out unless ALL is asked for.
MINOR_NAMES = words(
    """
    view contiguous __getitem__ detach detach_ clone select narrow squeeze_ unsqueeze_ transpose_ t_ t adjoint mT
    view_as_real view_as_complex as_strided as_strided_ as_tensor tensor from_numpy empty empty_like
    empty_strided zeros zeros_like ones ones_like new_tensor new_empty new_zeros new_ones new_full rand randn
    randint randperm rand_like randn_like randint_like diagonal broadcast_to broadcast_tensors meshgrid cpu cuda
    pin_memory alias lift_fresh resolve_conj resolve_neg positive real imag hsplit scalar_tensor zero_
    _foreach_zero_
    """
)
# Questions about a tensor and bookkeeping of the framework: no call at all, as far as a dump is concerned.
NEVER_NAMES = words(
    """
    __get__ __set__ __delete__ __len__ __repr__ __str__ __format__ __hash__ __deepcopy__ __reduce_ex__ __iter__
    __contains__ __array__ __setstate__ __dir__ __index__ __int__ __float__ __complex__ __sizeof__ __dlpack__
    __dlpack_device__ size dim ndimension numel nelement stride storage_offset element_size is_contiguous
    is_complex is_floating_point is_signed is_same_size is_coalesced is_inference is_conj is_neg is_pinned
    is_shared is_set_to get_device data_ptr storage untyped_storage type item tolist has_names names_
    requires_grad_ register_hook register_post_accumulate_grad_hook retain_grad backward grad is_tensor
    is_storage is_nonzero equal allclose broadcast_shapes result_type can_cast promote_types typename
    get_default_dtype set_default_dtype is_grad_enabled set_grad_enabled _set_grad_enabled
    is_inference_mode_enabled is_autocast_enabled manual_seed get_rng_state set_rng_state initial_seed seed set_
    resize_ resize_as_ share_memory_ record_stream compile _is_view _assert _assert_async sym_int sym_float
    sym_max sym_min iinfo finfo uniform_ normal_ constant_ kaiming_uniform_ kaiming_normal_ xavier_uniform_
    xavier_normal_ trunc_normal_ _to_functional_tensor _has_compatible_shallow_copy_type _make_subclass
    _reduce_ex_internal dim_order __subclasscheck__ __instancecheck__ _amp_update_scale_
    _group_tensors_by_device_and_dtype
    """
)
# Calls that may change an argument although their name does not say so: running statistics, renormalised weights.
IMPURE_NAMES = words("batch_norm instance_norm native_batch_norm embedding embedding_bag set_")


def rank_of(name: str, core: Names = CORE_NAMES, low: Names = LOW_NAMES, minor: Names = MINOR_NAMES) -> int:
    """How much calls of a function matter; ``linalg.norm`` counts as ``norm`` where it is not named itself."""
    bare = name.rpartition(".")[2]
    return CORE if name in core else LOW if bare in low else MINOR if bare in minor else FOCUS


# Which calls are wanted: scope and list, matched by name.

_MODULE_KINDS = ("Module.", "Cell.", "Layer.")


class NameFilter:
    """Decides by full name whether a call is recorded, and remembers which list entries ever matched."""

    def __init__(self, config: RecordConfig) -> None:
        self._scope = config.scope
        self._names = config.names
        self._tensors = config.tensor_names
        self._unmatched = set(config.names) | set(config.tensor_names) | set(config.scope or ())
        self._inside_scope = False
        self._seen: dict[str, None] = {}
        self._watching = bool(self._unmatched)
        self.everything = not (config.scope or config.names)
        self.takes_all = not self._watching  # and no name needs a look

    def entering(self, name: str) -> None:
        """A call begins: the first name of the scope opens it."""
        if self._scope and name == self._scope[0]:
            self._inside_scope = True
            self._unmatched.discard(name)

    def leaving(self, name: str) -> None:
        """A call ended: the last name of the scope closes it."""
        if self._scope and name == self._scope[1]:
            self._inside_scope = False
            self._unmatched.discard(name)

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Whether this call is recorded; ``ancestors`` are the enclosing module calls, innermost first."""
        if self._watching:
            if len(self._seen) < 20_000:
                self._seen[name] = None
            if self._unmatched:
                self._unmatched = {entry for entry in self._unmatched if entry not in name}
        if self.everything:
            return True
        if self._scope:
            return self._inside_scope
        chain = tuple(ancestors)  # walked once per entry of the list
        return any(
            entry in name or (entry.startswith(_MODULE_KINDS) and any(entry in ancestor for ancestor in chain))
            for entry in self._names
        )

    def wants_tensors(self, name: str) -> bool:
        """Whether tensor_list asks for this call's real tensors."""
        return bool(self._tensors) and any(entry in name for entry in self._tensors)

    def complaints(self) -> list[str]:
        """One sentence per entry of scope, list or tensor_list that never matched, with the nearest names."""
        lines = []
        for name in sorted(self._unmatched):
            near = difflib.get_close_matches(name, self._seen, n=3, cutoff=0.3)
            hint = f"; nearest: {', '.join(near)}" if near else ""
            lines.append(f"'{name}' matched no call{hint}")
        return lines


@dataclass(slots=True, eq=False)
class ModuleInfo:
    """A watched module and the front of its names: ``Module.layers.0.Linear.``."""

    module: Any
    prefix: str
    compiled: bool = False
    whole: bool = False  # nothing inside it is recorded
    closed: bool = False  # no API call directly inside it is recorded


class ModuleCall:
    """One call of a module while it runs."""

    __slots__ = (
        "backward", "depth", "error", "frame", "info", "name", "number", "parent", "parts", "stack", "watch", "whole",
    )  # fmt: skip

    def __init__(self, info: ModuleInfo, number: int, parent: ModuleCall | None) -> None:
        self.info = info
        self.number = number
        self.name = f"{info.prefix}forward.{number}"
        self.backward = f"{info.prefix}backward.{number}"
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.parts: dict[str, Any] | None = None
        self.watch: Any = None  # waits for its gradients
        self.stack: Stack | None = None
        self.frame = 0
        self.whole = False
        self.error: BaseException | None = None  # the one being handled when the call began

    def chain(self) -> Iterator[str]:
        """This call's name and those of the enclosing calls, innermost first."""
        call: ModuleCall | None = self
        while call is not None:
            yield call.name
            call = call.parent

    def ancestors(self) -> Iterator[str]:
        """Names of the enclosing module calls, innermost first."""
        return self.parent.chain() if self.parent else iter(())


class ModuleWatch:
    """The watched modules of a recorder and their calls under way. How calls are seen is each framework's own."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.infos: dict[int, ModuleInfo] = {}  # by the id of a module
        self.calls: list[ModuleCall] = []
        self._token = -1

    def watch_models(self, models: list[Any], several: bool) -> None:
        """Watch every submodule; ``several`` puts the model's position into the names. The models themselves are not
        recorded, only what is inside."""
        recorder = self._recorder
        for position, model in enumerate(models):
            front = f"{recorder.container}.{position}." if several else f"{recorder.container}."
            for path, module, compiled in recorder.watched_modules(model):
                if id(module) not in self.infos:
                    self.watch(module, f"{front}{path}.{class_name(module)}.", compiled)

    def watch(self, module: Any, prefix: str, compiled: bool = False) -> ModuleInfo:
        """Watch one module under the given name."""
        info = self.infos[id(module)] = ModuleInfo(module, prefix, compiled)
        return info

    def watch_whole(self, module: Any, name: str) -> None:
        """Record one module as a whole: nothing inside it is recorded."""
        prefix = f"{self._recorder.container}.{name}.{class_name(module)}."
        info = self.infos.get(id(module)) or self.watch(module, prefix)
        info.prefix, info.whole = prefix, True

    def end_whole(self) -> None:
        """From here on modules are recorded with what is inside them."""
        for info in self.infos.values():
            info.whole = False

    def _enter(self, call: ModuleCall, args: Any, kwargs: Any, frame: FrameType) -> None:
        recorder = self._recorder
        recorder.link(call.name, call.parent.name if call.parent else recorder.loose_parent(), call.backward)
        if not recorder.takes_all:
            recorder.engine.filter.entering(call.name)
        if recorder.forward and recorder.wants(call.name, () if recorder.takes_all else call.ancestors()):
            # The frames outside the module are shared by all calls inside it, so they are walked once.
            base, stop = (call.parent.stack, call.parent.frame) if call.parent else (None, 0)
            call.stack = recorder.engine.stack(call.name, frame, base, stop)
            call.parts = {}
            if recorder.inputs:
                call.parts["input_args"] = recorder.capture.items(args)
                call.parts["input_kwargs"] = recorder.capture.mapping(kwargs) if kwargs else {}
                call.parts["parameters"] = recorder.parameters_of(call.info)
        if recorder.backward and recorder.grad_enabled():
            call.watch = recorder.before_call(call.backward, args, kwargs, False)

    def _leave(self, call: ModuleCall, output: Any, failed: bool) -> None:
        recorder = self._recorder
        if call.parts is not None:
            if not recorder.takes_all:
                recorder.wants(call.name, call.ancestors())  # sets again whether tensors are kept
            if recorder.outputs and not failed:
                items = output if isinstance(output, tuple) and not hasattr(output, "_fields") else (output,)
                call.parts["output"] = recorder.capture.items(items)
            recorder.emit_forward(call.name, call.parts)
        if call.watch is not None:
            if failed:
                recorder.call_failed(call.watch)
            else:
                recorder.after_call(call.backward, call.watch, output, call.depth)
        if not recorder.takes_all:
            recorder.engine.filter.leaving(call.name)


def class_name(module: Any) -> str:
    """The class of a module, or of the one that was compiled into it."""
    inside: Any = module.__dict__.get("_modules", ())  # asking the module itself is slow
    return type(inside["_orig_mod"] if "_orig_mod" in inside else module).__name__  # noqa: SIM401  not all have get()


def outside_compiled(
    named: Iterator[tuple[str, Any]], is_compiled: Callable[[Any], bool]
) -> Iterator[tuple[str, Any, bool]]:
    """The modules to watch: path, module, and whether it is the boundary of a compiled region, inside which nothing is
    seen. The model itself, whose path is empty, is left out."""
    inside: list[str] = []
    for path, module in named:
        if not path or any(path.startswith(f"{boundary}.") for boundary in inside):
            continue
        compiled = is_compiled(module)
        if compiled:
            inside.append(path)
        yield path, module, compiled


class ApiCall:
    """One call of an API."""

    __slots__ = ("_api", "_backward", "_frame", "_name", "_recorder", "parts", "watch")

    def __init__(self, recorder: Any, api: Api, frame: FrameType) -> None:
        self._recorder = recorder
        self._api = api
        self._frame = frame
        stub = f"{api.prefix}{recorder.engine.count(api.prefix)}"
        self._name, self._backward = f"{stub}.forward", f"{stub}.backward"
        self.parts: dict[str, Any] | None = None
        self.watch: Any = None  # waits for its gradients

    def before(self, args: Any, kwargs: Any) -> None:
        """Note arguments and prepare for their gradients."""
        recorder, api = self._recorder, self._api
        calls = recorder.modules.calls
        enclosing = calls[-1] if calls else None
        name = self._name
        recorder.link(name, enclosing.name if enclosing else recorder.loose_parent(self._frame), self._backward)
        if api.rank > recorder.wanted_rank:
            return
        engine = recorder.engine
        if not recorder.takes_all:
            engine.filter.entering(name)
        if recorder.forward and recorder.wants(
            name, enclosing.chain() if enclosing and not engine.filter.everything else ()
        ):
            parts = self.parts = {}
            if enclosing and enclosing.stack:
                engine.stack(name, self._frame, enclosing.stack, enclosing.frame)
            else:
                engine.stack(name, self._frame)
            if recorder.inputs:
                capture = recorder.capture
                parts["input_args"] = capture.items(args)
                parts["input_kwargs"] = capture.mapping(kwargs) if kwargs else {}
                recorder.mark_layouts(api.prefix, parts["input_args"], parts["input_kwargs"])
        if recorder.backward and recorder.grad_enabled():
            self.watch = recorder.before_call(self._backward, args, kwargs, api.in_place)

    def after(self, output: Any, pending: bool = False) -> None:
        """Note the result and wait for its gradients. What is ``pending`` is still being written."""
        recorder = self._recorder
        if self.parts is not None:
            if recorder.outputs:
                captured = recorder.capture.items(recorder.output_items(output))
                self.parts["output"] = without_values(captured) if pending else captured
            self.emit()
        if not recorder.takes_all:
            recorder.engine.filter.leaving(self._name)
        if self.watch is not None:
            recorder.after_call(self._backward, self.watch, output)

    def emit(self) -> None:
        """Hand over what is known; of a call that raised, that is what went in."""
        if self.parts is not None:
            self._recorder.emit_forward(self._name, self.parts)


# Tensors inside nested arguments: found in the order in which they are recorded, or replaced where they stand.

_DEPTH_LIMIT = 400
SCALARS = frozenset({int, float, bool, str, type(None)})
_CONTAINERS = frozenset({list, tuple, dict})


def tensors_in(value: Any, kind: type, found: list[Any], depth: int = 0) -> list[Any]:
    """Append every tensor inside ``value``; ``kind`` is the framework's class of tensors."""
    if type(value) in SCALARS:
        return found
    if isinstance(value, kind):
        found.append(value)
    elif depth < _DEPTH_LIMIT:
        if isinstance(value, list | tuple):
            for item in value:
                tensors_in(item, kind, found, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                tensors_in(getattr(value, field.name, None), kind, found, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                tensors_in(item, kind, found, depth + 1)
    return found


def replaced(value: Any, swap: Callable[[Any], Any]) -> Any:
    """``value`` with ``swap`` applied to what is no list, tuple or dict; the same object where nothing changed."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is list or kind is tuple:
        items = None  # a new list only where something changes
        for index, item in enumerate(value):
            inner = type(item)
            if inner in SCALARS:
                continue
            new = replaced(item, swap) if inner in _CONTAINERS else swap(item)
            if new is not item:
                if items is None:
                    items = list(value)
                items[index] = new
        return value if items is None else kind(items)
    if kind is dict:
        if not value:
            return value
        pairs = {key: replaced(item, swap) for key, item in value.items()}
        return pairs if any(pairs[key] is not item for key, item in value.items()) else value
    return swap(value)


# Call stacks: a few integers while the step runs, text once per distinct stack when it is written.

_texts: dict[tuple[int, int], tuple[CodeType, str]] = {}  # hashing a code object itself is slow
_FAILED = "the call stack could not be read"


class Stack:
    """One distinct call stack: its own frames, then those of ``base``."""

    __slots__ = ("base", "frames", "names")

    def __init__(self, frames: list[tuple[CodeType, int]], base: Stack | None) -> None:
        self.frames = frames
        self.base = base
        self.names: list[str] = []


class StackTable:
    """Which calls came from which stack. Frames of files under ``hidden`` are left out."""

    def __init__(self, hidden: tuple[str, ...]) -> None:
        self._hidden = hidden
        self._stacks: dict[tuple[int, ...], Stack] = {}

    def place(self, frame: FrameType | None, base: Stack | None = None, stop: int = 0, *, apart: bool = False) -> Stack:
        """The stack of a frame. The walk ends at the frame with id ``stop`` and goes on with ``base``, its stack.

        ``apart``: what it has as its base is the stack of all frames but the first, which calls inside share.
        """
        places = [id(base)]
        outer = frame
        while outer is not None and id(outer) != stop:
            places += id(outer.f_code), outer.f_lasti  # hashing a code object itself is slow
            outer = outer.f_back
        if outer is None:
            base = None
            places[0] = 0
        if apart:
            places.append(0)
        key = tuple(places)
        stack = self._stacks.get(key)
        if stack is None:
            if apart and frame is not None:
                base, outer = self.place(frame.f_back, base, stop), frame.f_back
            frames = []
            while frame is not None and frame is not outer:
                frames.append((frame.f_code, frame.f_lasti))
                frame = frame.f_back
            stack = self._stacks[key] = Stack(frames, base)
        return stack

    def to_json(self) -> dict[str, Any]:
        """The content of stack.json: running number to [names, frames]."""
        texts: dict[tuple[str, ...], list[str]] = {}
        for stack in list(self._stacks.values()):  # the program may go on meanwhile, and with it this table
            if not stack.names:
                continue
            lines = []
            part: Stack | None = stack
            while part is not None:
                frames = [frame for frame in part.frames if not frame[0].co_filename.startswith(self._hidden)]
                lines += [_frame_text(code, instruction) for code, instruction in frames]
                part = part.base
            texts.setdefault(tuple(lines or [_FAILED]), []).extend(stack.names)
        return {str(number): [names, list(lines)] for number, (lines, names) in enumerate(texts.items())}


def _frame_text(code: CodeType, instruction: int) -> str:
    key = (id(code), instruction)
    cached = _texts.get(key)
    if cached is None:
        line = code.co_firstlineno
        for start, end, number in code.co_lines():
            if start <= instruction < end and number is not None:
                line = number
        source = linecache.getline(code.co_filename, line).strip()
        text = f"File {code.co_filename}, line {line}, in {code.co_name}, \n {source}"
        cached = _texts[key] = (code, text)
    return cached[1]
