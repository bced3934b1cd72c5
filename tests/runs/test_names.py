"""The grammar of recorded names."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinprobe._runs.names import parse_op
from twinprobe._runs.run import open_run


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("Functional.linear.3.forward", ("Functional", "linear", "", "forward", 3)),
        ("Module.layers.0.mlp.MLP.backward.1", ("Module", "layers.0.mlp", "MLP", "backward", 1)),
        ("Cell.net.Dense.forward.0", ("Cell", "net", "Dense", "forward", 0)),
        ("Primitive.matmul.MatMul.0.forward", ("Primitive", "matmul", "MatMul", "forward", 0)),
        ("Jit.step.0.forward", ("Jit", "step", "", "forward", 0)),
        ("Module.fc.Linear.parameters_grad", ("Module", "fc", "Linear", "parameters_grad", -1)),
        ("Module.fc.Linear.parameters_grad.2", ("Module", "fc", "Linear", "parameters_grad", 2)),
        ("Module.0.Linear.forward.0", ("Module", "0", "Linear", "forward", 0)),
        ("loss.0.debug", ("", "loss.0.debug", "", "", -1)),
    ],
)
def test_names_are_taken_apart(name: str, parts: tuple) -> None:
    op = parse_op(name)
    assert (op.prefix, op.body, op.cls, op.direction, op.call) == parts


def test_all_recorded_names_can_be_put_together_again(reference: Path) -> None:
    for path in reference.glob("*/dumps/*/step0/*/dump.json"):
        for name in open_run(path).ops:
            op = parse_op(name)
            assert op.direction
            assert op.renumbered(op.call) == name


@given(st.lists(st.text(alphabet="ab.01", max_size=5), max_size=5).map(".".join))
def test_any_text_can_be_parsed(name: str) -> None:
    assert parse_op(name).text == name
