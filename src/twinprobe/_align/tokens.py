"""Which token of one run is which token of the other, however their sequences are cut into calls, rows and padding.

A run is taken apart into passes (one forward call of the model each) and its tokens are strung together to sequences:
a decode call carries on the sequence of its row, a packed row holds several, padding belongs to none.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
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


# Bringing two sides together.


@dataclass
class TokenPairs:
    """Tokens that both runs hold, in the golden run's order: places (pass, row, column) on either side."""

    target: Cut
    golden: Cut
    places: tuple[Ints, Ints]
    """For each side an array [tokens, 3]."""
    sequence: Ints
    index: Ints
    """The token's number in its golden sequence."""
    ids: Ints
    positions: tuple[Ints, Ints]
    how: str
    notes: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many tokens were aligned."""
        return len(self.index)

    @property
    def same_cut(self) -> bool:
        """Whether both sides hold the same tokens at the same places, so that nothing needs to be gathered."""
        return self.target.shapes == self.golden.shapes and bool(np.array_equal(*self.places))

    def only(self, sequence: int) -> TokenPairs:
        """The tokens of one sequence alone."""
        own = self.sequence == sequence
        return replace(
            self, places=(self.places[0][own], self.places[1][own]), sequence=self.sequence[own], index=self.index[own],
            ids=self.ids[own], positions=(self.positions[0][own], self.positions[1][own]),
        )  # fmt: skip

    def words(self) -> str:
        """``golden one forward call [1, 12] = target prefill [1, 8] + 4 decode calls; 12 tokens aligned by ids``."""
        many = len(set(self.sequence.tolist()))
        of = f" of {many} sequences" if many > 1 else ""
        tokens = "1 token" if self.count == 1 else f"{self.count:,} tokens"
        return f"golden {self.golden.words()} = target {self.target.words()}; {tokens}{of} aligned by {self.how}"

    def describe(self, differ: NDArray[np.bool_]) -> str:
        """Which tokens these are, in words: ``differs from token 12 on``."""
        count = int(differ.sum())
        several = len(set(self.sequence.tolist())) > 1
        if not count or count == self.count:
            return f"all {self.count:,} tokens differ" if count else ""
        parts = []
        for number in dict.fromkeys(self.sequence[differ].tolist()):
            own = np.flatnonzero(self.sequence == number)
            touched = own[differ[own]]
            on = len(own) - len(touched) <= np.flatnonzero(differ[own])[0] and len(touched) > 1
            parts.append((number, self.index[touched].tolist(), bool(on), len(touched) == len(own)))
        if all(on for *_, on, _ in parts) and len({tokens[0] for _, tokens, *_ in parts}) == 1:
            start = parts[0][1][0]
            where = self._sequences([number for number, *_ in parts])
            what = f"differs from token {start} on{where}" if start else f"differs{where or ' everywhere'}"
        elif all(whole for *_, whole in parts):
            what = f"differs{self._sequences([number for number, *_ in parts])}"
        elif count <= 4:
            named = [
                f"{index}" + (f" of sequence {number}" if several else "")
                for number, indices, *_ in parts
                for index in indices
            ]
            what = f"only token{'s' if count > 1 else ''} {', '.join(named)} differ{'' if count > 1 else 's'}"
        else:
            number, indices, *_ = parts[0]
            of = f" of sequence {number}" if several else ""
            what = f"{count:,} of {self.count:,} tokens differ, token {indices[0]}{of} first"
        return what + self._group(differ)

    def _sequences(self, numbers: Sequence[int]) -> str:
        every = len(set(self.sequence.tolist()))
        if len(numbers) == every:
            return " in all sequences" if every > 1 else ""
        named = ", ".join(map(str, numbers[:6])) + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")
        return f" in sequence{'s' if len(numbers) > 1 else ''} {named}"

    def _group(self, differ: NDArray[np.bool_]) -> str:
        """What tokens that differ have in common, and no other token has."""
        for name, side, places in zip(("target", "golden"), (self.target, self.golden), self.places, strict=True):
            number, row, _ = places.T
            later = np.array([bool(one.past.any()) for one in side.passes])[number]
            if later.any() and np.array_equal(differ, later):
                single = all(one.shape[1] == 1 for one in side.passes if one.past.any())
                return f" (just the tokens of the {name}'s {'decode calls' if single else 'later calls'})"
            padded = np.array([not side.passes[at].valid.reshape(side.passes[at].shape)[line].all()
                               for at, line in zip(number.tolist(), row.tolist(), strict=True)])  # fmt: skip
            if padded.any() and not padded.all() and not (differ & ~padded).any():
                return f" (only in sequences that the {name} pads)"
        return ""


def align_tokens(target: Cut, golden: Cut) -> TokenPairs | None:
    """Pair the tokens of two sides; None where they have none in common."""
    links: list[tuple[int, int, int, int, int]] = []  # golden sequence, target sequence, both starts, length
    free = [set(range(len(side.sequences))) for side in (target, golden)]
    exact: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, tokens in enumerate(target.sequences):
        exact[tuple(tokens.ids)].append(number)
    for number, tokens in enumerate(golden.sequences):
        same = exact.get(tuple(tokens.ids))
        if same:
            partner = same.pop(0)
            links.append((number, partner, 0, 0, len(tokens.ids)))
            free[0].discard(partner)
            free[1].discard(number)
    if len(free[0]) * len(free[1]) <= 1 << 14:
        scored = []
        for mine in free[0]:
            for theirs in free[1]:
                start = _overlap(target.sequences[mine], golden.sequences[theirs])
                if start is not None:
                    scored.append((start[2], -theirs, -mine, start))
        for _, theirs, mine, (to, at, length) in sorted(scored, reverse=True):
            # A sequence that was cut by other positions may come in several parts.
            if -mine in free[0]:
                links.append((-theirs, -mine, at, to, length))
                free[0].discard(-mine)
    links.sort()
    if not links:
        return None
    rows: list[list[Any]] = [[] for _ in range(7)]
    for g_number, t_number, at, to, length in links:
        one, other = target.sequences[t_number], golden.sequences[g_number]
        span, back = slice(to, to + length), slice(at, at + length)
        found: tuple[Iterable[Any], ...] = (
            one.places[span], other.places[back], [g_number] * length, range(at, at + length), other.ids[back],
            one.positions[span], other.positions[back],
        )  # fmt: skip
        for values, new in zip(rows, found, strict=True):
            values.extend(new)
    places = tuple(np.array(values, dtype=np.int64).reshape(-1, 3) for values in rows[:2])
    sequence, index, ids, t_positions, g_positions = (np.array(values, dtype=np.int64) for values in rows[2:])
    known = (t_positions != NONE) & (g_positions != NONE)
    by_content = target.by_content or golden.by_content
    agree = bool(known.any()) and bool((t_positions == g_positions)[known].all())
    how = "content" if by_content else "ids"
    pairs = TokenPairs(
        target, golden, (places[0], places[1]), sequence, index, ids, (t_positions, g_positions),
        f"{how} and positions" if agree else how,
    )  # fmt: skip
    pairs.notes = list(_notes(pairs, known, links))
    return pairs


def _overlap(one: TokenSequence, other: TokenSequence) -> tuple[int, int, int] | None:
    """Where two sequences hold the same ids: both starts and how many; None where too few to be sure."""
    shorter, longer = (one, other) if len(one.ids) <= len(other.ids) else (other, one)
    needle, ids = np.array(shorter.ids), np.array(longer.ids)
    best = (0, 0, 0)
    shift = one.positions[0] - other.positions[0] if NONE not in (one.positions[0], other.positions[0]) else 0
    starts = {(0, 0), (max(-shift, 0), max(shift, 0))}
    inside = np.flatnonzero(ids[: len(ids) - len(needle) + 1] == needle[0])[:64]
    for place in inside.tolist():
        starts.add((0, place) if shorter is one else (place, 0))
    # Padding that no mask tells of: the same id again and again before the first token of the other.
    lead = np.flatnonzero(needle == ids[0])[:64]
    starts |= {(place, 0) if shorter is one else (0, place) for place in lead.tolist()}
    for to, at in starts:
        room = min(len(one.ids) - to, len(other.ids) - at)
        same = np.array(one.ids[to : to + room]) == np.array(other.ids[at : at + room])
        length = room if same.all() else int(np.argmin(same))
        best = max(best, (length, -to, -at))
    length, to, at = best[0], -best[1], -best[2]
    enough = length >= min(len(one.ids), len(other.ids)) or length >= max(2, min(len(one.ids), len(other.ids)) // 4)
    return (to, at, length) if enough and length else None


def _notes(pairs: TokenPairs, known: NDArray[np.bool_], links: Sequence[tuple[int, ...]]) -> Iterable[str]:
    t_positions, g_positions = pairs.positions
    other = np.flatnonzero(known & (t_positions != g_positions))
    if len(other):
        at = int(other[0])
        yield (
            f"positions differ for {len(other):,} of {pairs.count:,} tokens, token {pairs.index[at]} of sequence "
            f"{pairs.sequence[at]} first: {t_positions[at]} against {g_positions[at]} in the golden run"
        )
    for name, side, own in (("target", pairs.target, 1), ("golden", pairs.golden, 0)):
        if side.padding:
            yield f"{name}: {side.padding:,} tokens are padding and are not compared"
        used = Counter({link[own]: 0 for link in links})
        for link in links:
            used[link[own]] += link[4]
        left = sum(max(len(one.ids) - used.get(number, 0), 0) for number, one in enumerate(side.sequences))
        if left:
            yield f"{name}: {left:,} tokens have no counterpart and are not compared"
