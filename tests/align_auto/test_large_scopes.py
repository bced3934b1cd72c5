"""A scope of thousands of calls: the work grows with its length, and finds what a table of all combinations finds."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from twinprobe._align.auto import (
    layer_scores as cells,
)
from twinprobe._align.auto import (
    rule_calls,
    sequence,
)
from twinprobe._align.auto import (
    rule_calls as call_scores,
)
from twinprobe._align.auto import (
    rule_calls as rule_results,
)
from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.fingerprints import Fingerprints, ValueCells, same_values
from twinprobe._align.auto.layer_scores import KindCells
from twinprobe._align.auto.sequence import guess_by_keys, pair_by_cells, pair_by_table
from twinprobe._align.calls import RunCalls
from twinprobe._runs.run import Run, open_run

FUNCTIONS = ("reshape", "transpose", "add", "mul", "softmax", "matmul", "gelu", "cat", "exp", "sqrt")
Call = tuple[str, list[int], float]


def _calls(count: int) -> list[Call]:
    rng = random.Random(count)
    return [(rng.choice(FUNCTIONS), [2, rng.choice((8, 16, 24)), 32], rng.lognormvariate(0, 3)) for _ in range(count)]


def _tensor(shape: list[int], value: float) -> dict[str, Any]:
    statistics = {"Max": value, "Min": -0.9 * value, "Mean": 0.01 * value, "Norm": 7 * value}
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, **statistics, "requires_grad": False}


def _flat_run(folder: Path, calls: list[Call]) -> Run:
    """API calls in a row, without construct.json."""
    data, taken, seen = {}, 1.0, dict.fromkeys(FUNCTIONS, 0)
    for function, shape, given in calls:
        entry = {"input_args": [_tensor(shape, taken)], "input_kwargs": {}, "output": [_tensor(shape, given)]}
        data[f"Functional.{function}.{seen[function]}.forward"] = entry
        seen[function] += 1
        taken = given
    folder.mkdir()
    document = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": data}
    (folder / "dump.json").write_text(json.dumps(document))
    return open_run(folder)


class _Counter:
    """How many combinations were looked at, in cells or in tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cells = self.in_tables = 0
        for looks in (ValueCells, KindCells):
            monkeypatch.setattr(looks, "__call__", self._counted(looks.__call__, _broadcast))
        for module in (call_scores, rule_results):
            monkeypatch.setattr(module, "same_values", self._counted(same_values, _product))
        for module in (rule_calls, rule_results):
            monkeypatch.setattr(module, "pair_by_table", self._counted(pair_by_table, _table))

    def _counted(self, function: Callable[..., Any], size: Callable[..., int]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            self.cells += size(*arguments)
            self.in_tables += size(*arguments) if size is not _broadcast else 0
            return function(*arguments)

        return counted


def _broadcast(_self: Any, rows: np.ndarray, columns: np.ndarray) -> int:
    return int(np.prod(np.broadcast_shapes(rows.shape, columns.shape)))


def _product(_one: Fingerprints, rows: list[int], _other: Fingerprints, others: list[int]) -> int:
    return len(rows) * len(others)


def _table(scores: np.ndarray, _edge: float) -> int:
    return int(scores.size)


def test_work_grows_with_the_number_of_calls_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counter = _Counter(monkeypatch)
    looked_at = {}
    for count in (1500, 6000):
        calls = _calls(count)
        first, last = count // 3, count // 3 + count // 20
        one = _flat_run(tmp_path / f"one{count}", calls)
        other = _flat_run(tmp_path / f"other{count}", calls[:first] + calls[last:])
        counter.cells = 0
        found = {relation.target: relation.golden for relation in align_runs(one, other).relations}
        looked_at[count] = counter.cells
        expected = dict(zip((*one.ops[:first], *one.ops[last:]), other.ops, strict=True))
        right = sum(found.get((name,)) == (partner,) for name, partner in expected.items())
        assert right >= 0.99 * len(expected)
        assert len(found) <= 1.01 * len(expected)
    assert 0 < looked_at[6000] <= 4.5 * looked_at[1500]
    assert looked_at[6000] < 6000 * 5700 / 5


def test_calls_without_anything_in_common_cost_no_more_than_a_band(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counter = _Counter(monkeypatch)
    calls = _calls(3000)
    one = _flat_run(tmp_path / "one", calls)
    other = _flat_run(tmp_path / "other", [(name, [5, 7], 1000 + at) for at, (name, _, _) in enumerate(calls[::-1])])
    align_runs(one, other)
    rounds = 160 + 320 + 640
    assert counter.cells <= 3 * 3000 * rounds * 3  # three looks (kind, input, output), for each rule and once opened


def test_cells_find_what_tables_find(monkeypatch: pytest.MonkeyPatch, mindspore_pair: tuple[Run, Run]) -> None:
    by_tables = align_runs(*mindspore_pair)
    monkeypatch.setattr(sequence, "_WHOLE", 0)
    counter = _Counter(monkeypatch)
    by_cells = align_runs(*mindspore_pair)
    assert counter.cells > counter.in_tables == 0
    assert by_cells.relations == by_tables.relations


@pytest.mark.parametrize("names", ["mix_stat", "mix_md5"])
def test_each_cell_says_what_the_table_says(reference: Path, names: str) -> None:
    folder = reference / "msprobe" / "dumps"
    one, other = (
        Fingerprints(RunCalls(open_run(next((folder / f"{names}_{side}").rglob("dump.json"))))) for side in ("a", "b")
    )
    rows, others = [-1, *range(len(one.digest))], [*range(len(other.digest)), -1]
    table = same_values(one, rows, other, others)
    asked = ValueCells(one, rows, other, others)
    everything = asked(np.arange(len(rows))[:, None], np.arange(len(others))[None, :])
    assert table.any()
    assert np.array_equal(everything, table)
    assert asked.seen


@pytest.mark.parametrize("table", [0, 10**6])
def test_sorts_that_meet_are_looked_at_once(monkeypatch: pytest.MonkeyPatch, table: int) -> None:
    monkeypatch.setattr(cells, "_TABLE", table)
    rng = np.random.default_rng(1)
    mine, theirs = rng.integers(0, 40, 300), rng.integers(20, 60, 200)
    asked: list[tuple[int, int]] = []

    def fit(one: int, other: int) -> float:
        asked.append((one, other))
        return 100.0 * one - other

    fits = KindCells(mine.tolist(), theirs.tolist(), fit)
    rows, columns = np.arange(300)[:, None], np.arange(200)[None, :]
    assert np.array_equal(fits(rows, columns), 100.0 * mine[:, None] - theirs)
    assert len(asked) == len(set(asked)) == len(set(mine)) * len(set(theirs))


@pytest.mark.parametrize(("rows", "columns"), [(12, 60_000), (20_000, 20), (2000, 2000)])
def test_a_band_holds_a_path_whatever_was_guessed(rows: int, columns: int) -> None:
    short = min(rows, columns)
    middle = short // 2
    guess = [(middle * (rows // short), 1), (middle * (rows // short) + 1, columns - 2)]
    steps = pair_by_cells((rows, columns), lambda at, to: np.where(at % 7 == to % 7, 2.0, -3.0), 0.4, guess, 640)
    assert len(steps) >= middle
    assert all(step.score > 0 for step in steps)


def test_chance_meetings_are_no_guess() -> None:
    rng = np.random.default_rng(2)
    mine, theirs = list(range(1000)), rng.permutation(1000).tolist()
    assert guess_by_keys(mine, theirs, 0.5) == []
    assert guess_by_keys(mine, [None, *mine], 0.5) == [(at, at + 1) for at in range(1000)]
