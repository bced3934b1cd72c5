"""A pickled state dictionary: containers of tensors and arrays, among objects of any class, which are never made.

Nothing is imported and nothing is called, as with single tensors; what is no tensor, array or container is only noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from twinprobe._runs.tensors.pickle_reader import GLOBALS, STEPS, Global, Machine, TensorRecord, call, naturals, storage
from twinprobe.errors import DamagedTensor

_NUMPY = ("numpy.core.multiarray", "numpy._core.multiarray", "numpy.core.numeric", "numpy._core.numeric")
_DICTIONARIES = frozenset({"collections.OrderedDict", "collections.defaultdict", "builtins.dict"})
_LONGEST_NUMBER = 64  # digits; more would take long to convert
_ROOM = 40 << 20  # bytes of memory for the objects of a small file
_MOST_VISITS, _MOST_LETTERS, _DEEPEST = 4_000_000, 16 << 20, 64


@dataclass(slots=True, eq=False)
class Opaque:
    """A stand-in for an object: the name of its class or function, and the arguments it would have been made from."""

    name: str
    arguments: tuple[object, ...] = ()
    state: object = None


@dataclass(slots=True, eq=False)
class ArrayRecord:
    """A pickled numpy array: its dtype as numpy spells it, and its bytes."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    by_columns: bool = False
    octets: bytes = b""


_WALKED = (TensorRecord, ArrayRecord, Opaque, dict, list, tuple)


def pickled_state(pickled: bytes, start: int = 0, *, file_size: int = 0) -> tuple[object, int]:
    """The containers that a pickle describes, and where it ends; objects of other classes become Opaque.

    What they take in memory is bounded by the file around them: a real one is mostly elements.
    """
    machine = Machine(pickled, start)
    machine.steps, machine.find = _LENIENT_STEPS, _lenient_global
    # One byte of a pickle makes a dictionary of 80 bytes: what is made is bounded, not only what is read.
    machine.left = _ROOM + 2 * max(file_size, len(pickled))
    return machine.run(), machine.position


def tensors_of(state: object) -> dict[str, TensorRecord | ArrayRecord]:
    """All tensors and arrays below, by the keys that lead to them, joined by dots.

    A pickle may hold one container in many places, and those in many others: the walk has a bound, and so have names.
    """
    tensors: dict[str, TensorRecord | ArrayRecord] = {}
    if isinstance(state, TensorRecord | ArrayRecord):
        return {"": state}
    opened: list[tuple[str, Iterator[tuple[object, object]]]] = [("", _items(state))]
    visits, letters = 0, 0
    while opened:
        above, items = opened[-1]
        for key, value in items:
            visits += 1
            if visits > _MOST_VISITS or len(opened) > _DEEPEST or letters > _MOST_LETTERS:
                raise DamagedTensor("holds more, or deeper, containers than any checkpoint has")
            if not isinstance(key, str | int) or not isinstance(value, _WALKED):
                continue
            name = f"{above}.{key}" if above else str(key)
            letters += len(name)
            if isinstance(value, TensorRecord | ArrayRecord):
                tensors.setdefault(name, value)
                continue
            opened.append((name, _items(value)))
            break
        else:
            opened.pop()
    return tensors


def _items(value: object) -> Iterator[tuple[object, object]]:
    inner = value.state if isinstance(value, Opaque) else value
    if isinstance(inner, dict):
        return iter(inner.items())
    return iter(enumerate(inner)) if isinstance(inner, list | tuple) else iter(())


def _lenient_global(module: str, name: str) -> object:
    full = f"{module}.{name}"
    return GLOBALS.get(full) or Opaque(full)


def _lenient_call(machine: Machine) -> None:
    """What a call would return, if it makes a tensor, an array or a container; else an Opaque."""
    arguments, function = machine.pop(), machine.pop()
    if type(arguments) is not tuple or type(function) not in (Global, Opaque):
        raise DamagedTensor("holds a pickle that calls what cannot be called")
    full = function.name  # type: ignore[attr-defined]
    module, _, short = full.rpartition(".")
    made: object
    if full in _DICTIONARIES:
        pairs = arguments[0] if arguments and isinstance(arguments[0], list) else []
        made = {pair[0]: pair[1] for pair in pairs if isinstance(pair, list | tuple) and len(pair) == 2
                and isinstance(pair[0], str | int)}  # fmt: skip
    elif full == "_codecs.encode" and arguments and type(arguments[0]) is str:
        made = arguments[0].encode("latin-1", "replace")  # how older pickles spell bytes
    elif full == "numpy.dtype" and arguments and type(arguments[0]) is str:
        made = Opaque(full, arguments)
    elif module in _NUMPY and short == "_reconstruct":
        made = ArrayRecord()
    elif module in _NUMPY and short == "_frombuffer" and len(arguments) == 4:
        octets, dtype, shape, order = arguments
        made = _array(ArrayRecord(), shape, dtype, order == "F", bytes(octets) if isinstance(octets, bytes) else octets)
    elif type(function) is Global:
        made = call(function, arguments)
    else:
        made = Opaque(full, arguments)
    machine.stack.append(made)


def _array(made: ArrayRecord, shape: object, dtype: object, by_columns: object, octets: object) -> ArrayRecord:
    if type(dtype) is Opaque and dtype.name == "numpy.dtype" and type(octets) is bytes:
        order = dtype.state[1] if isinstance(dtype.state, tuple) and len(dtype.state) > 1 else "<"
        made.dtype = f"{order if order in ('<', '>', '|') else '<'}{dtype.arguments[0]}"
        made.shape, made.by_columns, made.octets = naturals(shape, "shape"), by_columns is True, octets
    return made


def _lenient_build(machine: Machine) -> None:
    state, target = machine.pop(), machine.pop()
    if isinstance(target, Opaque):
        target.state = state
    elif isinstance(target, ArrayRecord) and isinstance(state, tuple) and len(state) == 5:
        _array(target, *state[1:])
    machine.stack.append(target)


def _lenient_items(machine: Machine, items: list[object]) -> None:
    target = machine.pop()
    if len(items) % 2:
        raise DamagedTensor("holds a pickle that fills a dictionary with half a pair")
    if isinstance(target, Opaque):  # of a class that is a dictionary
        target.state = target.state if isinstance(target.state, dict) else {}
    filled = target.state if isinstance(target, Opaque) else target
    if not isinstance(filled, dict):
        raise DamagedTensor("holds a pickle that fills something that is not a dictionary")
    for key, value in zip(items[::2], items[1::2], strict=True):
        if isinstance(key, str | int | Opaque):
            filled[key] = value
    machine.stack.append(target)


def _lenient_append(machine: Machine, items: list[object]) -> None:
    target = machine.pop()
    if isinstance(target, list):
        target.extend(items)
    machine.stack.append(target)


def _lenient_storage(machine: Machine) -> None:
    named = machine.pop()
    machine.stack.append(storage(named[:5] if type(named) is tuple and len(named) == 6 else named))


def _lenient_number(kind: type[int] | type[float]) -> Callable[[Machine], None]:
    def step(machine: Machine) -> None:
        text = machine.line().rstrip("L")
        if len(text) > _LONGEST_NUMBER:
            raise DamagedTensor(f"holds a pickle with a number of {len(text)} digits")
        try:
            machine.stack.append(kind(text))
        except ValueError:
            raise DamagedTensor(f"holds a pickle with the number {text[:20]!r}") from None

    return step


def _as_dictionary(machine: Machine) -> None:
    items = machine.pop_to_mark()
    machine.stack.append({})
    _lenient_items(machine, items)


def _new_by_keywords(machine: Machine) -> None:
    machine.pop()  # keyword arguments
    _lenient_call(machine)


def _index(machine: Machine) -> int:
    text = machine.line()
    if not text.isdecimal() or len(text) > 12:
        raise DamagedTensor("holds a pickle that numbers its memo by something else than a number")
    return int(text)


_LENIENT_STEPS = STEPS | {
    ord("R"): _lenient_call,
    0x81: _lenient_call,
    0x92: _new_by_keywords,
    ord("b"): _lenient_build,
    ord("s"): lambda m: _lenient_items(m, [m.pop(), m.pop()][::-1]),
    ord("u"): lambda m: _lenient_items(m, m.pop_to_mark()),
    ord("d"): _as_dictionary,
    ord("l"): lambda m: m.stack.append(m.pop_to_mark()),
    ord("a"): lambda m: _lenient_append(m, [m.pop()]),
    ord("e"): lambda m: _lenient_append(m, m.pop_to_mark()),
    0x8F: lambda m: m.stack.append([]),
    0x90: lambda m: _lenient_append(m, m.pop_to_mark()),
    0x91: lambda m: m.stack.append(tuple(m.pop_to_mark())),
    ord("Q"): _lenient_storage,
    ord("I"): _lenient_number(int),
    ord("L"): _lenient_number(int),
    ord("F"): _lenient_number(float),
    0x8A: lambda m: m.stack.append(int.from_bytes(m.take(m.number(1)), "little", signed=True)),
    ord("T"): lambda m: m.stack.append(m.take(m.number(4)).decode("latin-1")),
    ord("U"): lambda m: m.stack.append(m.take(m.number(1)).decode("latin-1")),
    0x96: lambda m: m.stack.append(m.take(m.number(8))),
    ord("0"): Machine.pop,
    ord("1"): Machine.pop_to_mark,
    ord("2"): lambda m: m.stack.append(m.stack[-1] if m.stack else None),
    ord("p"): lambda m: m.remember(_index(m)),
    ord("g"): lambda m: m.recall(_index(m)),
}
