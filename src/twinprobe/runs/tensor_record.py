"""The names that a pickled tensor may use, and what each contributes to the description of the tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from twinprobe.errors import DamagedTensor
from twinprobe.runs.host_tensor import STORAGE

MOST_DIMENSIONS = 64
_BIGGEST = (1 << 63) - 1


@dataclass(slots=True)
class Global:
    """A name on the allow-list. It stands for itself; there is nothing behind it that could run."""

    name: str


@dataclass(slots=True)
class StorageRecord:
    """Bytes kept in the file under ``key``: ``numel`` elements of ``dtype``, or bytes where that is None."""

    dtype: str | None
    key: str
    numel: int


@dataclass(slots=True)
class TensorRecord:
    """A strided view of a storage, counted in elements."""

    storage: StorageRecord
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    conjugated: bool = False
    negated: bool = False


_TYPED_STORAGES = {
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ShortStorage": "int16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "FloatStorage": "float32",
    "DoubleStorage": "float64",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
_STORAGES: dict[str, str | None] = {f"torch.{name}": dtype for name, dtype in _TYPED_STORAGES.items()}
_STORAGES |= {"torch.storage.UntypedStorage": None, "torch.UntypedStorage": None}
_DTYPES = {f"torch.{name}": name for name in STORAGE}
_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_UNSUPPORTED = {
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no elements",
    "torch._utils._rebuild_wrapper_subclass": "a tensor of a wrapper class",
}


def allowed_global(module: str, name: str) -> Global:
    """The entry of the allow-list, or an error that names what the pickle asked for."""
    full = f"{module}.{name}"
    known = _GLOBALS.get(full)
    if known is not None:
        return known
    if full in _UNSUPPORTED:
        raise DamagedTensor(f"holds {_UNSUPPORTED[full]}", hint="save it as a dense tensor: tensor.detach().cpu()")
    if module == "torch" and name.lstrip("qu").startswith(("int", "float", "complex", "bits", "QInt", "QUInt")):
        raise DamagedTensor(f"has elements of the unsupported dtype {full[:80]!r}")
    raise DamagedTensor(
        f"asks for {full[:120]!r}, which no tensor needs; it was not run", hint="do not trust this file"
    )


def storage(persistent: object) -> StorageRecord:
    """The storage that a persistent id of torch.save names."""
    if type(persistent) is not tuple or len(persistent) != 5 or persistent[0] != "storage":
        raise DamagedTensor("refers to its elements in an unknown way")
    _, kind, key, _, numel = persistent
    if type(kind) is not Global or kind.name not in _STORAGES or type(key) is not str:
        raise DamagedTensor("refers to its elements in an unknown way")
    return StorageRecord(_STORAGES[kind.name], key, _natural(numel, "number of elements"))


def call(function: Global, arguments: tuple[object, ...]) -> object:
    """What the function would have made of its arguments, as a record."""
    handler = _CALLS.get(function.name)
    if handler is None:
        raise DamagedTensor(f"calls {function.name}, which is no function")
    return handler(arguments)


def _tensor(arguments: tuple[object, ...]) -> TensorRecord:
    _check_count(arguments, 4, 7)
    metadata = arguments[6] if len(arguments) > 6 else None
    return _view(arguments, None, metadata)


def _tensor_with_dtype(arguments: tuple[object, ...]) -> TensorRecord:
    _check_count(arguments, 7, 8)
    dtype = arguments[6]
    if type(dtype) is not Global or dtype.name not in _DTYPES:
        raise DamagedTensor("describes its dtype in an unknown way")
    return _view(arguments, _DTYPES[dtype.name], arguments[7] if len(arguments) > 7 else None)


def _view(arguments: tuple[object, ...], dtype: str | None, metadata: object) -> TensorRecord:
    source, offset, shape, strides = arguments[:4]
    if type(source) is not StorageRecord:
        raise DamagedTensor("describes a tensor without elements")
    dtype = dtype or source.dtype
    if dtype is None:
        raise DamagedTensor("does not say which dtype its elements have")
    sizes, steps = _naturals(shape, "shape"), _naturals(strides, "stride")
    if len(sizes) != len(steps):
        raise DamagedTensor(f"has {len(sizes)} dimensions but {len(steps)} strides")
    record = TensorRecord(source, dtype, _natural(offset, "offset"), sizes, steps)
    return record if metadata is None else _with_metadata(record, metadata)


def _with_metadata(record: TensorRecord, metadata: object) -> TensorRecord:
    if type(metadata) is not dict:
        raise DamagedTensor("has metadata of an unknown kind")
    unknown = [key for key, value in metadata.items() if key not in ("conj", "neg") and value is not None]
    if unknown:
        raise DamagedTensor(
            f"carries the metadata {str(unknown[0])[:80]!r}, which may change the meaning of its bytes",
            hint="save tensor.detach().cpu()",
        )
    return replace(record, conjugated=metadata.get("conj") is True, negated=metadata.get("neg") is True)


def _first_argument(arguments: tuple[object, ...]) -> TensorRecord:
    """A parameter, or a tensor of another device, is the tensor within."""
    _check_count(arguments, 3, 4)
    if type(arguments[0]) is not TensorRecord:
        raise DamagedTensor("describes a parameter without a tensor")
    return arguments[0]


def _from_type(arguments: tuple[object, ...]) -> object:
    """A tensor with attributes of its own: (rebuild function, class, its arguments, attributes)."""
    _check_count(arguments, 4, 4)
    function, kind, inner, _ = arguments
    if type(function) is not Global or type(kind) is not Global or type(inner) is not tuple:
        raise DamagedTensor("describes a tensor with attributes in an unknown way")
    if function.name not in _REBUILDS or kind.name not in _CLASSES:
        raise DamagedTensor("describes a tensor with attributes in an unknown way")
    return _REBUILDS[function.name](inner)


def _size(arguments: tuple[object, ...]) -> tuple[int, ...]:
    _check_count(arguments, 1, 1)
    return _naturals(list(arguments[0]) if isinstance(arguments[0], (list, tuple)) else None, "shape")


def _ordered_dict(arguments: tuple[object, ...]) -> dict[object, object]:
    _check_count(arguments, 0, 0)
    return {}


def _natural(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _BIGGEST:
        raise DamagedTensor(f"has an impossible {what}")
    return value


def _naturals(values: object, what: str) -> tuple[int, ...]:
    if not isinstance(values, (tuple, list)) or len(values) > MOST_DIMENSIONS:
        raise DamagedTensor(f"has an impossible {what}")
    return tuple(_natural(value, what) for value in values)


def _check_count(arguments: tuple[object, ...], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        raise DamagedTensor(f"describes a tensor by {len(arguments)} values, which is no known form")


_REBUILDS: dict[str, Callable[[tuple[object, ...]], TensorRecord]] = {
    "torch._utils._rebuild_tensor": _tensor,
    "torch._utils._rebuild_tensor_v2": _tensor,
    "torch._utils._rebuild_tensor_v3": _tensor_with_dtype,
    "torch._utils._rebuild_parameter": _first_argument,
    "torch._utils._rebuild_parameter_with_state": _first_argument,
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first_argument,
}
_CALLS: dict[str, Callable[[tuple[object, ...]], object]] = {
    **_REBUILDS,
    "torch._tensor._rebuild_from_type_v2": _from_type,
    "torch.Size": _size,
    "collections.OrderedDict": _ordered_dict,
}
_GLOBALS = {name: Global(name) for name in (*_CALLS, *_STORAGES, *_DTYPES, *_CLASSES)}
