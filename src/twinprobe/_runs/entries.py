"""From op entries to rows: which leaves a call has, in which role, under which name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._runs.dump_json import Entries, check_values
from twinprobe._runs.json_pieces import memory_budget, text_bytes
from twinprobe._runs.names import DIRECTIONS, GRADIENTS, LONGEST_NAME
from twinprobe._runs.table import GRADIENT, INPUT, OUTPUT, PARAMETER, POINT, Leaf, TableBuilder, settle
from twinprobe.errors import BadInput

MaybeLeaf = Leaf | None
_MAX_DEPTH = 400
_ROOM = 16 << 20  # bytes of memory for the rows and calls of a small file
_CALL = 160  # bytes of a call, beside its name
# A name is built from all that encloses a value. A real file has more bytes than its names have characters.
_NAMES = 8 << 20
# A value is a row of all columns, some 200 bytes. Recorders write more than a hundred for each.
_VALUES, _BYTES_PER_VALUE = 1 << 16, 64
_SHOWN = 1000  # characters of a name in a message
_SECTIONS = (
    ("input_args", "input", INPUT),
    ("input_kwargs", "input", INPUT),
    ("input", "input", INPUT),
    ("parameters", "parameters", PARAMETER),
    ("output", "output", OUTPUT),
)
Found = tuple[int, str, str, MaybeLeaf]  # role, row name, the argument's own name, leaf


class FlatEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The usual entry: no container inside the argument lists. Most calls decode straight into it."""

    input_args: list[MaybeLeaf] = []
    input_kwargs: dict[str, MaybeLeaf] = {}
    input: list[MaybeLeaf] = []
    output: list[MaybeLeaf] = []
    parameters: dict[str, MaybeLeaf] = {}


_decode_flat = msgspec.json.Decoder(FlatEntry).decode
_decode_any = msgspec.json.Decoder().decode


def build_table(path: Path, entries: Entries, *, single_points: bool) -> tuple[list[str], Any, list[str]]:
    """Walk all entries; return the op names, the tensor table and notes on what was left out."""
    builder = TableBuilder()
    ops: dict[str, int] = {}
    skipped, first_skipped = 0, ""
    room = _Room(entries.size)
    for name, entry in entries:
        if not single_points and DIRECTIONS.isdisjoint(name.rsplit(".", 2)[-2:]):
            skipped, first_skipped = skipped + 1, first_skipped or name
            continue
        known = len(ops)
        index = ops.setdefault(name, known)
        if index < known:
            builder.restart(index)  # of a key that stands twice the last counts, as for every reader of JSON in Python
        flat = None
        if entries.raw and not single_points and GRADIENTS not in name:
            try:
                flat = _decode_flat(entry)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                flat = None
        try:
            if flat is None:
                room.call(name, 0)
                decoded = _decode(path, name, entry) if entries.raw else entry
                for role, row_name, argument, leaf in _nested_rows(path, name, decoded, single_points):
                    room.rows(row_name)
                    _add(builder, index, role, row_name, argument, leaf)
            else:
                room.call(name, _add_flat(builder, index, name, flat))
            if builder.end_op(entries.place):
                room.check(builder.cost)
        except ValueError as error:
            raise BadInput(str(error), where=f"{path}: data[{name[:_SHOWN]!r}]") from error
    try:
        room.check(builder.cost)
    except ValueError as error:
        raise BadInput(f"its last value {error}", where=path) from error
    notes = []
    if skipped:
        notes.append(f"{path}: {skipped} entries have no direction in their name and were left out: {first_skipped}")
    return list(ops), builder.build(), notes


class _Room:
    """How many values a file may still have, and what they may cost; ValueError when there is nothing left."""

    __slots__ = ("_left", "_names", "_values")

    def __init__(self, size: int) -> None:
        self._left = memory_budget(size, _ROOM)
        self._names = _NAMES + size
        self._values = _VALUES + size // _BYTES_PER_VALUE

    def call(self, name: str, rows: int) -> None:
        """Take room for a call with so many rows."""
        self._left -= _CALL + text_bytes(name)
        self.rows(name, 1 + rows)

    def rows(self, name: str, count: int = 1) -> None:
        """Take room for rows with this name."""
        self._names -= text_bytes(name) * count
        self._values -= count
        if self._values < 0:
            raise ValueError("is one value too many: no recorder packs them so densely into a file")
        if len(name) > LONGEST_NAME or self._names < 0:
            what = f"has a name of {len(name)} characters" if self._names >= 0 else "has names out of proportion"
            raise ValueError(f"{what}, which no recorder writes")

    def check(self, cost: int) -> None:
        """Compare what the rows take so far with what the file may cost."""
        if cost > self._left:
            raise ValueError("is one value too many: no recorder writes so short ones, or so many")


def _add_flat(builder: TableBuilder, op: int, name: str, flat: FlatEntry) -> int:
    """Add the rows of a call, and tell how many."""
    for at, leaf in enumerate(flat.input_args):
        _add(builder, op, INPUT, f"{name}.input.{at}", "", leaf)
    for key, leaf in flat.input_kwargs.items():
        _add(builder, op, INPUT, f"{name}.input.{key}", key, leaf)
    for at, leaf in enumerate(flat.input):
        _add(builder, op, INPUT, f"{name}.input.{at}", "", leaf)
    for key, leaf in flat.parameters.items():
        _add(builder, op, PARAMETER, f"{name}.parameters.{key}", key, leaf)
    for at, leaf in enumerate(flat.output):
        _add(builder, op, OUTPUT, f"{name}.output.{at}", "", leaf)
    rows = len(flat.input_args) + len(flat.input) + len(flat.output)
    return rows + len(flat.input_kwargs) + len(flat.parameters)


def _add(builder: TableBuilder, op: int, role: int, name: str, argument: str, leaf: MaybeLeaf) -> None:
    settled = settle(leaf, argument)
    if settled.data_name:
        name = settled.data_name.rpartition(".")[0] or name
    builder.add(op, role, name, settled)


def _decode(path: Path, name: str, raw: Any) -> Any:
    check_values(path, memoryview(raw), name)
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"cannot be decoded: {error}", where=f"{path}: data[{name!r}]") from error


def _nested_rows(path: Path, name: str, entry: Any, single_points: bool) -> Iterator[Found]:
    walker = _Walker(path, name)
    if single_points:
        yield from walker.walk(entry, POINT, name, "", f"data[{name!r}]")
        return
    if not isinstance(entry, dict):
        raise BadInput(f"is {type(entry).__name__}, not an object", where=f"{path}: data[{name!r}]")
    if GRADIENTS in name.rsplit(".", 2)[-2:]:
        for parameter, leaves in entry.items():
            one = leaves[0] if isinstance(leaves, list) and len(leaves) == 1 else leaves
            yield from walker.walk(one, GRADIENT, f"{name}.{parameter}", parameter, f"data[{name!r}].{parameter}")
        return
    for section, suffix, role in _SECTIONS:
        content = entry.get(section)
        if content is None:
            continue
        if not isinstance(content, list | dict):
            where = f"{path}: data[{name!r}].{section}"
            raise BadInput(f"is {type(content).__name__}, not a list or an object", where=where)
        yield from walker.walk(content, role, f"{name}.{suffix}", "", f"data[{name!r}].{section}")


class _Walker:
    def __init__(self, path: Path, op: str) -> None:
        self._path = path
        self._op = op

    def walk(self, value: Any, role: int, name: str, argument: str, where: str, depth: int = 0) -> Iterator[Found]:
        if depth > _MAX_DEPTH or len(name) > LONGEST_NAME:
            what = f"is nested deeper than {_MAX_DEPTH} levels, or under a name of more than {LONGEST_NAME} characters"
            raise BadInput(what, where=f"{self._path}: data[{self._op[:_SHOWN]!r}]")
        if value is None:
            yield role, name, argument, None
        elif isinstance(value, list):
            for at, item in enumerate(value):
                yield from self.walk(item, role, f"{name}.{at}", "", f"{where}[{at}]", depth + 1)
        elif isinstance(value, dict):
            leaf = self._leaf(value, where)
            if leaf is not None:
                yield role, name, argument, leaf
                return
            for key, item in value.items():
                yield from self.walk(item, role, f"{name}.{key}", key, f"{where}.{key}", depth + 1)
        else:
            raise BadInput(f"is {type(value).__name__}, not a recorded value", where=f"{self._path}: {where}")

    def _leaf(self, value: dict[str, Any], where: str) -> Leaf | None:
        try:
            if isinstance(value.get("type"), str):
                return msgspec.convert(value, Leaf)
            if str(value.get("class_type", "")).endswith("P2POp") and isinstance(value.get("tensor"), dict):
                leaf = msgspec.convert(value["tensor"], Leaf)
                leaf.peer = f"{value.get('op')}:{value.get('peer')}"
                return leaf
        except msgspec.ValidationError as error:
            raise BadInput(f"is no recorded value: {error}", where=f"{self._path}: {where}") from error
        return None
