"""Where API calls are recorded, a tensor is read once per step, and again after something may have written to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.ops import assign_add as imported_assign_add

from twinprobe.record.config import load_config
from twinprobe.record.mindspore.adapter import make_recorder

ASSIGN_ADD = ops.AssignAdd()


class Twice(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x * 2


class Nested(nn.Cell):
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, x: Any) -> Any:
        return self.inner(x)


class Net(nn.Cell):
    """Two cells in a row, and what happens between them."""

    def __init__(self, between: Callable[[Any], None]) -> None:
        super().__init__()
        self.first, self.second, self.between = Nested(Nested(Twice())), Nested(Twice()), between
        self.seen = np.empty(0)

    def construct(self, x: Any) -> Any:
        y = self.first(x)
        self.between(y)
        return self.second(y)


def ones_like(x: Any) -> Any:
    return ms.Tensor(np.ones(x.shape, np.float32))


def set_item(x: Any) -> None:
    x[0] = 7.0


def write_to_the_array(x: Any) -> None:
    x.asnumpy()[...] = 9.0


def assign_function(x: Any) -> None:
    ops.assign_add(x, ones_like(x))


def imported_function(x: Any) -> None:
    imported_assign_add(x, ones_like(x))


def primitive_of_a_module(x: Any) -> None:
    ASSIGN_ADD(x, ones_like(x))


def copy_method(x: Any) -> None:
    x.copy_(ones_like(x))


def assign_value(x: Any) -> None:
    x.assign_value(ones_like(x))


def recorded(net: Net, folder: Path, level: str) -> tuple[dict[str, Any], int]:
    """The dump of one call, and how many tensors were measured for it."""
    recorder = make_recorder(load_config(dump_path=folder, level=level, task="statistics"))
    recorder.start(net)
    net(ms.Tensor(np.arange(4, dtype=np.float32) - 2))
    recorder.stop()
    recorder.engine.close()
    data: dict[str, Any] = json.loads(next(folder.rglob("dump.json")).read_text())["data"]
    return data, recorder.rows._measured


def test_a_tensor_that_passes_through_many_cells_is_read_once(tmp_path: Path) -> None:
    data, measured = recorded(Net(lambda _: None), tmp_path, "mix")
    assert sum(name.startswith("Cell.") for name in data) == 5
    assert measured == 3, "x, what the first cell gave, and what the second gave"


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(
    "write",
    [
        set_item,
        write_to_the_array,
        assign_function,
        imported_function,
        primitive_of_a_module,
        copy_method,
        assign_value,
    ],
)
def test_what_was_written_to_is_read_again(tmp_path: Path, level: str, write: Callable[[Any], None]) -> None:
    data, _ = recorded(Net(write), tmp_path, level)
    given, taken = (
        data[name][part][0]["Norm"]
        for name, part in (
            ("Cell.first.Nested.forward.0", "output"),
            ("Cell.second.Nested.forward.0", "input_args"),
        )
    )
    values = np.array([-4.0, -2.0, 0.0, 2.0], np.float32)
    expected = {
        set_item: [7.0, *values[1:]],
        write_to_the_array: [9.0] * 4,
        copy_method: [1.0] * 4,
        assign_value: [1.0] * 4,
    }.get(write, values + 1)
    assert given == pytest.approx(np.linalg.norm(values))
    assert taken == pytest.approx(np.linalg.norm(expected))
