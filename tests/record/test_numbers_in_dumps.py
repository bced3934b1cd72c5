"""Numbers on their way into dump.json: rounded as frameworks round them, written as the json module writes them."""

from __future__ import annotations

import json
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinprobe._measure.statistics import Statistics
from twinprobe._record.entries import Entry, Note, Renderer, Row, round_to

NUMBERS = st.floats() | st.sampled_from([65519.9, 65520.0, 3.4028235677973366e38, 1e-45, 5e-324, -0.0])


@given(NUMBERS)
@settings(deadline=None)
def test_singles_and_halves_are_rounded_as_numpy_rounds(value: float) -> None:
    with np.errstate(over="ignore"):
        for kind, dtype in (("float32", np.float32), ("float16", np.float16)):
            np.testing.assert_array_equal(round_to(kind, value), float(dtype(value)))


@given(NUMBERS)
@example(3.3895314e38)
@settings(deadline=None)
def test_bfloat16_is_the_nearest_of_its_numbers(value: float) -> None:
    torch = pytest.importorskip("torch")
    expected = torch.tensor(value, dtype=torch.float64).to(torch.float32).to(torch.bfloat16).item()
    np.testing.assert_array_equal(round_to("bfloat16", value), expected)


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())


@given(st.dictionaries(st.text(), VALUES), st.text(), VALUES)
@settings(deadline=None)
def test_what_is_put_together_by_hand_is_what_the_json_module_writes(
    kwargs: dict[str, Any], digest: str, lone: Any
) -> None:
    row = Row(values=Statistics(2.5, -inf, nan, 1.0), digest=digest)
    note = Note("torch.Tensor", "torch.float64", (2, 3), row, True)
    entry = Entry("op", {"input_kwargs": kwargs, "output": [note, lone]})
    text = Renderer(summary_mode="md5", precision="high").entry(entry)
    found = json.loads(text)
    expected = {
        key: None if value is None else {"type": type(value).__name__, "value": value} for key, value in kwargs.items()
    }
    assert json.dumps(found["input_kwargs"]) == json.dumps(expected)
    assert found["output"][0]["md5"] == digest
    assert json.dumps([found["output"][0][key] for key in ("Max", "Min")]) == "[2.5, -Infinity]"
    assert len(found["output"]) == 2
