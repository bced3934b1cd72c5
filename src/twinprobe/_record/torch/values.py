"""PyTorch's functions and values as a dump names them; what functions do to memory, what a perturbed run changes."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

from twinprobe._record.calls import CORE, IMPURE_NAMES, NEVER_NAMES, Api, rank_of, tensors_in
from twinprobe._record.entries import NOT_MINE, Leaf, Note, Row
from twinprobe._record.perturb import BITS, ONE_IN, Perturbation
from twinprobe._record.torch.host import host_digest, host_measures, host_statistics

_RANDOM_FILL = frozenset({"uniform_", "normal_"})
_HIDDEN_SPACES = frozenset({"profiler", "prim", "prims", "debugprims"})
_VF_NAMES = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell"})


class ApiTable:
    """Function object to Api, or None for what is not recorded. Answers are kept."""

    def __init__(self) -> None:
        self._known: dict[Any, Api | None] = {}
        self._homes = _homes()

    def __call__(self, func: Any) -> Api | None:
        try:
            return self._known[func]
        except KeyError:
            api = self._known[func] = self._find(func)
            return api

    def _find(self, func: Any) -> Api | None:
        if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            is_packet = isinstance(func, torch._ops.OpOverloadPacket)
            space, _, name = str(func._qualified_op_name if is_packet else func.name()).partition("::")
            kind = {"aten": "Aten", "npu": "NPU"}.get(space, space)
            return None if space in _HIDDEN_SPACES else make_api(kind, name.partition(".")[0])
        own = getattr(func, "__name__", "")
        home = self._homes.get(func)
        if home is None or own in ("__get__", "__set__", "__delete__"):
            return None
        kind, name = home
        if name in NEVER_NAMES or name.rpartition(".")[2] in NEVER_NAMES:
            is_random = kind == "Tensor" and name in _RANDOM_FILL
            return make_api(kind, name) if is_random else None
        return make_api("VF" if kind == "Torch" and name in _VF_NAMES else kind, name)


def make_api(kind: str, name: str) -> Api:
    """An Api by type and name."""
    return Api(f"{kind}.{name}.", CORE if kind == "Distributed" else rank_of(name))


def _homes() -> dict[Any, tuple[str, str]]:
    homes: dict[Any, tuple[str, str]] = {}
    inner = [("Torch", f"{part}.", getattr(torch, part)) for part in ("linalg", "fft", "special", "nested", "sparse")]
    outer = [("Functional", "", functional), ("Tensor", "", torch.Tensor), ("Torch", "", torch)]
    for kind, prefix, space in outer + inner:
        for name in dir(space):
            if name.startswith("_") and (prefix or kind == "Functional"):
                continue
            func = getattr(space, name, None)
            if not callable(func) or isinstance(func, type):
                continue
            try:
                home = homes.get(func)
            except TypeError:
                continue
            if home is None or (home[0] == kind and getattr(func, "__name__", "") == name):
                homes[func] = (kind, prefix + name)
    return homes


# What a function does to memory: decided once for each function object, then looked up.

# WRITES: an argument may change, with a new version. REACHES: hands out the memory itself, to be written unseen.
# UNSEEN: arguments may change without a new version. BACKWARD: runs the gradient engine.
PLAIN, WRITES, REACHES, UNSEEN, BACKWARD = range(5)

# Those with an underscore give a tensor another shape or other memory, without a new version.
_REACHING = frozenset(
    {
        "data_ptr", "untyped_storage", "storage", "numpy", "__array__", "__dlpack__",
        "resize_", "resize_as_", "set_",
    }
)  # fmt: skip
_REACHING_PROPERTIES = frozenset(
    method
    for name in ("data", "__cuda_array_interface__")
    if hasattr(getattr(torch.Tensor, name, None), "__get__")
    for method in (getattr(torch.Tensor, name).__get__, getattr(torch.Tensor, name).__set__)
)
_NOT_IN_PLACE = frozenset(
    {"__invert__", "__index__", "__int__", "__iter__", "__init__", "requires_grad_", "retain_grad"}
)


def effect_of(func: Any) -> int:
    """What calling this function means for tensors that wait to be measured."""
    if func is torch.Tensor.backward or func is torch.autograd.backward:
        return BACKWARD
    if isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return _effect_of_operator(func)
    name = getattr(func, "__name__", "")
    # Collectives, and what takes a loss's scale off the gradients.
    if getattr(func, "__module__", None) == "torch.distributed.distributed_c10d" or name.startswith("_amp_foreach_"):
        return UNSEEN
    if name in {"__get__", "__set__"}:
        return REACHES if func in _REACHING_PROPERTIES else PLAIN
    if name in _REACHING:
        return REACHES
    return WRITES if writes_by_name(name) else PLAIN


def writes_by_name(name: str) -> bool:
    """Whether a function of this name changes an argument: ``add_``, ``__iadd__``, ``__setitem__``, ``batch_norm``."""
    if name in IMPURE_NAMES:
        return True
    if name in _NOT_IN_PLACE:
        return False
    if name.endswith("__"):
        return name.startswith("__i") or name == "__setitem__"
    return name.endswith("_")


def _effect_of_operator(func: Any) -> int:
    is_overload = isinstance(func, torch._ops.OpOverload)
    overloads = [func] if is_overload else [getattr(func, name) for name in func.overloads()]
    if any(overload.namespace.lstrip("_").startswith("c10d_functional") for overload in overloads):
        return UNSEEN  # its results are written later, without a new version
    if not any(overload._schema.is_mutable for overload in overloads):
        return PLAIN
    return WRITES if all(overload.namespace == "aten" for overload in overloads) else UNSEEN


def writes_by_keyword(kwargs: Any) -> bool:
    """``out=`` and ``inplace=True``."""
    return bool(kwargs) and (kwargs.get("out") is not None or bool(kwargs.get("inplace")))


_DTYPE_KEYS = frozenset({"dtype", "output_dtype"})
_MANY = 1 << 14


class TorchPerturbation(Perturbation):
    """Changes tensors on any device. Versions tell what a call has written; the program's own random state stays."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._random: dict[torch.device, torch.Generator] = {}
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}  # by the number of a storage: held for a version

    def before(self, inputs: Any) -> None:
        if len(self._known) > _MANY:
            self._known = {key: held for key, held in self._known.items() if not held[0].expired()}
        for tensor in tensors_in(inputs, torch.Tensor, []):
            self._hold(tensor)

    def after(self, output: Any, _inputs: Any, _in_place: bool = False) -> None:
        for tensor in tensors_in(output, torch.Tensor, []):
            local = getattr(tensor, "_local_tensor", tensor)
            name = str(local.dtype).rpartition(".")[2]
            if name not in BITS or local.layout is not torch.strided or 0 in local.shape:
                continue
            overlaps = any(size > 1 and step == 0 for size, step in zip(local.shape, local.stride(), strict=True))
            held = self._known.get(local.untyped_storage()._cdata)
            if not overlaps and (held is None or held[1] != _version(local)):
                self._change(local, *BITS[name])
                self._hold(local)

    def _hold(self, tensor: torch.Tensor) -> None:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if tensor.layout is torch.strided:
            storage = StorageWeakRef(tensor.untyped_storage())
            self._known[storage.cdata] = (storage, _version(tensor))

    def _change(self, tensor: torch.Tensor, integer: str, infinity: int) -> None:
        random = self._random.get(tensor.device)
        if random is None:
            random = self._random[tensor.device] = torch.Generator(tensor.device).manual_seed(self._seed)
        kind: torch.dtype = getattr(torch, integer)
        # Not the tensor itself: its version would count this as a write, which autograd refuses.
        bits = tensor.data.view(kind)
        drawn = torch.randint(0, ONE_IN, bits.shape, dtype=torch.int8, device=bits.device, generator=random)
        magnitude = bits & torch.iinfo(kind).max
        movable = (magnitude != 0) & (magnitude < infinity - 1)
        bits += ((drawn == 0) & movable).to(kind) - ((drawn == 1) & movable).to(kind)


def _version(tensor: torch.Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version


class TorchValues:
    """The part of capturing that knows PyTorch."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def tensor(self, value: torch.Tensor) -> Note:
        """Note one tensor."""
        return self._recorder.registry.note(value, self._recorder.save)  # type: ignore[no-any-return]

    def __call__(self, value: Any, key: str | None) -> Any:  # noqa: PLR0911
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.Size):
            return Leaf({"type": "torch.Size", "value": [int(size) for size in value]})
        if isinstance(value, torch.dtype):
            return Leaf({"type": "torch.dtype", "value": str(value)} if key in _DTYPE_KEYS else {})
        if isinstance(value, torch.device):
            return Leaf({"type": "torch.device", "value": str(value)} if key == "device" else {})
        if isinstance(value, torch.memory_format):
            return Leaf({"type": "torch.memory_format", "format": str(value).rpartition(".")[2]})
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return self._array(value)
        if type(value).__module__.startswith("torch"):
            return self._from_torch(value)
        if isinstance(value, str) and key == "device":
            return Leaf({"type": "torch.device", "value": value})
        return NOT_MINE

    def _from_torch(self, value: Any) -> Any:
        name = type(value).__name__
        if name in {"SymInt", "SymFloat", "SymBool"}:
            return None
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            return NOT_MINE
        if isinstance(value, distributed.ProcessGroup):
            ranks = distributed.get_process_group_ranks(value)
            return Leaf({"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": group_id(ranks)})
        if name in {"ReduceOp", "RedOpType"} or isinstance(value, distributed.ReduceOp):
            operation = str(getattr(value, "op", value)).replace("ReduceOp.", "")
            return Leaf({"type": "torch.distributed.ReduceOp", "value": operation})
        if isinstance(value, distributed.P2POp):
            return self._point_to_point(value)
        return NOT_MINE

    def _point_to_point(self, value: Any) -> Leaf:
        group = value.group if value.group is not None else torch.distributed.group.WORLD
        ranks = torch.distributed.get_process_group_ranks(group)
        return Leaf({
            "class_type": "torch.distributed.P2POp", "tensor": self.tensor(value.tensor), "op": value.op.__name__,
            "peer": value.peer, "tag": value.tag, "group_id": group_id(ranks),
        })  # fmt: skip

    def _array(self, value: Any) -> Note:
        row = Row()
        if value.size and value.dtype.kind in "biufc":
            tensor = torch.from_numpy(value.copy())
            config = self._recorder.config
            if config.sketches:
                row.values, row.sketch = host_measures(tensor)
            else:
                row.values = host_statistics(tensor)
            if config.digest:
                row.digest = host_digest(tensor, config.digest)
            if self._recorder.save:
                row.payload = tensor
        return Note("numpy.ndarray", str(value.dtype), tuple(value.shape), row, None, self._recorder.save)


def group_id(ranks: list[int]) -> str:
    """The name of a process group that two runs agree on: the checksum of its list of ranks."""
    return f"{zlib.crc32(str(ranks).encode()):08x}"


# Whether autocast is on and what it computes in, on either kind of device.
_AUTOCASTS: list[tuple[Callable[[], bool], Callable[[], torch.dtype]]] = (
    [(partial(torch.is_autocast_enabled, kind), partial(torch.get_autocast_dtype, kind)) for kind in ("cuda", "cpu")]
    if hasattr(torch, "get_autocast_dtype")
    else [
        (torch.is_autocast_enabled, torch.get_autocast_gpu_dtype),
        (torch.is_autocast_cpu_enabled, torch.get_autocast_cpu_dtype),
    ]
)


def process_rank() -> int | None:
    """This process's rank, None when not distributed."""
    distributed = torch.distributed
    return int(distributed.get_rank()) if distributed.is_available() and distributed.is_initialized() else None


def rounding_settings() -> dict[str, Any]:
    """What changes the rounding of this program's results."""
    backends = torch.backends
    settings: dict[str, Any] = {
        "version": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_initialized() else "cpu",
        "matmul_precision": torch.get_float32_matmul_precision(),
        "tf32_matmul": backends.cuda.matmul.allow_tf32,
        "tf32_cudnn": backends.cudnn.allow_tf32,
        "fp16_reduced_precision_reduction": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn_benchmark": backends.cudnn.benchmark,
        "cudnn_deterministic": backends.cudnn.deterministic,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": backends.mkldnn.is_available() and backends.mkldnn.enabled,
        "threads": torch.get_num_threads(),
        "autocast": None,
    }
    for is_on, dtype in _AUTOCASTS:
        if is_on():
            settings["autocast"] = str(dtype()).removeprefix("torch.")
    return settings
