"""What a pickled tensor says about itself, from the few opcodes that a tensor needs.

Nothing is imported and nothing is called: a name in the pickle is a string that is looked up in the tables below.
Every length is checked against the bytes that are left before anything is taken, so memory is bounded by the pickle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from struct import Struct

from twinprobe.errors import DamagedTensor
from twinprobe.runs.tensor_record import Global, TensorRecord, allowed_global, call, storage

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
    result = _Machine(pickled).run()
    if isinstance(result, TensorRecord):
        return result
    kind = type(result).__name__ if isinstance(result, (dict, list, tuple, str, int, float)) else "something else"
    raise DamagedTensor(f"holds no bare tensor but: {kind}", hint="save each tensor to a file of its own")


# Tensors of one shape and type are described in the same bytes; nobody writes to what is handed out.
_usual = lru_cache(maxsize=1024)(_described)


class _Machine:
    """A stack, the positions of the marks in it, and a memo: all that these opcodes need."""

    __slots__ = ("at", "data", "marks", "memo", "stack")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}

    def run(self) -> object:
        data, length = self.data, len(self.data)
        while self.at < length:
            code = data[self.at]
            self.at += 1
            if code == _STOP:
                return self.pop()
            step = _STEPS.get(code)
            if step is None:
                raise DamagedTensor(f"uses the pickle opcode {_opcode_name(code)}, which no tensor needs")
            step(self)
        raise DamagedTensor("holds a pickle that is cut off")

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise DamagedTensor(f"holds a pickle that claims {count} bytes where {len(self.data) - self.at} are left")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "little")

    def line(self) -> str:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise DamagedTensor("holds a pickle that is cut off")
        return _text(self.take(end + 1 - self.at)[:-1])

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


def _opcode_name(code: int) -> str:
    import pickletools

    return next((known.name for known in pickletools.opcodes if known.code == chr(code)), f"0x{code:02x}")


def _proto(machine: _Machine) -> None:
    version = machine.number(1)
    if version > 5:
        raise DamagedTensor(f"holds a pickle of protocol {version}, which is unknown")


def _frame(machine: _Machine) -> None:
    length = machine.number(8)
    if length > len(machine.data) - machine.at:
        raise DamagedTensor(f"holds a pickle with a frame of {length} bytes, longer than itself")


def _stack_global(machine: _Machine) -> None:
    name, module = machine.pop(), machine.pop()
    if type(name) is not str or type(module) is not str:
        raise DamagedTensor("holds a pickle that names a global by something else than text")
    machine.stack.append(allowed_global(module, name))


def _long(machine: _Machine) -> None:
    width = machine.number(1)
    if width > 9:
        raise DamagedTensor(f"holds a pickle with a number of {width} bytes")
    machine.stack.append(int.from_bytes(machine.take(width), "little", signed=True))


def _tuple(count: int) -> Callable[[_Machine], None]:
    def step(machine: _Machine) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(items)))

    return step


def _set_items(machine: _Machine, items: list[object]) -> None:
    target = machine.pop()
    if not isinstance(target, dict) or len(items) % 2:
        raise DamagedTensor("holds a pickle that fills what is no dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str and type(key) is not int:
            raise DamagedTensor("holds a pickle with a dictionary key that is neither text nor a number")
        target[key] = value
    machine.stack.append(target)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    _set_items(machine, [key, value])


def _append(machine: _Machine, items: list[object]) -> None:
    target = machine.pop()
    if not isinstance(target, list):
        raise DamagedTensor("holds a pickle that extends what is no list")
    target.extend(items)
    machine.stack.append(target)


def _reduce(machine: _Machine) -> None:
    arguments, function = machine.pop(), machine.pop()
    if type(function) is not Global or type(arguments) is not tuple:
        raise DamagedTensor("holds a pickle that calls what cannot be called")
    machine.stack.append(call(function, arguments))


def _build(machine: _Machine) -> None:
    # Attributes of a state dictionary; read over, so that the message can say "dict" in the end.
    machine.pop()
    target = machine.pop()
    if not isinstance(target, dict):
        raise DamagedTensor("holds a pickle that sets attributes of an object")
    machine.stack.append(target)


_STOP = ord(".")
_STEPS: dict[int, Callable[[_Machine], None]] = {
    0x80: _proto,
    0x95: _frame,
    ord("c"): lambda m: m.stack.append(allowed_global(m.line(), m.line())),
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
    ord("s"): _set_item,
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
