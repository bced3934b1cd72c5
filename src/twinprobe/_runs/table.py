"""The tensor table of a run: one row per recorded value, columnar from the first chunk on.

First a column, then a recorded value, then the table that is built of both; last how the entries of a dump.json
become rows.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from twinprobe._lazy import polars as pl
from twinprobe._runs.dump_json import Entries, check_values
from twinprobe._runs.json_pieces import memory_budget, text_bytes
from twinprobe._runs.names import DIRECTIONS, GRADIENTS, LONGEST_NAME
from twinprobe.errors import BadInput

# A column of the tensor table that grows chunk by chunk, and takes little memory while it does.

# So many chunks become one. More are not joined: room for a whole column is found only beside all of the chunks.
_TOGETHER = 16
_GATHERED = 1 << 17
# What polars keeps for each text beside its bytes.
_VIEW = 16


class Column:
    """Chunks of one kind. A chunk of texts that are all null is only the number of its rows."""

    __slots__ = ("_bytes", "_large", "_rows", "_small")

    def __init__(self) -> None:
        self._large: list[pl.Series | int] = []
        self._small: list[pl.Series | int] = []
        self._rows = self._bytes = 0

    def add(self, chunk: pl.Series | int, text_bytes: int = 0) -> None:
        """Append a chunk, with so many bytes of text that no other column has."""
        self._rows += chunk if isinstance(chunk, int) else len(chunk)
        self._bytes += text_bytes
        self._small.append(chunk)
        if len(self._small) == _TOGETHER:
            self._large.append(_joined(self._small))
            self._small = []

    def copy(self) -> Column:
        """Another column with the same chunks."""
        copy = Column()
        copy._large, copy._small, copy._rows = self._large.copy(), self._small.copy(), self._rows
        return copy

    @property
    def text_cost(self) -> int:
        """The bytes of memory that it takes as a column of texts."""
        empty = all(isinstance(chunk, int) for chunks in (self._large, self._small) for chunk in chunks)
        return 0 if empty else self._bytes + _VIEW * self._rows

    def whole(self) -> pl.Series:
        """All rows, once. Large columns consist of several chunks."""
        parts = self._large
        if self._small:
            parts.append(_joined(self._small))
        self._large, self._small = [], []
        if all(isinstance(part, int) for part in parts):
            return _nothing(self._rows)
        series = [_nothing(part) if isinstance(part, int) else part for part in parts]
        return series[0] if len(series) == 1 else pl.concat(series, rechunk=False)


def _joined(chunks: list[pl.Series | int]) -> pl.Series | int:
    rows = [chunk for chunk in chunks if isinstance(chunk, int)]
    if len(rows) == len(chunks):
        return sum(rows)
    return pl.concat([_nothing(chunk) if isinstance(chunk, int) else chunk for chunk in chunks], rechunk=True)


@lru_cache(maxsize=2)  # all empty columns of a run share one
def _nothing(rows: int) -> pl.Series:
    return pl.Series(dtype=pl.String).clear(rows)


def gathered(column: pl.Series, places: NDArray[np.uint32]) -> pl.Series:
    """These rows of a column, in pieces that find room where those of the last column were."""
    parts = [column.gather(places[index : index + _GATHERED]) for index in range(0, len(places), _GATHERED)]
    return pl.concat(parts, rechunk=False) if parts else column.clear()


def text_chunk(texts: list[str] | list[str | None]) -> tuple[pl.Series | int, int]:
    """A chunk of texts, and how many bytes they have."""
    if texts.count(None) == len(texts):  # type: ignore[arg-type]  # what is not there can be counted as well
        return len(texts), 0
    chunk = pl.Series(texts, dtype=pl.String)
    return chunk, int(chunk.estimated_size())


# One recorded value of a call, as dump.json spells it and as the tables show it.

# What a leaf is. NULL is a recorded None; VALUE is a scalar or another plain Python value.
TENSOR, VALUE, NULL = 0, 1, 2

_SHOWN_AS_TEXT = frozenset({"src", "dst", "group_src", "group_dst"})
_MAX_ELEMENTS = 1 << 62
# NaN and the infinities, which JSON proper lacks and recorders write all the same.
SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

Stat = float | int | bool | str | None
Dim = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class Leaf(msgspec.Struct, gc=False):
    """A leaf of an op entry.

    Fields of the file first. The last three are ours, under names that no recorder writes: ``settle`` fills the
    kind and the shown shape; ``peer`` names the operation and the other rank of a point-to-point call.
    """

    type: str
    dtype: str | None = None
    shape: list[Dim] | None = None
    Max: Stat = None
    Min: Stat = None
    Mean: Stat = None
    Norm: Stat = None
    requires_grad: bool | None = None
    md5: Stat = None  # a 0-d tensor's own value in xor runs
    data_name: str | None = None
    value: Any = None
    format: str | None = None
    group_ranks: list[int] | None = None
    layout: str | None = None  # how a weight is stored, where that is not [out, in]
    kind: int = msgspec.field(default=TENSOR, name="(kind)")
    shown_shape: str | None = msgspec.field(default=None, name="(shown shape)")
    peer: str | None = msgspec.field(default=None, name="(peer)")


NOTHING = Leaf("None", kind=NULL, Max="None", Min="None", Mean="None", Norm="None")

_shape_texts: dict[tuple[int, ...], str] = {}


def settle(leaf: Leaf | None, argument: str) -> Leaf:
    """Give a decoded leaf its final form: what the tables show as dtype, shape and statistics.

    Raises ValueError for a shape that no memory could hold.
    """
    if leaf is None:
        return NOTHING
    leaf.kind = TENSOR
    if leaf.dtype is not None and leaf.shape is not None:
        key = tuple(leaf.shape)
        text = _shape_texts.get(key)
        if text is None:
            text = _shape_text(key)
        leaf.shown_shape = text
        return leaf
    _show_value(leaf, argument)
    return leaf


def _shape_text(shape: tuple[int, ...]) -> str:
    if prod(shape) > _MAX_ELEMENTS:
        raise ValueError(f"shape {list(shape)} has more elements than any memory holds")
    if len(_shape_texts) > 10_000:
        _shape_texts.clear()
    text = _shape_texts[shape] = str(list(shape))
    return text


def _show_value(leaf: Leaf, argument: str) -> None:
    leaf.kind = VALUE
    leaf.shown_shape = "[]"
    if leaf.type != "str" and isinstance(leaf.value, str):
        leaf.value = SPECIAL.get(leaf.value, leaf.value)  # it was put in quotes to be read
    of_type = f"<class '{type(leaf.value).__name__}'>"
    if isinstance(leaf.value, list | dict):
        leaf.value = str(leaf.value)  # no more of it is needed, and its items take much more room than their text
    value = leaf.value
    if argument in _SHOWN_AS_TEXT and value is not None:
        leaf.dtype, value = leaf.type, str(value)
    elif leaf.type == "torch.Size":
        leaf.dtype, leaf.shown_shape, value = "torch.Size", str(value), None
    elif leaf.type == "slice":
        leaf.dtype, leaf.shown_shape, value = "slice", "(3,)", None
    elif leaf.type == "ellipsis":
        leaf.dtype = "ellipsis"
    elif leaf.group_ranks is not None:
        leaf.dtype, value = leaf.type, str(leaf.group_ranks)
    elif leaf.format is not None:
        leaf.dtype, value = "<class 'NoneType'>", None
    else:
        leaf.dtype = of_type
    leaf.Max = leaf.Min = leaf.Mean = leaf.Norm = "None" if value is None else value


def value_digest(leaf: Leaf) -> str | None:
    """The checksum that stands for a value that is no tensor, so that checksum runs compare values too."""
    if leaf.kind == NULL:
        return None
    if leaf.group_ranks is not None:
        return str(leaf.group_ranks)
    text = "" if leaf.value is None else str(leaf.value)
    return f"{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def meaning(leaf: Leaf) -> str | None:
    """The part of a value beyond its shown statistics (slice bounds, sizes, memory format), for equality."""
    if leaf.kind != VALUE:
        return None
    if leaf.format is not None:
        return leaf.format
    return str(leaf.value) if leaf.type in {"torch.Size", "slice"} else None


# What a row is to its call. Rows of one call stand in this order.
INPUT, PARAMETER, OUTPUT, GRADIENT, POINT = range(5)

# What a statistic is: nothing recorded, or a value of one of these kinds.
ABSENT, FLOAT, INT, TEXT, BOOL = range(5)

STATS = ("max", "min", "mean", "norm")
ATTENTION_MASK = r"\.forward\.\d+\.(?:input|kwargs)\.(?:\w+_)?attention_mask$"  # the name of a row
_FIELDS = ("Max", "Min", "Mean", "Norm")
_CODES = {float: FLOAT, int: INT, str: TEXT, bool: BOOL, type(None): TEXT}
_CHUNK = 8192
# Texts may be long: so many bytes of a file make a chunk, however few rows they are.
_CHUNK_BYTES = 2 << 20
# Bytes of a row beside its texts: call, role, kind, and four statistics with their kinds.
_ROW = 4 + 1 + 1 + 4 * 9
_STAT_TEXTS = tuple(f"{stat}_text" for stat in STATS)
_TEXT_FIELDS = {
    "dtype": "dtype", "shape": "shown_shape", "file": "data_name", "layout": "layout", "type": "type", "peer": "peer",
}  # fmt: skip
_TEXTS = frozenset(("name", "digest", "value_digest", "meaning", *_TEXT_FIELDS, *_STAT_TEXTS))
_COLUMNS = ("op", "role", "name", "kind", "dtype", "shape", "requires_grad",
          *(f"{stat}{end}" for stat in STATS for end in ("", "_kind", "_text")),
          "digest", "value_digest", "meaning", "file", "layout", "type", "peer")  # fmt: skip


class TableBuilder:
    """Collects settled leaves and turns them into columns chunk by chunk, so that few objects live at a time."""

    def __init__(self) -> None:
        self._columns: defaultdict[str, Column] = defaultdict(Column)
        self._rows = 0
        self._restarts: dict[int, int] = {}
        self._op: list[int] = []
        self._role: list[int] = []
        self._name: list[str] = []
        self._leaf: list[Leaf] = []
        self._chunk_began = 0
        self._last_place = -1
        self._in_order = True

    @property
    def cost(self) -> int:
        """The bytes of memory of all rows that have become columns, and of putting them in order."""
        texts = sum(column.text_cost for name, column in self._columns.items() if name in _TEXTS)
        return (_ROW * self._rows + texts) * (2 if self._restarts or not self._in_order else 1)

    def add(self, op: int, role: int, name: str, leaf: Leaf) -> None:
        """Append one row."""
        self._op.append(op)
        self._role.append(role)
        self._name.append(name)
        self._leaf.append(leaf)

    def end_op(self, place: int = 0) -> bool:
        """Say that a call is complete and ``place`` bytes of the file are read; tell whether its chunk is, too."""
        if len(self._op) < _CHUNK and place - self._chunk_began < _CHUNK_BYTES:
            return False
        self._flush()
        self._chunk_began = place
        return True

    def restart(self, op: int) -> None:
        """Forget the rows that this call has so far."""
        self._restarts[op] = self._rows + len(self._op)

    def build(self) -> pl.DataFrame:
        """All rows in order, those of one call sorted by role. The builder is empty after that."""
        self._flush()
        columns = {name: self._columns.pop(name).whole() for name in _COLUMNS if name in self._columns}
        columns |= {name: columns[_STAT_TEXTS[0]].alias(name) for name in _STAT_TEXTS if name not in columns}
        columns = {name: columns[name] for name in _COLUMNS}
        if self._restarts or not self._in_order:
            order = self._order(columns["op"].to_numpy(), columns["role"].to_numpy())
            for name in columns:  # one after the other, so that there is never a second copy of all
                columns[name] = gathered(columns[name], order)
        return pl.DataFrame(columns)

    def _order(self, op: NDArray[Any], role: NDArray[Any]) -> NDArray[np.uint32]:
        """Which rows, in which order."""
        order = _places(op, role).argsort(kind="stable").astype(np.uint32)
        if self._restarts:
            begins = np.zeros(int(op.max(initial=0)) + 1, np.uint32)
            begins[list(self._restarts)] = list(self._restarts.values())
            order = order[order >= begins[op[order]]]
        return order

    def _flush(self) -> None:
        leaves = self._leaf
        op, role = pl.Series(self._op, dtype=pl.Int32), pl.Series(self._role, dtype=pl.UInt8)
        places = _places(op.to_numpy(), role.to_numpy())
        if len(places):
            first_fits, self._last_place = bool(places[0] >= self._last_place), int(places[-1])
            self._in_order &= first_fits and bool((places[1:] >= places[:-1]).all())
        self._columns["op"].add(op)
        self._columns["role"].add(role)
        self._add_texts("name", self._name)
        self._columns["kind"].add(pl.Series([leaf.kind for leaf in leaves], dtype=pl.UInt8))
        self._columns["requires_grad"].add(pl.Series([leaf.requires_grad for leaf in leaves], dtype=pl.Boolean))
        self._put_statistics(leaves)
        self._add_texts("digest", [None if leaf.md5 is None else str(leaf.md5) for leaf in leaves])
        self._add_texts("value_digest", [None if leaf.kind == TENSOR else value_digest(leaf) for leaf in leaves])
        self._add_texts("meaning", [meaning(leaf) if leaf.kind == VALUE else None for leaf in leaves])
        for column, field in _TEXT_FIELDS.items():
            self._add_texts(column, [getattr(leaf, field) for leaf in leaves])
        self._rows += len(self._op)
        self._op, self._role, self._name, self._leaf = [], [], [], []

    def _put_statistics(self, leaves: list[Leaf]) -> None:
        """Three columns for each: its number, its kind, and its text where it is no plain float."""
        shown: list[list[str | None]] = []
        for stat, field in zip(STATS, _FIELDS, strict=True):
            numbers, codes, texts = _stat_columns([getattr(leaf, field) for leaf in leaves], leaves)
            self._columns[stat].add(pl.Series(numbers))
            self._columns[f"{stat}_kind"].add(pl.Series(codes))
            shown.append(texts)
        first, first_bytes = text_chunk(shown[0])
        # A value that is no tensor is shown in all four. What is the same in all of them is there once.
        for column, texts in zip(_STAT_TEXTS[1:], shown[1:], strict=True):
            same = texts == shown[0]
            if column not in self._columns and not same:
                self._columns[column] = self._columns[_STAT_TEXTS[0]].copy()
            if column in self._columns:
                self._columns[column].add(*((first, 0) if same else text_chunk(texts)))
        self._columns[_STAT_TEXTS[0]].add(first, first_bytes)

    def _add_texts(self, name: str, texts: list[str] | list[str | None]) -> None:
        self._columns[name].add(*text_chunk(texts))


def _places(op: NDArray[Any], role: NDArray[Any]) -> NDArray[np.int64]:
    """What rows are ordered by."""
    return cast("NDArray[np.int64]", op.astype(np.int64) * 8 + role)


def _stat_columns(
    values: list[Any], leaves: list[Leaf]
) -> tuple[NDArray[np.float64], NDArray[np.uint8], list[str | None]]:
    """One statistic of all rows: its number, its kind, and its text where it is no plain float."""
    codes = np.fromiter(map(_CODES.__getitem__, map(type, values)), dtype=np.uint8, count=len(values))
    texts: list[str | None] = [None] * len(values)
    odd = np.flatnonzero(codes != FLOAT)
    if len(odd):
        values = list(values)
        for row in odd.tolist():
            value = values[row]
            if type(value) is str:
                number = SPECIAL.get(value) if leaves[row].kind == TENSOR else None
                values[row] = number
                if number is not None:
                    codes[row] = FLOAT
                    continue
                texts[row] = value
            else:
                texts[row] = str(value)
                if type(value) is int and abs(value) > 1 << 1000:
                    values[row] = None
    return np.array(values, dtype=np.float64), codes, texts


def table_of(rows: Iterable[tuple[int, int, str, Leaf | None]]) -> pl.DataFrame:
    """The table of values that are in memory: of each its call, its role, its name, and the leaf."""
    builder = TableBuilder()
    for op, role, name, leaf in rows:
        builder.add(op, role, name, settle(leaf, name.rpartition(".")[2]))
    return builder.build()


# From op entries to rows: which leaves a call has, in which role, under which name.

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
NamedLeaf = tuple[int, str, str, Leaf | None]  # role, row name, the argument's own name, leaf


class FlatEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """The usual entry: no container inside the argument lists. Most calls decode straight into it."""

    input_args: list[Leaf | None] = []
    input_kwargs: dict[str, Leaf | None] = {}
    input: list[Leaf | None] = []
    output: list[Leaf | None] = []
    parameters: dict[str, Leaf | None] = {}


_decode_flat = msgspec.json.Decoder(FlatEntry).decode
_decode_any = msgspec.json.Decoder().decode


def build_table(path: Path, entries: Entries, *, single_points: bool) -> tuple[list[str], Any, list[str]]:
    """Walk all entries; return the op names, the tensor table and notes on what was left out."""
    builder = TableBuilder()
    ops: dict[str, int] = {}
    skipped, first_skipped = 0, ""
    room = _ValueBudget(entries.size)
    for name, entry in entries:
        if not single_points and DIRECTIONS.isdisjoint(name.rsplit(".", 2)[-2:]):
            skipped, first_skipped = skipped + 1, first_skipped or name
            continue
        count = len(ops)
        index = ops.setdefault(name, count)
        if index < count:
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
                decoded = decode_entry(path, name, entry) if entries.raw else entry
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


class _ValueBudget:
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
    rows = 0
    for section, suffix, role in _SECTIONS:
        content = getattr(flat, section)
        if not content:
            continue
        rows += len(content)
        if type(content) is dict:
            for key, leaf in content.items():
                _add(builder, op, role, f"{name}.{suffix}.{key}", key, leaf)
        else:
            for index, leaf in enumerate(content):
                _add(builder, op, role, f"{name}.{suffix}.{index}", "", leaf)
    return rows


def _add(builder: TableBuilder, op: int, role: int, name: str, argument: str, leaf: Leaf | None) -> None:
    settled = settle(leaf, argument)
    if settled.data_name:
        name = settled.data_name.rpartition(".")[0] or name
    builder.add(op, role, name, settled)


def decode_entry(path: Path, name: str, raw: Any) -> Any:
    """An entry of a dump.json, of any structure; BadInput where it is damaged or out of proportion."""
    check_values(path, memoryview(raw), name)
    try:
        return _decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"cannot be decoded: {error}", where=f"{path}: data[{name!r}]") from error


def _nested_rows(path: Path, name: str, entry: Any, single_points: bool) -> Iterator[NamedLeaf]:
    def walk(value: Any, role: int, row: str, argument: str, where: str, depth: int = 0) -> Iterator[NamedLeaf]:
        if depth > _MAX_DEPTH or len(row) > LONGEST_NAME:
            what = f"is nested deeper than {_MAX_DEPTH} levels, or under a name of more than {LONGEST_NAME} characters"
            raise BadInput(what, where=f"{path}: data[{name[:_SHOWN]!r}]")
        if value is None:
            yield role, row, argument, None
        elif isinstance(value, list):
            for index, item in enumerate(value):
                yield from walk(item, role, f"{row}.{index}", "", f"{where}[{index}]", depth + 1)
        elif isinstance(value, dict):
            leaf = _leaf(value, where)
            if leaf is not None:
                yield role, row, argument, leaf
                return
            for key, item in value.items():
                yield from walk(item, role, f"{row}.{key}", key, f"{where}.{key}", depth + 1)
        else:
            raise BadInput(f"is {type(value).__name__}, not a recorded value", where=where)

    where = f"{path}: data[{name!r}]"
    if single_points:
        yield from walk(entry, POINT, name, "", where)
        return
    if not isinstance(entry, dict):
        raise BadInput(f"is {type(entry).__name__}, not an object", where=where)
    if GRADIENTS in name.rsplit(".", 2)[-2:]:
        for parameter, leaves in entry.items():
            gradient = leaves[0] if isinstance(leaves, list) and len(leaves) == 1 else leaves
            yield from walk(gradient, GRADIENT, f"{name}.{parameter}", parameter, f"{where}.{parameter}")
        return
    for section, suffix, role in _SECTIONS:
        content = entry.get(section)
        if content is None:
            continue
        if not isinstance(content, list | dict):
            raise BadInput(f"is {type(content).__name__}, not a list or an object", where=f"{where}.{section}")
        yield from walk(content, role, f"{name}.{suffix}", "", f"{where}.{section}")


def _leaf(value: dict[str, Any], where: str) -> Leaf | None:
    try:
        if isinstance(value.get("type"), str):
            return msgspec.convert(value, Leaf)
        if str(value.get("class_type", "")).endswith("P2POp") and isinstance(value.get("tensor"), dict):
            leaf = msgspec.convert(value["tensor"], Leaf)
            leaf.peer = f"{value.get('op')}:{value.get('peer')}"
            return leaf
    except msgspec.ValidationError as error:
        raise BadInput(f"is not a recorded value: {error}", where=where) from error
    return None
