"""A tensor is read once per step, and again after something may have written to it, whoever counts the writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_kit import Kit

from dump_reading import Dump

LEVELS = pytest.mark.parametrize("level", ["L0", "L1", "mix"])
VALUES = np.array([-2.0, -1.0, 0.0, 1.0], np.float32)


def twice(kit: Kit) -> Any:
    return kit.module("Twice", lambda _, x: x * 2)


def nested(kit: Kit, inner: Any) -> Any:
    return kit.module("Nested", lambda self, x: self.inner(x), inner=inner)


def two_in_a_row(kit: Kit, between: Any) -> Any:
    """Two modules, and what happens between them."""

    def call(self: Any, x: Any) -> Any:
        y = self.first(x)
        between(y)
        return self.second(y)

    return kit.module("Net", call, first=nested(kit, nested(kit, twice(kit))), second=nested(kit, twice(kit)))


@pytest.mark.parametrize("copies", [1, 8192])  # large ones are read another way
@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_tensor_that_passes_through_many_modules_is_read_once(
    kit: Kit, tmp_path: Path, level: str, copies: int
) -> None:
    x = kit.tensor(np.tile(VALUES, copies))
    dump, measured = kit.measured(tmp_path, two_in_a_row(kit, lambda _: None), x, level=level)
    assert sum(name.startswith(f"{kit.container}.") for name in dump.data) == 5
    assert measured == 3, "x, what the first module gave, and what the second gave"


@LEVELS
def test_what_was_written_to_is_read_again(kit: Kit, tmp_path: Path, level: str) -> None:
    unseen = []
    for name, (write, expected) in kit.writes.items():
        net = two_in_a_row(kit, write)
        dump, _ = kit.measured(tmp_path / name, net, kit.tensor(VALUES), level=level)
        calls = [value for key, value in dump.data.items() if ("Nested" if level != "L1" else "__mul__") in key]
        given, taken = calls[0]["output"][0]["Norm"], calls[-1]["input_args"][0]["Norm"]
        assert given == pytest.approx(np.linalg.norm(VALUES * 2)), name
        if taken != pytest.approx(np.linalg.norm(expected(VALUES * 2))):
            unseen.append(name)
    assert unseen == []


@LEVELS
def test_inputs_that_the_caller_fills_anew_are_read_again(kit: Kit, tmp_path: Path, level: str) -> None:
    net, x = two_in_a_row(kit, lambda _: None), kit.tensor(VALUES)
    write, expected = kit.writes["memory of an array"]

    with kit.api.record(net, tmp_path, level=level):
        net(x)
        write(x)
        net(x)
    data = Dump(tmp_path).data
    calls = [value for key, value in data.items() if ("first.Nested" if level != "L1" else "__mul__") in key]
    calls = calls if level != "L1" else calls[::2]
    norms = [call["input_args"][0]["Norm"] for call in calls]
    assert norms == pytest.approx([np.linalg.norm(VALUES), np.linalg.norm(expected(VALUES))])


def test_single_points_show_every_write(kit: Kit, tmp_path: Path) -> None:
    """At this level nothing is watched, so nothing may be used again."""
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="debug")
    norms = {}
    for name, (write, expected) in kit.writes.items():
        x = kit.tensor(VALUES) * 2
        debugger.save(x, name, save_backward=False)
        write(x)
        debugger.save(x, name, save_backward=False)
        norms[name] = np.linalg.norm(expected(VALUES * 2))
    debugger.close()
    data = Dump(tmp_path, index="debug").data
    assert {name: data[f"{name}.1.debug"]["Norm"] for name in norms} == pytest.approx(norms)
