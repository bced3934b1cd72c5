"""From a recorded name to a function of PyTorch: a table of what may be called, and calls within bounds.

A name from a dump is only ever a key. It is never imported, evaluated or looked up along its dots; what a key leads to
was put into the table from PyTorch's own list of functions that work on tensors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import product
from typing import Any, NamedTuple

from twinprobe._record.calls import NEVER_NAMES, words
from twinprobe._replay.recorded import (
    ROOM,
    UNKNOWN,
    Call,
    CannotReplay,
    FrameworkConstant,
    Slot,
    leaves_in,
    mapped,
    slots_in,
)

# Operators are called by their methods; any other name that begins with an underscore is private.
_OPERATORS = words(
    """
    __add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __rtruediv__ __itruediv__
    __div__ __rdiv__ __idiv__ __floordiv__ __rfloordiv__ __ifloordiv__ __mod__ __rmod__ __imod__ __pow__ __rpow__
    __ipow__ __matmul__ __rmatmul__ __neg__ __pos__ __abs__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__
    __xor__ __rand__ __ror__ __rxor__ __invert__ __getitem__ __lshift__ __rshift__
    """
)
# Functions that give memory away, take files, code or other tensors' memory, or are entries to single libraries.
_REFUSED = NEVER_NAMES | words(
    """
    numpy apply_ map_ map2_ from_file frombuffer load save set_ resize_ resize_as_ as_strided as_strided_ share_memory_
    to_mkldnn data cuda npu xpu cpu pin_memory module_load new_empty empty_like new_empty_strided new tensor as_tensor
    asarray from_dlpack to_dense to_sparse sparse_resize_ sparse_resize_and_clear_ sparse_mask new_tensor
    rnn_tanh rnn_relu lstm gru const_data_ptr resize resize_as resize_as_sparse_ storage_type ipu mtia
    """
)
# Functions that PyTorch's list leaves out since they only call a method.
_MORE = words("hardsigmoid hardswish sigmoid tanh relu_ elu_ selu_ celu_ leaky_relu_ hardtanh_ threshold_ upsample")
_LIBRARIES = ("fbgemm_", "quantized_", "mkldnn_", "miopen_", "cudnn_", "q_", "sym_", "fake_quantize", "fused_moving")
_FORMATS = ("contiguous_format", "channels_last", "channels_last_3d", "preserve_format")
_SLACK, _THREAD = 128 << 20, 16 << 20  # bytes that a call may need beside its tensors, and each thread
_SPACES = {"Functional": "torch.nn.functional", "Torch": "torch", "Tensor": "torch.Tensor"}


class Function(NamedTuple):
    """A function that may be called, and how a script of the user would write it."""

    run: Callable[..., Any]
    written: str


@cache
def allowed() -> dict[str, Function]:
    """All functions of PyTorch that may be called, by their recorded names without the number: ``Functional.gelu``."""
    import torch
    from torch.overrides import get_overridable_functions

    overridable = get_overridable_functions()
    spaces: list[tuple[str, str, Any]] = [
        ("Functional", "", torch.nn.functional), ("Torch", "", torch), ("Tensor", "", torch.Tensor),
        ("Torch", "linalg.", torch.linalg), ("Torch", "fft.", torch.fft), ("Torch", "special.", torch.special),
    ]  # fmt: skip
    functions = {id(function) for listed in overridable.values() for function in listed}
    table: dict[str, Function] = {}
    for kind, front, space in spaces:
        for name in dir(space):
            function = getattr(space, name, None)
            private = name.startswith("_") and not (kind == "Tensor" and name in _OPERATORS)
            listed = id(function) in functions or (kind == "Functional" and name in _MORE)
            if private or not listed or not callable(function) or name in _REFUSED or name.startswith(_LIBRARIES):
                continue
            table[f"{kind}.{front}{name}"] = Function(function, f"{_SPACES[kind]}.{front}{name}")
    return table


class Bound(NamedTuple):
    """A function with the recorded arguments, which are still Slots and plain values."""

    function: Function
    args: list[Any]
    kwargs: dict[str, Any]


def with_slots(bound: Bound, arriving: list[Any], change: Callable[[Slot], Slot]) -> tuple[Bound, list[Any]]:
    """The call and the gradients that arrive, with other tensors; one that is given twice stays one."""
    changed: dict[int, Slot] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, Slot) and id(value) not in changed:
            changed[id(value)] = change(value)
        return changed.get(id(value), value)

    made = Bound(bound.function, mapped(bound.args, leaf), mapped(bound.kwargs, leaf))
    return made, mapped(arriving, leaf)


def bind(call: Call) -> list[Bound]:
    """The ways in which a recorded call can be repeated, the likeliest first. CannotReplay where there is none."""
    op = call.op
    if any(leaf is UNKNOWN for leaf in leaves_in((call.args, call.kwargs))):
        # ``x.to(torch.float32)``: recorders leave the dtype out; it is that of the output.
        out = next(slots_in(call.outputs), None)
        if op.body not in ("to", "type") or out is None or call.args[1:] != [UNKNOWN]:
            raise CannotReplay("an argument is of a type that recorders do not write down")
        call.args[1] = FrameworkConstant("dtype", out.dtype)
    framework = call.run.framework.lower()
    if op.is_module or op.cls:
        ways = list(_MODULES[op.cls](call)) if op.cls in _MODULES else []
        if op.cls == "Linear" and framework in ("paddle", "paddlepaddle"):  # its weight is stored [in, out]
            weights = [call.parameters.get("weight"), call.parameters.get("bias")]
            ways = [Bound(_ADAPTED["Paddle.linear"], [*call.args[:1], *weights], {})]
        if not ways:
            inside = "replay the calls inside it" if call.run.level in ("mix", "L1") else "record with level mix"
            raise CannotReplay(f"{op.cls or op.body} is not a module that its parameters alone can rebuild: {inside}")
        return ways
    key = f"{op.prefix}.{op.body}"
    args, kwargs = call.args, call.kwargs
    if framework in _TRANSLATIONS:
        key, args, kwargs = _TRANSLATIONS[framework](key, args, kwargs)
    function = allowed().get(key) or _ADAPTED.get(key)
    if function is None:
        raise CannotReplay(f"{op.prefix}.{op.body} is not in the list of functions that may be called")
    ways = [Bound(function, args, kwargs)]
    if op.body == "__getitem__" and len(args) == 2 and isinstance(args[1], list):
        ways.insert(0, Bound(function, [args[0], tuple(args[1])], kwargs))  # x[a, b] and x[[a, b]] are recorded alike
    return ways


# Modules of torch.nn by their class and recorded parameters. What a constructor was given is not in a dump: where it
# matters, the usual values are tried, and the one that golden's own output confirms is taken.

_EPSILONS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)


def _unary(name: str, *settings: dict[str, Any]) -> Callable[[Call], Iterator[Bound]]:
    """A module that is one function of its input and has no parameters."""

    def ways(call: Call) -> Iterator[Bound]:
        for chosen in settings or ({},):
            yield Bound(allowed()[f"Functional.{name}"], call.args[:1], dict(chosen))

    return ways


def _weighted(name: str) -> Callable[[Call], Iterator[Bound]]:
    def ways(call: Call) -> Iterator[Bound]:
        weight, bias = call.parameters.get("weight"), call.parameters.get("bias")
        if isinstance(weight, Slot) and call.args:
            args = [call.args[0], weight] + ([bias] if name != "embedding" else [])
            yield Bound(allowed()[f"Functional.{name}"], args, {})

    return ways


def _norm(name: str, *, bias: bool) -> Callable[[Call], Iterator[Bound]]:
    def ways(call: Call) -> Iterator[Bound]:
        weight = call.parameters.get("weight")
        function = allowed().get(f"Functional.{name}")
        given = next(slots_in(call.args), None)
        if function is None or given is None:
            return
        shape = list(weight.shape) if isinstance(weight, Slot) else [given.shape[-1]]
        for epsilon in _EPSILONS:
            offset = {"bias": call.parameters.get("bias")} if bias else {}
            yield Bound(function, [call.args[0], shape], {"weight": weight, **offset, "eps": epsilon})

    return ways


def _group_norm(call: Call) -> Iterator[Bound]:
    given = next(slots_in(call.args), None)
    if given is None or len(given.shape) < 2:
        return
    groups = [count for count in (32, 1, 2, 4, 8, 16, 64, given.shape[1]) if count and given.shape[1] % count == 0]
    for count, epsilon in product(dict.fromkeys(groups), _EPSILONS[:2]):
        weights = {key: call.parameters.get(key) for key in ("weight", "bias")}
        yield Bound(allowed()["Functional.group_norm"], [call.args[0], count], {**weights, "eps": epsilon})


def _convolution(name: str) -> Callable[[Call], Iterator[Bound]]:
    def ways(call: Call) -> Iterator[Bound]:
        weight = call.parameters.get("weight")
        out, given = next(slots_in(call.outputs), None), next(slots_in(call.args), None)
        if not isinstance(weight, Slot) or out is None or given is None or len(given.shape) != len(weight.shape):
            return
        groups = given.shape[1] // max(weight.shape[1], 1)
        sizes = list(zip(given.shape[2:], weight.shape[2:], out.shape[2:], strict=True))
        for stride, dilation in product((1, 2, 4, 3, 8, 14, 16, 32), (1, 2, 4)):
            pads = []
            for size, kernel, wanted in sizes:
                fits = [pad for pad in range(dilation * kernel)
                        if (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 == wanted]  # fmt: skip
                pads.append(fits[:2])
            for padding in product(*pads):
                settings = {"stride": stride, "padding": list(padding), "dilation": dilation, "groups": groups}
                args = [call.args[0], weight, call.parameters.get("bias")]
                yield Bound(allowed()[f"Functional.{name}"], args, settings)

    return ways


_MODULES: dict[str, Callable[[Call], Iterator[Bound]]] = {
    "Linear": _weighted("linear"), "NonDynamicallyQuantizableLinear": _weighted("linear"),
    "Embedding": _weighted("embedding"),
    "LayerNorm": _norm("layer_norm", bias=True), "RMSNorm": _norm("rms_norm", bias=False), "GroupNorm": _group_norm,
    "Conv1d": _convolution("conv1d"), "Conv2d": _convolution("conv2d"), "Conv3d": _convolution("conv3d"),
    "GELU": _unary("gelu", {}, {"approximate": "tanh"}), "SiLU": _unary("silu"), "ReLU": _unary("relu"),
    "ReLU6": _unary("relu6"), "Sigmoid": _unary("sigmoid"), "Tanh": _unary("tanh"), "Mish": _unary("mish"),
    "Softplus": _unary("softplus"), "Hardswish": _unary("hardswish"), "Hardsigmoid": _unary("hardsigmoid"),
    "ELU": _unary("elu"), "SELU": _unary("selu"), "Softsign": _unary("softsign"), "LogSigmoid": _unary("logsigmoid"),
    "LeakyReLU": _unary("leaky_relu", {}, {"negative_slope": 0.2}, {"negative_slope": 0.1}),
    "Softmax": _unary("softmax", {"dim": -1}, {"dim": 1}, {"dim": 0}),
    "LogSoftmax": _unary("log_softmax", {"dim": -1}, {"dim": 1}, {"dim": 0}),
}  # fmt: skip


# Calls of the other frameworks, translated to PyTorch: its float64 reference is as good as theirs.

_Translated = tuple[str, list[Any], dict[str, Any]]
# Names with the same meaning and the same order of arguments as in PyTorch.
_FUNCTIONAL = words(
    """
    softmax log_softmax relu relu6 silu mish gelu elu selu softplus hardswish hardsigmoid softsign leaky_relu glu linear
    layer_norm rms_norm group_norm embedding conv1d conv2d conv3d mse_loss l1_loss smooth_l1_loss normalize
    """
)
_ALIKE = _FUNCTIONAL | words(
    """
    abs exp log log1p log2 sqrt rsqrt sin cos tan tanh sigmoid erf floor ceil square reciprocal neg add subtract sub
    multiply mul divide div maximum minimum pow matmul mm bmm addmm baddbmm sum mean prod cumsum logsumexp where cat
    concat stack einsum outer dot mv clamp clip tril triu gather index_select
    """
)
_KEYWORDS = {
    "axis": "dim", "keep_dims": "keepdim", "keepdims": "keepdim", "x": "input", "input_x": "input", "y": "other",
    "epsilon": "eps", "p": "p",
}  # fmt: skip
_RENAMED = {"concat": "cat", "clip": "clamp", "subtract": "sub", "multiply": "mul", "divide": "div", "swish": "silu"}


def _alike(body: str, args: list[Any], kwargs: dict[str, Any]) -> _Translated:
    bare = _RENAMED.get(body, body)
    if bare not in _ALIKE and bare not in _OPERATORS:
        raise CannotReplay(f"{body} is not in the table of calls that have a counterpart in PyTorch")
    space = "Tensor" if bare in _OPERATORS else "Functional" if bare in _FUNCTIONAL else "Torch"
    return f"{space}.{bare}", args, {_KEYWORDS.get(key, key): value for key, value in kwargs.items() if key != "name"}


def _of_mindspore(key: str, args: list[Any], kwargs: dict[str, Any]) -> _Translated:
    kind, _, body = key.partition(".")
    if kind not in ("Mint", "MintFunctional", "Functional", "Tensor"):
        raise CannotReplay(f"{key}: only calls of mint, mint.nn.functional, ops and Tensor are replayed")
    return _alike(body, args, kwargs)


# The arguments of Paddle's functions that are not spelled like PyTorch's, in their order.
_PADDLE = {
    "linear": ("x", "weight", "bias"), "matmul": ("x", "y", "transpose_x", "transpose_y"), "gelu": ("x", "approximate"),
    "layer_norm": ("x", "normalized_shape", "weight", "bias", "epsilon"), "embedding": ("x", "weight"),
    "softmax": ("x", "axis"), "log_softmax": ("x", "axis"),
}  # fmt: skip


def _of_paddle(key: str, args: list[Any], kwargs: dict[str, Any]) -> _Translated:  # noqa: PLR0911  one for each
    kind, _, body = key.partition(".")
    if kind not in ("Paddle", "Functional", "Tensor"):
        raise CannotReplay(f"{key}: only calls of paddle, paddle.nn.functional and Tensor are replayed")
    if body not in _PADDLE:
        return _alike(body, args, kwargs)
    given = dict(zip(_PADDLE[body], args, strict=False)) | kwargs
    x = given.get("x")
    if body == "linear":
        return "Paddle.linear", [x, given.get("weight"), given.get("bias")], {}
    if body == "matmul":
        turned = [bool(given.get(name)) for name in ("transpose_x", "transpose_y")]
        return "Paddle.matmul", [x, given.get("y"), *turned], {}
    if body == "gelu":
        return "Functional.gelu", [x], {"approximate": "tanh" if given.get("approximate") else "none"}
    if body == "embedding":
        return "Functional.embedding", [x, given.get("weight")], {}
    if body == "layer_norm":
        shape = given.get("normalized_shape")
        rest = {"weight": given.get("weight"), "bias": given.get("bias"), "eps": given.get("epsilon", 1e-5)}
        return "Functional.layer_norm", [x, [shape] if isinstance(shape, int) else shape], rest
    return f"Functional.{body}", [x], {"dim": given.get("axis", -1)}


def _turned_product(x: Any, y: Any, x_turned: bool = False, y_turned: bool = False) -> Any:
    return (x.mT if x_turned else x) @ (y.mT if y_turned else y)


def _stored_in_out(x: Any, weight: Any, bias: Any = None) -> Any:
    return x @ weight if bias is None else x @ weight + bias


# What has no function of its own in PyTorch; a script writes it out.
_ADAPTED = {
    "Paddle.linear": Function(_stored_in_out, "(lambda x, w, b=None: x @ w if b is None else x @ w + b)"),
    "Paddle.matmul": Function(
        _turned_product,
        "(lambda x, y, x_turned=False, y_turned=False: (x.mT if x_turned else x) @ (y.mT if y_turned else y))",
    ),
}


def _product(call: Call) -> Iterator[Bound]:
    """MindSpore's MatMul: which operands are transposed is not in a dump, and the result tells it."""
    for turned in product((False, True), repeat=2):
        yield Bound(_ADAPTED["Paddle.matmul"], [*call.args[:2], *turned], {})


def _by_key(key: str, **settings: Any) -> Callable[[Call], Iterator[Bound]]:
    return lambda call: iter([Bound(allowed()[key], call.args, dict(settings))])


# MindSpore's primitives and cells, by class.
_MODULES |= {
    "Dense": _weighted("linear"), "MatMul": _product, "BatchMatMul": _product, "Add": _by_key("Torch.add"),
    "Sub": _by_key("Torch.sub"), "Mul": _by_key("Torch.mul"), "RealDiv": _by_key("Torch.div"),
    "BiasAdd": _by_key("Torch.add"), "Exp": _by_key("Torch.exp"), "Rsqrt": _by_key("Torch.rsqrt"),
    "Sqrt": _by_key("Torch.sqrt"), "Square": _by_key("Torch.square"),
    "GeLU": _unary("gelu", {"approximate": "tanh"}, {}),
}  # fmt: skip


_TRANSLATIONS: dict[str, Callable[[str, list[Any], dict[str, Any]], _Translated]] = {
    "mindspore": _of_mindspore, "paddle": _of_paddle, "paddlepaddle": _of_paddle,
}  # fmt: skip


# Running a function within bounds.


def run_bound(
    bound: Bound, arriving: Sequence[Any], *, reference: bool, device: str = "cpu", seed: int = 0, room: int = ROOM
) -> tuple[list[Any], list[Any]]:
    """The results of a call, and the gradients of its floating-point inputs (none without ``arriving``).

    The gradient of an input that needs none is None.
    """
    import torch

    leaves: dict[int, Any] = {}  # by the id of a Slot, since one may be given twice
    backward = any(isinstance(slot, Slot) for slot in arriving)

    def argument(leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            tensor = _wide(leaf.value) if reference else leaf.value
            if not (backward and (tensor.is_floating_point() or tensor.is_complex())):
                return tensor.to(device, copy=True)
            own = leaves.setdefault(id(leaf), tensor.to(device, copy=True).requires_grad_(leaf.requires_grad))
            return own.clone()  # a call may write into its input
        return _word(leaf, device, reference=reference) if isinstance(leaf, FrameworkConstant) else leaf

    args, kwargs = mapped(bound.args, argument), mapped(bound.kwargs, argument)
    grad = torch.enable_grad() if backward else torch.no_grad()
    # Not torch.manual_seed, which seeds all devices and imports the compiler.
    random = torch.default_generator
    before = random.get_state()
    random.manual_seed(seed)
    try:
        with _limited(room if device == "cpu" else None), grad:
            made = tensors_of(bound.function.run(*args, **kwargs))
            gradients: list[Any] = []
            if backward:
                ends = [(value, slot) for value, slot in zip(made, arriving, strict=False) if isinstance(slot, Slot)]
                ends = [(value, slot) for value, slot in ends if value.requires_grad]
                came = [slot.value.to(value.device, value.dtype) for value, slot in ends]
                wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]
                if ends and wanted:
                    outputs = [value for value, _ in ends]
                    grads = iter(torch.autograd.grad(outputs, wanted, came, allow_unused=True))
                    gradients = [next(grads) if leaf.requires_grad else None for leaf in leaves.values()]
            made = [value.detach().cpu() for value in made]
            return made, [None if value is None else value.detach().cpu() for value in gradients]
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, MemoryError, AttributeError) as error:
        text = " ".join(str(error).split())
        if "allocate" in text or "bad_alloc" in text or isinstance(error, MemoryError):
            raise CannotReplay(f"needs more memory than the {room >> 20:,} MiB that are allowed") from None
        raise CannotReplay(f"{bound.function.written} does not accept its arguments: {text[:200]}") from None
    finally:
        random.set_state(before)


def _wide(tensor: Any) -> Any:
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _word(word: FrameworkConstant, device: str, *, reference: bool) -> Any:
    import torch

    if word.kind == "device":
        return torch.device(device)
    if word.kind == "memory_format" and word.text in _FORMATS:
        return getattr(torch, word.text)
    if word.kind == "dtype":
        kind = getattr(torch, word.text.rpartition(".")[2], None)
        if isinstance(kind, torch.dtype):
            return torch.float64 if reference and kind.is_floating_point else kind
    raise CannotReplay(f"the {word.kind} {word.text[:40]!r} is not known")


def tensors_of(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    return [tensor for _, tensor in paths_of(result)]


def paths_of(result: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors of a result with the subscripts that lead to them, in order."""
    import torch

    if isinstance(result, dict | list | tuple):
        for key, item in result.items() if isinstance(result, dict) else enumerate(result):
            yield from paths_of(item, f"{path}[{key!r}]")
    elif isinstance(result, torch.Tensor):
        yield path, result


def check_shapes(bound: Bound, recorded: Sequence[Any], room: int) -> None:
    """Where nothing bounds the memory of a process: ask for the shapes of the results before the results."""
    import torch

    if _memory_held() is not None:
        return

    def argument(leaf: Any) -> Any:
        if isinstance(leaf, Slot):
            return leaf.value.to("meta")
        return _word(leaf, "meta", reference=False) if isinstance(leaf, FrameworkConstant) else leaf

    args, kwargs = mapped(bound.args, argument), mapped(bound.kwargs, argument)
    try:
        with torch.no_grad():
            made = tensors_of(bound.function.run(*args, **kwargs))
    except Exception:  # some functions look at values: these are bounded while they run
        return
    size = sum(8 * value.numel() for value in made)
    if size > room:
        raise CannotReplay(f"would give {size / 2**20:,.0f} MiB; {room >> 20:,} MiB are allowed")
    check_fit(made, recorded)


def check_fit(made: Sequence[Any], recorded: Sequence[Any]) -> None:
    shapes = [[list(value.shape) for value in values] for values in (made, recorded)]
    if shapes[0] != shapes[1]:
        raise CannotReplay(f"gives {shapes[0]}, and {shapes[1]} is recorded")


def _memory_held() -> int | None:
    """The bytes of address space that this process has; None where the system cannot bound them."""
    try:
        import resource  # noqa: F401

        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return None


@cache
def _threads_started() -> int:
    """Start the threads of PyTorch, which end the process where there is no room for one; returns their number."""
    import torch

    torch.ones(1 << 20).exp()
    return int(torch.get_num_threads())


@contextmanager
def _limited(room: int | None) -> Iterator[None]:
    """Let the process grow by no more than this, where the system can see to it: shapes in a dump may lie."""
    room = None if room is None else room + _SLACK + _THREAD * _threads_started()
    held = None if room is None else _memory_held()
    if room is None or held is None:
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [bound for bound in (held + room, soft, hard) if bound != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def devices_here() -> list[str]:
    """The devices of this machine beside its processor."""
    import torch

    spaces = {name: getattr(torch, name, None) for name in ("cuda", "npu", "xpu")} | {"mps": torch.backends.mps}
    return [name for name, space in spaces.items() if space is not None and space.is_available()]
