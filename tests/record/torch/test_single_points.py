"""Level debug: single values under names of the user's choosing, nested ones too, and their gradients."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger, save


def leaf() -> torch.Tensor:
    return torch.linspace(-1, 1, 20).reshape(4, 5).requires_grad_()


def program(debugger: PrecisionDebugger, steps: int = 2) -> None:
    for _ in range(steps):
        x = leaf()
        y = x * 2
        debugger.save(y, "my_y")
        debugger.save({"a": x, "l": [x + 1, 3, "s", None], "n": 1.5}, "mydict", save_backward=False)
        y.sum().backward()
        save(x.grad[0], "my_y")
        debugger.step()
    debugger.close()


def test_names_and_values_are_as_in_known_dumps(tmp_path: Path, dump_of: Any) -> None:
    program(PrecisionDebugger(dump_path=tmp_path / "dump", level="debug"))
    for step in range(2):
        dump = dump_of(tmp_path / "dump", step, "debug")
        assert dump.document["level"] == "debug"
        assert set(dump.data) == {"my_y.0.debug", "my_y_grad.0.debug", "mydict.0.debug", "my_y.1.debug"}
        assert sorted(one.name for one in dump.folder.iterdir()) == ["debug.json", "debug.sketch"]
        assert dump.data["my_y_grad.0.debug"]["Norm"] == pytest.approx(20**0.5)
        assert dump.data["my_y.0.debug"]["requires_grad"] is True
        nested = dump.data["mydict.0.debug"]
        assert nested["a"]["shape"] == [4, 5]
        assert nested["l"][1:] == [{"type": "int", "value": 3}, {"type": "str", "value": "s"}, None]
        assert nested["n"] == {"type": "float", "value": 1.5}


def test_the_reference_has_the_same_names(tmp_path: Path, dump_of: Any, reference: Path) -> None:
    program(PrecisionDebugger(dump_path=tmp_path / "dump", level="debug", task="tensor"))
    ours, theirs = (
        dump_of(tmp_path / "dump", 0, "debug"),
        dump_of(reference / "msprobe/dumps/debug_tensor_a", 0, "debug"),
    )
    assert set(ours.data) == set(theirs.data)

    def files(dump: Any) -> list[str]:
        return sorted(one.name for one in (dump.folder / "dump_tensor_data").iterdir())

    assert files(ours) == files(theirs)
    for name, value in theirs.data.items():
        assert type(value) is type(ours.data[name])
        if "type" in value:
            assert list(value) == list(ours.data[name])


def test_nested_tensors_have_gradients_of_their_own(tmp_path: Path, dump_of: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="debug", task="tensor")
    x = leaf()
    first, second = x * 2, x * 3
    debugger.save({"pair": [first, None, second], "count": 4}, "both")
    (first + 2 * second).sum().backward()
    debugger.close()
    dump = dump_of(tmp_path / "dump", 0, "debug")
    assert set(dump.data) == {"both.0.debug", "both.pair.0_grad.0.debug", "both.pair.2_grad.0.debug"}
    assert dump.data["both.pair.2_grad.0.debug"]["Max"] == 2.0
    stored = torch.load(dump.folder / "dump_tensor_data" / "both.0.debug.pair.2.pt")
    assert torch.equal(stored, second.detach())


def test_what_is_saved_does_not_change_later(tmp_path: Path, dump_of: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="debug", task="tensor")
    value = torch.zeros(3)
    debugger.save(value, "v")
    value.add_(7)
    debugger.save(value, "v")
    debugger.close()
    dump = dump_of(tmp_path / "dump", 0, "debug")
    files = [dump.folder / "dump_tensor_data" / f"v.{at}.debug.pt" for at in range(2)]
    assert [torch.load(file).tolist() for file in files] == [[0.0] * 3, [7.0] * 3]


def test_only_wanted_steps_are_saved(tmp_path: Path) -> None:
    program(PrecisionDebugger(dump_path=tmp_path / "dump", level="debug", step=[1]))
    assert [one.name for one in (tmp_path / "dump").iterdir()] == ["step1"]


def test_saving_works_on_the_class_and_between_start_and_stop(tmp_path: Path, dump_of: Any) -> None:
    PrecisionDebugger(dump_path=tmp_path / "dump", level="debug")
    PrecisionDebugger.start()
    PrecisionDebugger.save(torch.ones(2), "inside")
    PrecisionDebugger.stop()
    PrecisionDebugger.save(torch.ones(2), "outside")
    PrecisionDebugger.step()
    PrecisionDebugger._current.close()
    assert set(dump_of(tmp_path / "dump", 0, "debug").data) == {"inside.0.debug", "outside.0.debug"}


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_save_needs_a_name(tmp_path: Path, name: Any) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="debug")
    with pytest.raises(BadInput, match="needs a name"):
        debugger.save(torch.ones(1), name)


def test_a_save_needs_the_level_debug(tmp_path: Path) -> None:
    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    with pytest.raises(BadInput, match="needs level 'debug'"):
        debugger.save(torch.ones(1), "x")


def test_without_a_debugger_the_class_says_so() -> None:
    with pytest.raises(BadInput, match="no PrecisionDebugger in this process yet"):
        PrecisionDebugger.save(torch.ones(1), "x")


def test_gradients_are_bit_identical_when_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def gradients(debugger: PrecisionDebugger | None) -> list[Any]:
        x = leaf()
        y = x.exp()
        if debugger is not None:
            debugger.save([y, {"x": x}], "y")
        (y * y).mean().backward()
        return x.grad.tolist()

    caplog.set_level(logging.WARNING)
    plain = gradients(None)
    assert gradients(PrecisionDebugger(dump_path=tmp_path / "dump", level="debug")) == plain
    assert not caplog.records
