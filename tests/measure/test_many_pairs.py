"""Many pairs at once: in order, a few in memory at a time, one damaged file costs one result."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
from measure_definitions import host

from twinprobe._measure.pair import Loader, PairMetrics, measure_pair, measure_pairs
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput, DamagedTensor

WORKERS = [None, 1, 2, 5]


def tensor(number: int) -> HostTensor:
    return host("float32", np.arange(1, 50 + number) * (1 + number / 1000))


def job(number: int) -> tuple[Loader, Loader]:
    return lambda: tensor(number), lambda: host("float32", np.arange(1, 50 + number))


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("count", [0, 1, 7, 8, 300])
def test_results_come_in_the_order_of_the_jobs(workers: int | None, count: int) -> None:
    found = list(measure_pairs((job(number) for number in range(count)), workers))
    assert found == [measure_pair(*(load() for load in job(number))) for number in range(count)]


@pytest.mark.parametrize("total_bytes", [None, 0, 1 << 20])
def test_the_hint_changes_no_result(total_bytes: int | None) -> None:
    jobs = [job(number) for number in range(20)]
    assert list(measure_pairs(jobs, total_bytes=total_bytes)) == list(measure_pairs(jobs, 2))


@pytest.mark.parametrize("workers", WORKERS)
def test_a_damaged_tensor_is_the_result_of_its_own_job_only(workers: int | None) -> None:
    def damaged() -> HostTensor:
        raise DamagedTensor("is cut short", where="x.pt")

    jobs = [job(0), (damaged, job(1)[1]), (job(2)[0], damaged), job(3)]
    kinds = [type(result) for result in measure_pairs(jobs, workers)]
    assert kinds == [PairMetrics, DamagedTensor, DamagedTensor, PairMetrics]


@pytest.mark.parametrize("workers", WORKERS)
def test_any_other_error_stops_the_run(workers: int | None) -> None:
    def forbidden() -> HostTensor:
        raise BadInput("leads out of the dump", where="../x.pt")

    with pytest.raises(BadInput, match="leads out of the dump"):
        list(measure_pairs([job(0), (forbidden, job(0)[1])], workers))


def test_no_more_pairs_than_workers_are_loaded_at_a_time() -> None:
    lock, loaded, most = threading.Lock(), 0, 0
    taken = 0

    def jobs() -> Iterator[tuple[Loader, Loader]]:
        nonlocal taken
        for number in range(400):
            taken += 1
            yield (lambda number=number: count(number)), job(number)[1]  # type: ignore[misc]

    def count(number: int) -> HostTensor:
        nonlocal loaded, most
        with lock:
            loaded += 1
            most = max(most, loaded)
        made = tensor(number)
        with lock:
            loaded -= 1
        return made

    results = measure_pairs(jobs(), 3)
    next(results)
    assert taken < 400, "jobs are asked for as they are needed"
    assert len(list(results)) == 399
    assert most <= 3


def test_leaving_early_stops_the_work() -> None:
    before = {*threading.enumerate()}
    results = measure_pairs((job(number) for number in range(10_000)), 3)
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert [one.name for one in {*threading.enumerate()} - before if one.name.startswith("twinprobe-pair")] == []
