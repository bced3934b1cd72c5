"""The tensor table of a run: one row per recorded value, columnar from the first chunk on."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

# A column of the tensor table that grows chunk by chunk, and takes little memory while it does.

# So many chunks become one. More are not joined: room for a whole column is found only beside all of the chunks.
_TOGETHER = 16
_GATHERED = 1 << 17
# What polars keeps for each text beside its bytes.
_VIEW = 16


class Column:
    """Chunks of one kind. One of texts in which there is none is only the number of its rows."""

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
        other = Column()
        other._large, other._small, other._rows = self._large.copy(), self._small.copy(), self._rows
        return other

    @property
    def text_cost(self) -> int:
        """The bytes of memory that it takes as a column of texts."""
        empty = all(isinstance(chunk, int) for chunks in (self._large, self._small) for chunk in chunks)
        return 0 if empty else self._bytes + _VIEW * self._rows

    def whole(self) -> pl.Series:
        """All rows, once. Large columns consist of several chunks."""
        import polars as pl

        parts = self._large
        if self._small:
            parts.append(_joined(self._small))
        self._large, self._small = [], []
        if all(isinstance(part, int) for part in parts):
            return _nothing(self._rows)
        series = [_nothing(part) if isinstance(part, int) else part for part in parts]
        return series[0] if len(series) == 1 else pl.concat(series, rechunk=False)


def _joined(chunks: list[pl.Series | int]) -> pl.Series | int:
    import polars as pl

    rows = [chunk for chunk in chunks if isinstance(chunk, int)]
    if len(rows) == len(chunks):
        return sum(rows)
    return pl.concat([_nothing(chunk) if isinstance(chunk, int) else chunk for chunk in chunks], rechunk=True)


def _nothing(rows: int) -> pl.Series:
    import polars as pl

    return pl.Series(dtype=pl.String).clear(rows)


def gathered(column: pl.Series, places: NDArray[np.uint32]) -> pl.Series:
    """These rows of a column, in pieces that find room where those of the last column were."""
    import polars as pl

    parts = [column.gather(places[at : at + _GATHERED]) for at in range(0, len(places), _GATHERED)]
    return pl.concat(parts, rechunk=False) if parts else column.clear()


def text_chunk(texts: list[str] | list[str | None]) -> tuple[pl.Series | int, int]:
    """A chunk of texts, and how many bytes they have."""
    import polars as pl

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
_SPECIAL = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}

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
        leaf.value = _SPECIAL.get(leaf.value, leaf.value)  # it was put in quotes to be read
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
    """What a value says beyond its shown statistics (slice bounds, sizes, memory format), for equality."""
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
_FIELDS = ("Max", "Min", "Mean", "Norm")
_CODES = {float: FLOAT, int: INT, str: TEXT, bool: BOOL, type(None): TEXT}
_CHUNK = 8192
# Texts may be long: so many bytes of a file make a chunk, however few rows they are.
_CHUNK_BYTES = 2 << 20
# Bytes of a row beside its texts: call, role, kind, and four statistics with their kinds.
_ROW = 4 + 1 + 1 + 4 * 9
_SHOWN = tuple(f"{stat}_text" for stat in STATS)
_TEXTS = frozenset(
    ("name", "dtype", "shape", "digest", "value_digest", "meaning", "file", "layout", "type", "peer", *_SHOWN)
)
_NAMES = ("op", "role", "name", "kind", "dtype", "shape", "requires_grad",
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
        import polars as pl

        self._flush()
        columns = {name: self._columns.pop(name).whole() for name in _NAMES if name in self._columns}
        columns |= {name: columns[_SHOWN[0]].alias(name) for name in _SHOWN if name not in columns}
        columns = {name: columns[name] for name in _NAMES}
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
        import polars as pl

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
        self._add_texts("dtype", [leaf.dtype for leaf in leaves])
        self._add_texts("shape", [leaf.shown_shape for leaf in leaves])
        self._columns["requires_grad"].add(pl.Series([leaf.requires_grad for leaf in leaves], dtype=pl.Boolean))
        self._put_statistics(leaves)
        self._add_texts("digest", [None if leaf.md5 is None else str(leaf.md5) for leaf in leaves])
        self._add_texts("value_digest", [None if leaf.kind == TENSOR else value_digest(leaf) for leaf in leaves])
        self._add_texts("meaning", [meaning(leaf) if leaf.kind == VALUE else None for leaf in leaves])
        self._add_texts("file", [leaf.data_name for leaf in leaves])
        self._add_texts("layout", [leaf.layout for leaf in leaves])
        self._add_texts("type", [leaf.type for leaf in leaves])
        self._add_texts("peer", [leaf.peer for leaf in leaves])
        self._rows += len(self._op)
        self._op, self._role, self._name, self._leaf = [], [], [], []

    def _put_statistics(self, leaves: list[Leaf]) -> None:
        """Three columns for each: its number, its kind, and its text where it is no plain float."""
        import polars as pl

        shown: list[list[str | None]] = []
        for stat, field in zip(STATS, _FIELDS, strict=True):
            numbers, codes, texts = _stat_columns([getattr(leaf, field) for leaf in leaves], leaves)
            self._columns[stat].add(pl.Series(numbers))
            self._columns[f"{stat}_kind"].add(pl.Series(codes))
            shown.append(texts)
        first, first_bytes = text_chunk(shown[0])
        # A value that is no tensor is shown in all four. What is the same in all of them is there once.
        for column, texts in zip(_SHOWN[1:], shown[1:], strict=True):
            same = texts == shown[0]
            if column not in self._columns and not same:
                self._columns[column] = self._columns[_SHOWN[0]].copy()
            if column in self._columns:
                self._columns[column].add(*((first, 0) if same else text_chunk(texts)))
        self._columns[_SHOWN[0]].add(first, first_bytes)

    def _add_texts(self, name: str, texts: list[str] | list[str | None]) -> None:
        self._columns[name].add(*text_chunk(texts))


def _places(op: NDArray[Any], role: NDArray[Any]) -> NDArray[np.int64]:
    """What rows are ordered by."""
    places: NDArray[np.int64] = op.astype(np.int64) * 8 + role
    return places


def _stat_columns(
    values: list[Any], leaves: list[Leaf]
) -> tuple[NDArray[np.float64], NDArray[np.uint8], list[str | None]]:
    """One statistic of all rows: its number, its kind, and its text where it is no plain float."""
    codes = np.fromiter(map(_CODES.__getitem__, map(type, values)), dtype=np.uint8, count=len(values))
    texts: list[str | None] = [None] * len(values)
    odd = np.flatnonzero(codes != FLOAT)
    if len(odd):
        values = list(values)
        for at in odd.tolist():
            value = values[at]
            if type(value) is str:
                number = _SPECIAL.get(value) if leaves[at].kind == TENSOR else None
                values[at] = number
                if number is not None:
                    codes[at] = FLOAT
                    continue
                texts[at] = value
            else:
                texts[at] = str(value)
                if type(value) is int and abs(value) > 1 << 1000:
                    values[at] = None
    return np.array(values, dtype=np.float64), codes, texts


def table_of(rows: Iterable[tuple[int, int, str, Leaf | None]]) -> pl.DataFrame:
    """The table of values that are in memory: of each its call, its role, its name, and the leaf."""
    builder = TableBuilder()
    for op, role, name, leaf in rows:
        builder.add(op, role, name, settle(leaf, name.rpartition(".")[2]))
    return builder.build()
