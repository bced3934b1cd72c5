"""How a run cuts its sequences of tokens into calls, rows and padding.

A run is taken apart into passes (one forward call of the model each) and its tokens are strung together to sequences:
a decode call carries on the sequence of its row, a packed row holds several, padding belongs to none.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import RunCalls, Shape, canonical, dims
from twinprobe._runs.names import BACKWARD, FORWARD, OpName, is_module, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import INPUT, OUTPUT, TENSOR
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import TwinProbeError

Ints = NDArray[np.int64]
NONE = -1

_MOST_TOKENS = 1 << 24  # ids of one tensor that are read
_TABLE = re.compile(r"embed", re.IGNORECASE)
_NOT_WORDS = re.compile(r"pos|wpe|type|segment|rotary|rope|expert|time", re.IGNORECASE)
POSITIONS = re.compile(r"\.(position_ids|positions|pos_ids)$")
MASK = re.compile(r"\.(attention_mask|attn_mask|mask)$")
_CUTS = re.compile(r"\.(cu_seq_?lens\w*|cu_seqlen\w*|actual_seq_q?len\w*)$")


@dataclass
class Pass:
    """One forward call of the model: its place among the side's runs, and the ids of its tokens, row by row."""

    run: int
    call: int
    """The run's call that looks up the tokens."""
    shape: Shape
    """Rows and columns of the ids; a flat list of tokens is one row."""
    flat: bool
    ids: Ints | None
    positions: Ints | None
    valid: NDArray[np.bool_]
    cuts: Ints | None = None
    """Where the sequences of a packed row begin."""
    past: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    """How many columns each row's cache holds before this pass."""

    @property
    def tokens(self) -> int:
        """How many tokens it takes, padding included."""
        return prod(self.shape)


@dataclass
class TokenSequence:
    """Tokens that follow one another: the place (pass, row, column), the id and the position of each."""

    places: list[tuple[int, int, int]] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)


@dataclass
class Cut:
    """How one side cuts its tokens: the passes, which call of a run belongs to which of them, and the sequences."""

    runs: list[Run]
    passes: list[Pass]
    of_op: list[Ints]
    """For each run the pass (counted over all runs) of each call; NONE for calls outside every pass."""
    sequences: list[TokenSequence]
    by_content: bool = False

    @property
    def known(self) -> bool:
        """Whether there is anything to align tokens by."""
        return bool(self.sequences)

    @property
    def shapes(self) -> list[Shape]:
        """Rows and columns of the tokens of each pass."""
        return [one.shape for one in self.passes]

    @property
    def padding(self) -> int:
        """How many tokens are padding."""
        return sum(int((~one.valid).sum()) for one in self.passes)

    def words(self) -> str:
        """``prefill [1, 8] + 4 decode calls``."""
        first, *rest = self.passes
        packed = any(sum(place[0] == 0 and place[1] == 0 for place in one.places[:1]) for one in self.sequences[1:])
        if not rest:
            return f"one forward call {list(first.shape)}" + (
                f", {len(self.sequences)} sequences packed" if packed else ""
            )
        kinds: Counter[str] = Counter()
        for one in rest:
            going_on = bool(one.past.any())
            kinds["forward calls" if not going_on else "decode calls" if one.shape[-1] == 1 else "prefill chunks"] += 1
        parts = [f"{count} {name if count > 1 else name[:-1]}" for name, count in kinds.items()]
        opening = "prefill" if any(one.past.any() for one in rest) else "forward call"
        return " + ".join([f"{opening} {list(first.shape)}", *parts])


# Taking a run apart.


def cut_of(runs: Sequence[Run]) -> Cut | None:
    """Take the runs of one side apart, in their order; None where no call looks up tokens."""
    passes: list[Pass] = []
    of_op: list[Ints] = []
    by_content = False
    for number, run in enumerate(runs):
        side = RunCalls(run)
        table = _table_calls(side)
        if not table:
            return None
        belongs = _passes_of(side, table)
        of_op.append(np.where(belongs >= 0, belongs + len(passes), NONE))
        for at, call in enumerate(table):
            found = _pass(side, number, call, np.flatnonzero(belongs == at))
            if found is None:
                return None
            by_content |= found[1]
            passes.append(found[0])
    cut = Cut(list(runs), passes, of_op, [], by_content)
    if all(one.ids is not None for one in passes):
        cut.sequences = _sequences(passes)
    return cut


def _table_calls(side: RunCalls) -> list[int]:
    """The calls of the table that turns ids into vectors, the first of its kind in the run; one a pass."""
    if side.run.single_points:
        return []
    found: dict[str, list[int]] = defaultdict(list)
    for number, op in enumerate(side.run.op_names):
        if op.direction != FORWARD or not _TABLE.search(op.cls if op.is_module else op.body):
            continue
        if op.is_module and _NOT_WORDS.search(f"{op.body.rpartition('.')[2]} {op.cls}"):
            continue
        taken = next((row for row in side.rows(number) if side.roles[row] == INPUT and _is_integer(side, row)), NONE)
        if taken != NONE and dims(side.shapes[taken]):
            found[op.without_call].append(number)
    modules = [calls for name, calls in found.items() if is_module(name)]
    return next(iter(modules or found.values()), [])


def _passes_of(side: RunCalls, table: list[int]) -> Ints:
    """The pass of each call: by the numbers of module calls, for others by the module around, else by order."""
    count, run = len(table), side.run
    ops = run.op_names
    belongs = np.full(len(ops), NONE, dtype=np.int64)
    if count == 1:
        belongs[:] = 0
        return belongs
    heads: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, op in enumerate(ops):
        if op.is_module and op.call >= 0:
            heads[op.without_call, op.direction].append(number)
    for calls in heads.values():
        if len(calls) % count == 0:
            each = len(calls) // count
            for place, number in enumerate(sorted(calls, key=lambda at: ops[at].call)):
                belongs[number] = place // each
    place_of = side.number_of
    for number, name in enumerate(run.ops):
        around, seen = run.parents.get(name), 0
        while belongs[number] == NONE and around is not None and seen < 64:
            belongs[number] = belongs[place_of[around]] if around in place_of else _numbered(around, count)
            around, seen = run.parents.get(around), seen + 1
    starts = np.array(table)
    for number, op in enumerate(ops):
        if belongs[number] != NONE:
            continue
        twin = side.forward(number) if op.direction == BACKWARD else NONE
        if twin != NONE and belongs[twin] != NONE:
            belongs[number] = belongs[twin]
        elif op.direction == FORWARD:
            belongs[number] = max(int(np.searchsorted(starts, number, side="right")) - 1, 0)
    return belongs


def _numbered(name: str, count: int) -> int:
    """The pass of a module call that was not recorded itself."""
    op = parse_op(name)
    return op.call if op.is_module and 0 <= op.call < count else NONE


def _pass(side: RunCalls, number: int, call: int, ops: Ints) -> tuple[Pass, bool] | None:
    taken = next(row for row in side.rows(call) if side.roles[row] == INPUT and _is_integer(side, row))
    shape = dims(side.shapes[taken]) or ()
    if not shape or len(shape) > 2 or prod(shape) > _MOST_TOKENS:
        return None
    flat = len(shape) == 1
    cells: Shape = (1, shape[0]) if flat else shape
    ids = _read(side, taken)
    by_content = False
    if ids is None:
        given = next((row for row in side.rows(call) if side.roles[row] == OUTPUT and side.kinds[row] == TENSOR), NONE)
        ids = _hashed(side.run, side.files[given], prod(cells)) if given != NONE else None
        by_content = ids is not None
    positions: Ints | None = None
    valid: NDArray[np.bool_] | None = None
    cuts: Ints | None = None
    for op in ops.tolist():
        name: OpName = side.run.op_names[op]
        if name.direction != FORWARD:
            continue
        absolute = name.is_module and re.search(r"wpe|position", name.body.rpartition(".")[2]) and op != call
        for row in side.rows(op):
            if side.roles[row] != INPUT or side.kinds[row] != TENSOR:
                continue
            text = side.names[row]
            if positions is None and _is_integer(side, row) and (absolute or POSITIONS.search(text)):
                positions = _spread(_read(side, row), dims(side.shapes[row]), cells)
            elif valid is None and MASK.search(text):
                valid = _visible(side, row, cells)
            elif cuts is None and _is_integer(side, row) and _CUTS.search(text):
                cuts = _boundaries(_read(side, row), prod(cells))
    if valid is None:
        valid = np.ones(prod(cells), dtype=bool)
    return Pass(number, call, cells, flat, ids, positions, valid, cuts, np.zeros(cells[0], np.int64)), by_content


def _is_integer(side: RunCalls, row: int) -> bool:
    return side.kinds[row] == TENSOR and "int" in (canonical(side.dtypes[row]) or "")


def _read(side: RunCalls, row: int) -> Any:
    """The elements of a small tensor; None where it was not kept or cannot be read."""
    shape = dims(side.shapes[row])
    tensor = _opened(side.run, side.files[row]) if shape is not None and prod(shape) <= _MOST_TOKENS else None
    if tensor is None or tensor.shape != shape:
        return None
    found = np.asarray(tensor.data[:])
    if tensor.dtype == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    return found


def _opened(run: Run, file: str | None) -> HostTensor | None:
    try:
        return open_named(run.tensor_folder, file) if file is not None else None
    except (TwinProbeError, OSError):
        return None


def _hashed(run: Run, file: str | None, count: int) -> Ints | None:
    """Numbers that stand for the vectors of tokens whose ids were not kept: equal vectors, equal numbers."""
    tensor = _opened(run, file) if count else None
    if tensor is None or tensor.data.size % count or not tensor.data.size:
        return None
    vectors = np.ascontiguousarray(np.asarray(tensor.data[:])).reshape(count, -1)
    words = [int.from_bytes(blake2b(vector.tobytes(), digest_size=7).digest(), "little") for vector in vectors]
    return np.array(words, dtype=np.int64)


def _spread(found: Any, shape: Shape | None, cells: Shape) -> Ints | None:
    """Positions of every token; one row of them may stand for all rows."""
    if found is None or shape is None or found.dtype.kind not in "iu":
        return None
    positions: Ints = found.astype(np.int64)
    if cells[1] > 2 and positions.size and positions.max() <= 1:
        return None  # a mask: some tables of positions take it, and count by themselves
    if positions.size == prod(cells):
        return positions
    return np.tile(positions, cells[0]) if positions.size == cells[1] else None


def _visible(side: RunCalls, row: int, cells: Shape) -> NDArray[np.bool_] | None:
    """Which tokens are no padding, by a mask [rows, keys], or by what the queries of [rows, 1, queries, keys] see."""
    shape = dims(side.shapes[row])
    if shape is None or len(shape) not in (2, 4) or shape[0] not in (1, cells[0]) or shape[-1] < cells[1]:
        return None
    if len(shape) == 4 and shape[2] != cells[1]:
        return None
    found = _read(side, row)
    if found is None or found.dtype.kind not in "iubf":
        return None
    keys = found.reshape(shape)
    seen = keys != 0 if keys.dtype.kind != "f" or len(shape) == 2 else keys > -1e4
    past = shape[-1] - cells[1]
    if len(shape) == 4:
        seen = seen[:, 0]
        # Queries that would see nothing, those of padding, are often made to see everything: they say nothing.
        ahead = (seen & ~np.tri(cells[1], shape[-1], past, dtype=bool)).any(axis=2)
        counts = ~ahead | ahead.all()
        seen = (seen & counts[:, :, None]).any(axis=1)
    own = np.broadcast_to(seen[:, past:], cells)
    return own.reshape(-1).copy() if own.any() else None


def _boundaries(found: Any, tokens: int) -> Ints | None:
    if found is None or found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        return None
    starts = np.unique(np.concatenate([[0], found.astype(np.int64)]))
    return starts if starts[-1] == tokens and starts[0] == 0 else None


def _sequences(passes: Sequence[Pass]) -> list[TokenSequence]:
    """String the tokens of all passes together."""
    found: list[TokenSequence] = []
    going_on: dict[int, TokenSequence] = {}  # by the row
    columns: Counter[int] = Counter()
    for number, one in enumerate(passes):
        assert one.ids is not None
        rows, width = one.shape
        before, going_on = going_on, {}
        for row in range(rows):
            cells = np.arange(row * width, (row + 1) * width)
            cells = cells[one.valid[cells]]
            pieces = _packed(one, cells) if rows == 1 else [cells]
            for place, piece in enumerate(pieces):
                if not len(piece):
                    continue
                slot = _slot(one, piece, before, place) if rows == 1 else row
                earlier = before.get(slot)
                sequence = earlier if earlier is not None and _carries_on(one, piece, earlier) else None
                if sequence is None:
                    columns[slot] = 0
                    found.append(sequence := TokenSequence())
                columns[slot] -= _taken_back(sequence, one, piece)
                if rows > 1 or len(pieces) == 1:
                    one.past[row] = columns[slot]
                sequence.places += [(number, row, int(cell) - row * width) for cell in piece]
                sequence.ids += one.ids[piece].tolist()
                sequence.positions += [NONE] * len(piece) if one.positions is None else one.positions[piece].tolist()
                going_on[slot] = sequence
                columns[slot] += width
        going_on = {**before, **going_on}
    return found


def _packed(one: Pass, cells: Ints) -> list[Ints]:
    """The tokens of one row, cut where a new sequence begins."""
    if one.cuts is not None:
        edges = np.searchsorted(cells, one.cuts[1:-1])
    elif one.positions is not None:
        edges = np.flatnonzero(np.diff(one.positions[cells]) != 1) + 1
    else:
        return [cells]
    return np.split(cells, edges)


def _slot(one: Pass, piece: Ints, before: dict[int, TokenSequence], usual: int) -> int:
    """Which earlier sequence tokens of a packed row may carry on: the one that ends just before their position."""
    if one.positions is None:
        return usual
    fitting = [slot for slot, earlier in before.items() if earlier.positions[-1] + 1 == one.positions[piece[0]]]
    return fitting[0] if len(fitting) == 1 else usual


def _carries_on(one: Pass, piece: Ints, earlier: TokenSequence) -> bool:
    """Whether these tokens follow those of an earlier pass, whose keys and values were kept."""
    if one.positions is not None:
        return bool(one.positions[piece[0]] > 0) or len(piece) == 1
    return len(piece) == 1 or len(piece) < len(earlier.places) // 2


def _taken_back(sequence: TokenSequence, one: Pass, piece: Ints) -> int:
    """Drop tokens that were guessed and rejected (assisted decoding): the next call computes their positions again."""
    if one.positions is None or not sequence.places or len(piece) == 1:
        return 0
    kept, before = sum(position < one.positions[piece[0]] for position in sequence.positions), len(sequence.places)
    del sequence.places[kept:], sequence.ids[kept:], sequence.positions[kept:]
    return int(before - kept)


def reorders_rows(cut: Cut) -> bool:
    """Whether rows carry on other rows of the call before, as beams do. Seen where each call takes all tokens again."""
    for one, other in pairwise(cut.passes):
        rows, width = one.shape
        if one.ids is None or other.ids is None or other.shape[0] != rows or other.shape[1] <= width:
            continue
        known, heads = one.ids.reshape(rows, width), other.ids.reshape(rows, -1)[:, :width]
        if (heads != known).any() and {*map(tuple, heads.tolist())} <= {*map(tuple, known.tolist())}:
            return True
    return False


def count_tokens(cut: Cut) -> None:
    """String tokens together whose ids were not kept: all of them, in the order in which they were computed."""
    sequence = TokenSequence()
    width = 0
    for number, one in enumerate(cut.passes):
        rows, columns = one.shape
        narrower = (number > 0 and (rows, columns) < cut.passes[number - 1].shape) or columns == 1
        if number and narrower and rows == cut.passes[0].shape[0]:
            one.past[:] = width
        width = width + columns if one.past.any() else columns
        sequence.places += [(number, row, column) for row in range(rows) for column in range(columns)]
    sequence.ids = list(range(len(sequence.places)))
    sequence.positions = [NONE] * len(sequence.ids)
    cut.sequences = [sequence]
