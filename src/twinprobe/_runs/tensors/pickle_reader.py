"""The description of a pickled tensor, from the few opcodes that a tensor needs.

Nothing is imported and nothing is called: a name in the pickle is a string that is looked up in the tables below.
Every length is checked against the bytes that are left before anything is taken, so memory is bounded by the pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from struct import Struct

from twinprobe._runs.dtypes import DTYPES
from twinprobe.errors import DamagedTensor

# The names that a pickled tensor may use, and what each contributes to the description of the tensor.

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


_STORAGES: dict[str, str | None] = {
    f"torch.{dtype.torch}Storage": name for name, dtype in DTYPES.items() if dtype.torch is not None
}
_STORAGES |= {"torch.storage.UntypedStorage": None, "torch.UntypedStorage": None}
_DTYPES = {f"torch.{name}": name for name in DTYPES}
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
    allowed = GLOBALS.get(full)
    if allowed is not None:
        return allowed
    if full in _UNSUPPORTED:
        raise DamagedTensor(f"holds {_UNSUPPORTED[full]}", hint="save it as a dense tensor: tensor.detach().cpu()")
    if module == "torch" and name.lstrip("qu").startswith(("int", "float", "complex", "bits", "QInt", "QUInt")):
        raise DamagedTensor(f"has elements of the unsupported dtype {full[:80]!r}")
    hint = "do not trust this file"
    raise DamagedTensor(f"asks for {full[:120]!r}, which no tensor needs; it was not run", hint=hint)


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
        raise DamagedTensor(f"calls {function.name}, which is not a function")
    return handler(arguments)


def _tensor(arguments: tuple[object, ...]) -> TensorRecord:
    _check_count(arguments, 4, 7)
    return _view(arguments, None, arguments[6:])


def _tensor_with_dtype(arguments: tuple[object, ...]) -> TensorRecord:
    _check_count(arguments, 7, 8)
    dtype = arguments[6]
    if type(dtype) is not Global or dtype.name not in _DTYPES:
        raise DamagedTensor("describes its dtype in an unknown way")
    return _view(arguments, _DTYPES[dtype.name], arguments[7:])


def _view(arguments: tuple[object, ...], dtype: str | None, rest: tuple[object, ...]) -> TensorRecord:
    source, offset, shape, strides = arguments[:4]
    if type(source) is not StorageRecord:
        raise DamagedTensor("describes a tensor without elements")
    dtype = dtype or source.dtype
    if dtype is None:
        raise DamagedTensor("does not say which dtype its elements have")
    sizes, steps = naturals(shape, "shape"), naturals(strides, "stride")
    if len(sizes) != len(steps):
        raise DamagedTensor(f"has {len(sizes)} dimensions but {len(steps)} strides")
    record = TensorRecord(source, dtype, _natural(offset, "offset"), sizes, steps)
    metadata = rest[0] if rest else None
    if metadata is None:
        return record
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
    return naturals(list(arguments[0]) if isinstance(arguments[0], (list, tuple)) else None, "shape")


def _ordered_dict(arguments: tuple[object, ...]) -> dict[object, object]:
    _check_count(arguments, 0, 0)
    return {}


def _natural(value: object, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _BIGGEST:
        raise DamagedTensor(f"has an impossible {what}")
    return value


def naturals(values: object, what: str) -> tuple[int, ...]:
    """Sizes, as a pickle has them."""
    if not isinstance(values, (tuple, list)) or len(values) > MOST_DIMENSIONS:
        raise DamagedTensor(f"has an impossible {what}")
    return tuple(_natural(value, what) for value in values)


def _check_count(arguments: tuple[object, ...], least: int, most: int) -> None:
    if not least <= len(arguments) <= most:
        raise DamagedTensor(f"describes a tensor by {len(arguments)} values, which is not a known form")


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
GLOBALS = {name: Global(name) for name in (*_CALLS, *_STORAGES, *_DTYPES, *_CLASSES)}


# A tensor takes about 200 bytes, a parameter with attributes a little more.
LONGEST_PICKLE = 1 << 18
_USUAL_PICKLE = 1 << 10

_FLOAT = Struct(">d")


def tensor_record(pickled: bytes) -> TensorRecord:
    """The one tensor that the pickle describes."""
    if len(pickled) > LONGEST_PICKLE:
        raise DamagedTensor(f"describes its contents in {len(pickled)} bytes, too many for one tensor")
    return _usual(pickled) if len(pickled) <= _USUAL_PICKLE else _described(pickled)


def _described(pickled: bytes) -> TensorRecord:
    result = Machine(pickled).run()
    if isinstance(result, TensorRecord):
        return result
    kind = type(result).__name__ if isinstance(result, (dict, list, tuple, str, int, float)) else "something else"
    raise DamagedTensor(f"holds no bare tensor but: {kind}", hint="save each tensor to a file of its own")


# Tensors of one shape and type are described in the same bytes; the shared records are never written to.
_usual = lru_cache(maxsize=1024)(_described)


class Machine:
    """A stack, the positions of the marks in it, and a memo: all that these opcodes need."""

    __slots__ = ("data", "find", "left", "marks", "memo", "position", "stack", "steps")

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position
        self.steps = STEPS
        self.find: Callable[[str, str], object] = allowed_global
        self.left = 1 << 62  # bytes of memory that objects may take; a pickle of one tensor is too short to take many
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        data, length = self.data, len(self.data)
        while self.position < length:
            code = data[self.position]
            self.position += 1
            if code == _STOP:
                return self.pop()
            step = self.steps.get(code)
            if step is None:
                import pickletools

                names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
                name = names.get(code, f"0x{code:02x}")
                raise DamagedTensor(f"uses the pickle opcode {name}, which no tensor needs")
            step(self)
            self.left -= _COSTS.get(code, _COST)
            if self.left < 0:
                raise DamagedTensor("holds a pickle of very many small objects, out of proportion to its size")
        raise DamagedTensor("holds a pickle that is cut off")

    def take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise DamagedTensor(
                f"holds a pickle that claims {count} bytes where {len(self.data) - self.position} are left"
            )
        taken = self.data[self.position : end]
        self.position = end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise DamagedTensor("holds a pickle that is cut off")
        return _text(self.take(end + 1 - self.position)[:-1])

    def pop(self) -> object:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise DamagedTensor("holds a pickle that takes more from its stack than is there")
        return self.stack.pop()

    def pop_to_mark(self) -> list[object]:
        if not self.marks:
            raise DamagedTensor("holds a pickle that takes more from its stack than is there")
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def remember(self, index: int) -> None:
        value = self.pop()
        self.memo[index] = value
        self.stack.append(value)

    def recall(self, index: int) -> None:
        if index not in self.memo:
            raise DamagedTensor(f"holds a pickle that recalls entry {index}, which it never stored")
        self.stack.append(self.memo[index])


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise DamagedTensor("holds a pickle with text that is not UTF-8") from None


def _proto(machine: Machine) -> None:
    version = machine.number(1)
    if version > 5:
        raise DamagedTensor(f"holds a pickle of protocol {version}, which is unknown")


def _frame(machine: Machine) -> None:
    length = machine.number(8)
    if length > len(machine.data) - machine.position:
        raise DamagedTensor(f"holds a pickle with a frame of {length} bytes, longer than itself")


def _stack_global(machine: Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise DamagedTensor("holds a pickle that names a global by something else than text")
    machine.stack.append(machine.find(module, name))


def _long(machine: Machine) -> None:
    width = machine.number(1)
    if width > 9:
        raise DamagedTensor(f"holds a pickle with a number of {width} bytes")
    machine.stack.append(int.from_bytes(machine.take(width), "little", signed=True))


def _tuple(count: int) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return step


def _set_items(machine: Machine, items: list[object]) -> None:
    target = machine.pop()
    if not isinstance(target, dict) or len(items) % 2:
        raise DamagedTensor("holds a pickle that fills something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str and type(key) is not int:
            raise DamagedTensor("holds a pickle with a dictionary key that is neither text nor a number")
        target[key] = value
    machine.stack.append(target)


def _append(machine: Machine, items: list[object]) -> None:
    target = machine.pop()
    if not isinstance(target, list):
        raise DamagedTensor("holds a pickle that extends something that is not a list")
    target.extend(items)
    machine.stack.append(target)


def _reduce(machine: Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    if type(function) is not Global or type(arguments) is not tuple:
        raise DamagedTensor("holds a pickle that calls what cannot be called")
    machine.stack.append(call(function, arguments))


def _build(machine: Machine) -> None:
    # Attributes of a state dictionary; read over, so that the message can say "dict" in the end.
    machine.pop()
    target = machine.pop()
    if not isinstance(target, dict):
        raise DamagedTensor("holds a pickle that sets attributes of an object")
    machine.stack.append(target)


# About how many bytes an opcode takes in memory: of lists, dictionaries, tuples, entries of the memo, calls, others.
_COST = 40
_COSTS = {ord("]"): 72, ord("}"): 80, 0x85: 64, 0x86: 64, 0x87: 72, ord("t"): 64, ord("q"): 110, ord("r"): 110,
          0x94: 110, ord("p"): 110, ord("R"): 120, 0x81: 120, 0x92: 120, 0x8F: 72}  # fmt: skip
_STOP = ord(".")
STEPS: dict[int, Callable[[Machine], object]] = {
    0x80: _proto,
    0x95: _frame,
    ord("c"): lambda m: m.stack.append(m.find(m.line(), m.line())),
    0x93: _stack_global,
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("X"): lambda m: m.stack.append(_text(m.take(m.number(4)))),
    0x8C: lambda m: m.stack.append(_text(m.take(m.number(1)))),
    0x8D: lambda m: m.stack.append(_text(m.take(m.number(8)))),
    ord("B"): lambda m: m.stack.append(m.take(m.number(4))),
    ord("C"): lambda m: m.stack.append(m.take(m.number(1))),
    0x8E: lambda m: m.stack.append(m.take(m.number(8))),
    ord("K"): lambda m: m.stack.append(m.number(1)),
    ord("M"): lambda m: m.stack.append(m.number(2)),
    ord("J"): lambda m: m.stack.append(int.from_bytes(m.take(4), "little", signed=True)),
    0x8A: _long,
    ord("G"): lambda m: m.stack.append(_FLOAT.unpack(m.take(8))[0]),
    ord("N"): lambda m: m.stack.append(None),
    0x88: lambda m: m.stack.append(True),
    0x89: lambda m: m.stack.append(False),
    ord(")"): lambda m: m.stack.append(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): lambda m: m.stack.append(tuple(m.pop_to_mark())),
    ord("]"): lambda m: m.stack.append([]),
    ord("a"): lambda m: _append(m, [m.pop()]),
    ord("e"): lambda m: _append(m, m.pop_to_mark()),
    ord("}"): lambda m: m.stack.append({}),
    ord("s"): lambda m: _set_items(m, [m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: _set_items(m, m.pop_to_mark()),
    ord("q"): lambda m: m.remember(m.number(1)),
    ord("r"): lambda m: m.remember(m.number(4)),
    0x94: lambda m: m.remember(len(m.memo)),
    ord("h"): lambda m: m.recall(m.number(1)),
    ord("j"): lambda m: m.recall(m.number(4)),
    ord("Q"): lambda m: m.stack.append(storage(m.pop())),
    ord("R"): _reduce,
    ord("b"): _build,
}
