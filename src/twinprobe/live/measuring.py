"""How far apart the tensors of many paired rows are."""

from __future__ import annotations

from math import nan

from twinprobe.errors import DamagedTensor
from twinprobe.live.live_run import Values
from twinprobe.measure.gaps import Gaps, Job, Places, compare_all, compare_places
from twinprobe.measure.tolerance import Gap, Tolerance
from twinprobe.runs.host_tensor import HostTensor

Pair = tuple[int, int, str]  # row of the raw run, row of the base, why they belong together
_ELEMENTS_AT_ONCE = 16 << 20
_STATISTICS = ("max", "min", "mean", "norm")
_BUNCH = 1 << 32  # a place is a number: so many times the bunch, and the place in it


class _Bunch:
    """Pairs that wait to be measured: plain ones by their places, or any by their jobs."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.pairs: list[int] = []
        self.places: Places = ([], [], [], [])
        self.jobs: list[Job] = []
        self.elements = 0

    def add_places(self, pair: int, raw: int, base: int, size: int, rows: int) -> None:
        self.pairs.append(pair)
        raws, bases, sizes, turned = self.places
        raws.append(raw)
        bases.append(base)
        sizes.append(size)
        turned.append(rows)
        self.elements += size

    def add_job(self, pair: int, job: Job) -> None:
        self.pairs.append(pair)
        self.jobs.append(job)
        self.elements += job[0].size


class PairGaps:
    """The gap of each pair. The same two tensors are measured once; a recording is read bit by bit."""

    def __init__(self, raw: Values, base: Values, rows: list[Pair], tolerance: Tolerance) -> None:
        self._raw, self._base, self._tolerance = raw, base, tolerance
        self._found: list[Gap | int | None] = [None] * len(rows)
        self._bunches: list[Gaps] = []
        self._measure_all(rows)
        del self._raw, self._base  # the tensors must not live as long as the numbers

    @property
    def all_same(self) -> bool:
        """Whether every pair was measured and none differs."""
        for one in self._found:
            if type(one) is not int and (one is None or (isinstance(one, Gap) and not one.same)):
                return False
        return all(bunch.all_same for bunch in self._bunches)

    def __getitem__(self, at: int) -> Gap | None:
        """The gap of a pair; None where there is nothing to measure."""
        found = self._found[at]
        if not isinstance(found, int):
            return found
        gap: Gap = self._bunches[found // _BUNCH][found % _BUNCH]
        return gap

    def _measure_all(self, rows: list[Pair]) -> None:
        """Most pairs are float32 of one shape, at two addresses: they are taken together."""
        found = self._found
        first: dict[tuple[int, int, bool], int] = {}
        again: list[tuple[int, int]] = []
        plain, odd = _Bunch(), _Bunch()
        keys, other_keys = self._raw.identities, self._base.identities
        turned_rows, other_turned = self._raw.turned, self._base.turned
        place_of, other_place_of = self._raw.place, self._base.place
        for at, (row, other, _) in enumerate(rows):
            turned = (row in turned_rows) != (other in other_turned)
            if keys[row] and other_keys[other]:
                known = first.setdefault((keys[row], other_keys[other], turned), at)
                if known != at:
                    again.append((at, known))
                    continue
            place, other_place = place_of(row), other_place_of(other)
            if place is not None and other_place is not None:
                shape = place[1][::-1] if turned else place[1]
                if shape == other_place[1] and (not turned or len(shape) <= 2):
                    rows_of_raw = shape[-1] if turned and len(shape) == 2 else 0
                    plain.add_places(at, place[0], other_place[0], place[2], rows_of_raw)
                    if plain.elements > _ELEMENTS_AT_ONCE:
                        self._measure(plain, rows)
                    continue
            self._add_odd(odd, at, rows[at], turned)
            if odd.elements > _ELEMENTS_AT_ONCE:
                self._measure(odd, rows)
        self._measure(plain, rows)
        self._measure(odd, rows)
        for at, known in again:
            found[at] = found[known]

    def _add_odd(self, bunch: _Bunch, at: int, pair: Pair, turned: bool) -> None:
        try:
            one, two = self._raw.spot(pair[0]), self._base.spot(pair[1])
        except DamagedTensor as damage:
            self._found[at] = Gap(False, str(damage), nan, nan, nan, nan, nan)
            return
        if one is None or two is None:
            self._found[at] = self._by_statistics(pair[0], pair[1])
            return
        bunch.add_job(at, (one, two, turned))

    def _measure(self, bunch: _Bunch, rows: list[Pair]) -> None:
        def hosts(at: int) -> tuple[HostTensor, HostTensor]:
            row, other, _ = rows[bunch.pairs[at]]
            one, two = self._raw.tensor(row), self._base.tensor(other)
            assert one is not None
            assert two is not None
            return one, two

        if bunch.jobs:
            gaps = compare_all(bunch.jobs, hosts, self._tolerance, in_all=len(rows))
        else:
            gaps = compare_places(bunch.places, hosts, self._tolerance, in_all=len(rows))
        for place, pair in enumerate(bunch.pairs, _BUNCH * len(self._bunches)):
            self._found[pair] = place
        self._bunches.append(gaps)
        bunch.clear()
        self._raw.let_go()
        self._base.let_go()

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
