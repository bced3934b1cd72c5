"""Observing changes nothing: outputs, gradients, weights, optimiser and random numbers stay bit-identical."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from framework_kit import Kit, assert_same_bits

from support import slow


def assert_nothing_changes(kit: Kit, path: Path, make: Any, trained: dict[str, Any], **options: Any) -> None:
    plain = kit.trained(make, lambda _: nullcontext(), **trained)
    recorded = kit.trained(make, lambda model: kit.api.record(model, path, **options), **trained)
    assert_same_bits(plain, recorded)
    assert list(path.rglob("dump.json"))
    assert not list(path.rglob("dump_error_info.log"))


@pytest.mark.parametrize("level", [*slow("L0", "L1"), "mix"])
def test_training_is_bit_identical_when_recorded(kit: Kit, tmp_path: Path, level: str) -> None:
    for at, make in enumerate(kit.models.values()):
        assert_nothing_changes(kit, tmp_path / str(at), make, {}, level=level)


@pytest.mark.parametrize(
    "options",
    [
        {"task": "tensor"},
        {"summary_mode": "md5"},
        {"risk_level": "ALL"},
        *slow({"task": "structure"}, {"summary_mode": "xor"}, {"data_mode": ["forward"]}, {"data_mode": ["backward"]}),
    ],
)
def test_every_way_of_recording_leaves_training_alone(kit: Kit, tmp_path: Path, options: dict[str, Any]) -> None:
    assert_nothing_changes(kit, tmp_path, kit.networks.Residual, {}, **{"level": "mix", **options})


@pytest.mark.parametrize("level", [*slow("L0"), "mix"])
def test_a_transformer_is_bit_identical(kit: Kit, tmp_path: Path, level: str) -> None:
    plain, recorded = kit.transformer.model(), kit.transformer.model()
    expected = kit.gradients(plain)
    with kit.api.record(recorded, tmp_path / "dump", level=level):
        found = kit.gradients(recorded)
    assert_same_bits(expected, found)


def test_everything_is_put_back_after_an_exception(kit: Kit, tmp_path: Path) -> None:
    before, model = kit.functions(), kit.networks.Residual()
    with pytest.raises(ValueError, match=r"shape|dim|size|mismatch"), kit.api.record(model, tmp_path, level="mix"):
        kit.array(model(kit.tensor([[1.0] * 5] * 2)))
    after = kit.functions()
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] is not after[name]] == []
    assert kit.hooks(model) == 0


def test_recordings_that_end_in_the_order_they_began_leave_nothing_behind(kit: Kit, tmp_path: Path) -> None:
    """The first is still below the second when it ends."""
    call = kit.base.__call__
    recordings = [kit.api.record(kit.networks.Residual(), tmp_path / name, level="L0") for name in "ab"]
    for recording in recordings:
        recording.__enter__()
    assert kit.base.__call__ is not call
    for recording in recordings:
        recording.__exit__(None, None, None)
    assert kit.base.__call__ is call
