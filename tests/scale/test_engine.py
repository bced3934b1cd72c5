"""Work spread over processes: every item once, errors as results, whatever the number of workers."""

from __future__ import annotations

import os

import pytest

from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.spread import spread
from twinprobe.errors import BadInput


def square(number: int) -> int:
    if number == 3:
        raise BadInput("three is not wanted", where="here", hint="leave it out")
    return number * number


def whoami(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_item_gives_its_result_or_its_error(workers: int) -> None:
    found = dict(spread(square, range(7), options=EngineOptions(workers=workers)))
    assert sorted(found) == list(range(7))
    error = found.pop(3)
    assert isinstance(error, BadInput)
    assert str(error) == "here: three is not wanted (leave it out)"
    assert found == {at: at * at for at in (0, 1, 2, 4, 5, 6)}


def test_several_workers_are_other_processes() -> None:
    assert os.getpid() not in dict(spread(whoami, range(4), options=EngineOptions(workers=2))).values()
    assert set(dict(spread(whoami, range(4), options=EngineOptions(workers=1))).values()) == {os.getpid()}


def test_nothing_to_do_is_nothing_done() -> None:
    assert list(spread(square, [], options=EngineOptions(workers=2))) == []
