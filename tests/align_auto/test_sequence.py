"""Pairing two sequences in order: best, never crossing, honest about what is open."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import slow
from twinprobe._align.auto import sequence
from twinprobe._align.auto.sequence import Group, Problem, pair_in_order


def no_groups(_starts: np.ndarray, _width: int) -> dict[int, list[Group]]:
    """Every pair is one to one."""
    return {}


def _problem(scores: np.ndarray, edge: float = 0.5, groups=no_groups) -> Problem:
    rows, columns = scores.shape
    edges = tuple(np.array([0.0, *[edge] * (size - 1), 0.0]) for size in (rows, columns))
    return Problem((rows, columns), lambda at, to: scores[at, to], groups, edges)


def _brute(scores: np.ndarray, edge: float) -> float:
    """The best total by trying every path, one cell at a time."""
    rows, columns = scores.shape
    price = [[0.0] * (rows + 1), [0.0] * (columns + 1)]
    for side, size in enumerate((rows, columns)):
        price[side][1:size] = [edge] * (size - 1)
    known: dict[tuple[int, int, str], float] = {}

    def best(at: int, to: int, state: str) -> float:
        if (at, to, state) in known:
            return known[at, to, state]
        options = [0.0] if at == rows and to == columns else []
        if state == "a":
            options.append(best(at, to, "") - price[0][at])
        if state == "b":
            options.append(best(at, to, "") - price[1][to])
        if at < rows and state != "b":
            cost = sequence._EXTEND if state == "a" else price[0][at]
            options.append(best(at + 1, to, "a") - cost)
        if to < columns and state != "a":
            cost = sequence._EXTEND if state == "b" else price[1][to]
            options.append(best(at, to + 1, "b") - cost)
        if at < rows and to < columns and not state:
            options.append(scores[at, to] + best(at + 1, to + 1, ""))
        known[at, to, state] = max(options) if options else -1e9
        return known[at, to, state]

    return best(0, 0, "")


def _total(problem: Problem, steps, edge: float) -> float:
    """What a list of steps costs and earns."""
    rows, columns = problem.sizes
    total, at, to = 0.0, 0, 0
    ends = [*((step.target, step.golden, step.score) for step in steps), ((rows, rows), (columns, columns), 0.0)]
    for target, golden, score in ends:
        for side, (first, last) in enumerate(((at, target[0]), (to, golden[0]))):
            if last > first:
                prices = problem.edges[side]
                total -= prices[first] + prices[last] + sequence._EXTEND * (last - first - 1)
        total += score
        at, to = target[1], golden[1]
    return total


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**31), st.integers(1, 7), st.integers(1, 7), st.sampled_from([0.1, 0.3, 1.5]))
def test_the_best_path_is_found(seed: int, rows: int, columns: int, edge: float) -> None:
    scores = np.random.default_rng(seed).normal(0, 2, (rows, columns))
    problem = _problem(scores, edge)
    steps = pair_in_order(problem)
    assert _total(problem, steps, edge) == pytest.approx(_brute(scores, edge), abs=1e-4)


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31), st.integers(1, 12), st.integers(1, 12))
def test_pairs_never_cross_and_confidence_is_a_share(seed: int, rows: int, columns: int) -> None:
    steps = pair_in_order(_problem(np.random.default_rng(seed).normal(0, 2, (rows, columns))))
    for one, after in pairwise(steps):
        assert one.target[1] <= after.target[0]
        assert one.golden[1] <= after.golden[0]
    assert all(0.0 <= step.confidence <= 1.0 for step in steps)


def test_a_group_takes_several_members_of_one_side() -> None:
    scores = np.full((4, 2), -5.0)
    scores[3, 1] = 3.0

    def groups(_starts: np.ndarray, _width: int) -> dict[int, list[Group]]:
        return {2: [Group(3, 1, 1, 4.0)]}

    steps = pair_in_order(_problem(scores, groups=groups))
    assert [(step.target, step.golden) for step in steps] == [((0, 3), (0, 1)), ((3, 4), (1, 2))]
    assert all(step.confidence > 0.9 for step in steps)


def test_nothing_tells_which_of_equal_members_is_missing() -> None:
    scores = np.full((5, 4), 3.0)
    steps = pair_in_order(_problem(scores))
    assert len(steps) == 4
    assert max(step.confidence for step in steps) < 0.9


@pytest.mark.parametrize("missing", [700, *slow(0, 2000)])
def test_a_band_finds_what_the_whole_table_finds(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    kinds = np.random.default_rng(3).integers(0, 12, 2200)
    others = np.concatenate([kinds[:missing], kinds[missing + 150 :]])
    problem = Problem(
        (len(kinds), len(others)), lambda at, to: np.where(kinds[at] == others[to], 2.0, -2.0), no_groups,
        (np.full(len(kinds) + 1, 0.5), np.full(len(others) + 1, 0.5)),
    )  # fmt: skip
    banded = pair_in_order(problem)
    monkeypatch.setattr(sequence, "_WHOLE", 10**9)
    whole = pair_in_order(problem)
    assert sum(step.score for step in banded) == pytest.approx(sum(step.score for step in whole))
    agree = {(step.target, step.golden) for step in banded} & {(step.target, step.golden) for step in whole}
    assert len(agree) >= 0.98 * len(whole)
