"""How far apart the tensors of many paired rows are."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import nan, prod
from typing import cast

from twinprobe._live.live_run import Values, address_in
from twinprobe._measure.tolerance import Gap, Gaps, Job, Places, Tolerance, compare_all, compare_places
from twinprobe._record.rows import Note, Row
from twinprobe._runs.names import GRADIENTS, parse_op
from twinprobe._runs.table import GRADIENT, PARAMETER
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import DamagedTensor

Pair = tuple[int, int, str]  # row of the raw run, row of the base, why they belong together
_ELEMENTS_AT_ONCE = 16 << 20
_STATISTICS = ("max", "min", "mean", "norm")
_BATCH = 1 << 32  # a place is a number: so many times the batch, and the place in it


class _Batch:
    """Pairs that wait to be measured: plain ones by their places, or any by their jobs."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.pairs: list[int] = []
        self.places: list[tuple[int, int, int, int]] = []  # two addresses, elements, rows of a raw matrix to be turned
        self.jobs: list[Job] = []
        self.elements = 0

    def add(self, pair: int, note: Note, other: Note, turned: bool) -> bool:
        """Add a pair of tensors by their places; False where the kernel does not take them."""
        one, two = note.row, other.row
        if one is None or two is None:
            return False
        address, other_address = one.address or address_in(note), two.address or address_in(other)
        if not address or not other_address or (address | other_address) & 3:
            return False
        size, turning = _fitting(note.shape, other.shape, turned)
        if size:
            self.pairs.append(pair)
            self.places.append((address, other_address, size, turning))
            self.elements += size
        return size > 0


@lru_cache(maxsize=1024)
def _fitting(shape: tuple[int, ...], other: tuple[int, ...], turned: bool) -> tuple[int, int]:
    """How many elements the kernel would compare, and the rows of a matrix that it must turn; no elements where it does
    not take two tensors of these shapes."""
    size = prod(shape)
    if size < 2 or (turned and len(shape) > 2) or (shape[::-1] if turned else shape) != other:
        return 0, 0
    return size, shape[0] if turned and len(shape) == 2 else 0


class PairGaps:
    """The gap of each pair. The same two tensors are measured once; a recording is read bit by bit."""

    def __init__(self, raw: Values, base: Values, rows: list[Pair], tolerance: Tolerance) -> None:
        self._raw, self._base, self._tolerance = raw, base, tolerance
        self._found: list[Gap | int | None] = [None] * len(rows)
        self._batches: list[Gaps] = []
        self._measure_all(rows)
        del self._raw, self._base  # the tensors must not live as long as the numbers

    @property
    def all_same(self) -> bool:
        """Whether every pair was measured and none differs."""
        for one in self._found:
            if type(one) is not int and (one is None or (isinstance(one, Gap) and not one.same)):
                return False
        return all(batch.all_same for batch in self._batches)

    def __getitem__(self, at: int) -> Gap | None:
        """The gap of a pair; None where there is nothing to measure."""
        found = self._found[at]
        if not isinstance(found, int):
            return found
        gap: Gap = self._batches[found // _BATCH][found % _BATCH]
        return gap

    def _measure_all(self, rows: list[Pair]) -> None:
        """Most pairs of two live runs are float32 of one shape, at two addresses: they are taken together."""
        plain, odd = _Batch(), _Batch()
        again: list[tuple[int, int]] = []
        turned_rows, other_turned = self._raw.turned, self._base.turned
        first: dict[tuple[Row | None, Row | None, bool], int] = {}
        live = self._raw.live is not None and self._base.live is not None
        notes, other_notes = (run.live.value if run.live is not None else [] for run in (self._raw, self._base))
        for at, (row, other, _) in enumerate(rows):
            turned = (row in turned_rows) is not (other in other_turned)
            if live:
                note, other_note = notes[row], other_notes[other]
                known = first.setdefault((note.row, other_note.row, turned), at)
                if known != at and note.row is not None and other_note.row is not None:
                    again.append((at, known))
                    continue
                if plain.add(at, note, other_note, turned):
                    if plain.elements > _ELEMENTS_AT_ONCE:
                        self._measure(plain, rows)
                    continue
            self._add_odd(odd, at, rows[at], turned)
            if odd.elements > _ELEMENTS_AT_ONCE:
                self._measure(odd, rows)
        self._measure(plain, rows)
        self._measure(odd, rows)
        for at, known in again:
            self._found[at] = self._found[known]

    def _add_odd(self, batch: _Batch, at: int, pair: Pair, turned: bool) -> None:
        try:
            one, two = self._raw.spot(pair[0]), self._base.spot(pair[1])
        except DamagedTensor as damage:
            self._found[at] = Gap(False, str(damage), nan, nan, nan, nan, nan)
            return
        if one is None or two is None:
            self._found[at] = self._by_statistics(pair[0], pair[1])
            return
        batch.pairs.append(at)
        batch.jobs.append((one, two, turned))
        batch.elements += one.size

    def _measure(self, batch: _Batch, rows: list[Pair]) -> None:
        def hosts(at: int) -> tuple[HostTensor, HostTensor]:
            row, other, _ = rows[batch.pairs[at]]
            one, two = self._raw.tensor(row), self._base.tensor(other)
            assert one is not None
            assert two is not None
            return one, two

        if batch.jobs:
            gaps = compare_all(batch.jobs, hosts, self._tolerance, in_all=len(rows))
        else:
            columns = tuple(map(list, zip(*batch.places, strict=True))) or ([], [], [], [])
            gaps = compare_places(cast(Places, columns), hosts, self._tolerance, in_all=len(rows))
        for place, pair in enumerate(batch.pairs, _BATCH * len(self._batches)):
            self._found[pair] = place
        self._batches.append(gaps)
        batch.clear()
        self._raw.let_go_files()
        self._base.let_go_files()

    def _by_statistics(self, row: int, other: int) -> Gap | None:
        """A recording without tensors: its statistics are compared, which can only say that two tensors differ."""
        if self._raw.task == self._base.task == "tensor":
            return None
        self._raw.measure()
        self._base.measure()
        worst = 0.0
        for stat in _STATISTICS:
            one, two = self._raw.table[stat][row], self._base.table[stat][other]
            if one is None or two is None:
                return None
            atol, rtol = self._tolerance.of("float32")
            if not abs(one - two) <= max(atol, 1e-6 * abs(two)) + max(rtol, 1e-5) * abs(two):
                return Gap(False, f"{stat} {one:.6g} against {two:.6g}", abs(one - two), nan, nan, nan, nan)
            worst = max(worst, abs(one - two))
        return Gap(True, "", worst, nan, nan, nan, nan)


# Parameters that belong together, of which only one got a gradient.

# The two calls, the parameter, what is wrong, why the two belong together, and the raw run's row.
Missing = tuple[tuple[str, str], str, str, str, int]


def missing_gradients(raw: Values, base: Values, rows: list[Pair]) -> Iterator[Missing]:
    """Each such parameter once, by the pairs of parameters among these rows."""
    sides = _with_gradient(raw), _with_gradient(base)
    if not sides[0] or not sides[1]:
        return
    seen: set[tuple[str, str]] = set()
    roles = raw.columns["role"], base.columns["role"]
    for row, other, rule in rows:
        if roles[0][row] != PARAMETER or roles[1][other] != PARAMETER:
            continue
        mine, theirs = _parameter(raw, row), _parameter(base, other)
        if mine in seen:
            continue
        seen.add(mine)
        has = mine in sides[0], theirs in sides[1]
        if has[0] != has[1]:
            who = "raw" if has[0] else "base"
            calls = f"{mine[0]}.{GRADIENTS}.0", f"{theirs[0]}.{GRADIENTS}.0"
            yield calls, mine[1], f"only the {who} model has a gradient here", rule, row


def _with_gradient(run: Values) -> set[tuple[str, str]]:
    found = set()
    for op, role, name in zip(*(run.columns[column] for column in ("op", "role", "name")), strict=True):
        if role == GRADIENT:
            whole = parse_op(run.ops[op])
            found.add((f"{whole.prefix}.{_joined(whole.body, whole.cls)}", name.removeprefix(whole.text + ".")))
    return found


def _parameter(run: Values, row: int) -> tuple[str, str]:
    whole = parse_op(run.ops[run.columns["op"][row]])
    name = run.columns["name"][row].removeprefix(f"{whole.text}.parameters.")
    return f"{whole.prefix}.{_joined(whole.body, whole.cls)}", name


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))
