"""What a dump holds, as far as MindSpore and Paddle agree: names, values, gradients, parameters, files."""

from __future__ import annotations

import threading
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from framework_kit import Kit, saved

from dump_reading import Dump, run_script
from twinprobe._runs.run import open_run
from twinprobe.errors import BadInput


def test_the_header_names_the_framework(kit: Kit, tmp_path: Path) -> None:
    dump = kit.recorded(tmp_path, kit.networks.Residual(), level="mix")
    assert {key: dump.document[key] for key in ("task", "level", "framework", "dump_data_dir")} == {
        "task": "statistics",
        "level": "mix",
        "framework": kit.api.__name__.rpartition(".")[2],
        "dump_data_dir": None,
    }
    assert dump.log() == ""


def test_every_tensor_has_its_sketch(kit: Kit, tmp_path: Path) -> None:
    dump = kit.recorded(tmp_path / "with", kit.networks.Residual(), level="mix")
    run = open_run(dump.folder)
    assert run.sketches is not None
    tensors = np.flatnonzero(run.table["kind"].to_numpy() == 0)
    rows = run.sketches.of(tensors)
    assert (rows["flags"] != 0).all()
    norms = np.abs(run.table["norm"].to_numpy()[tensors])  # that of a single number is the number itself
    assert rows["norm"] == pytest.approx(norms, rel=1e-6)
    without = kit.recorded(tmp_path / "without", kit.networks.Residual(), level="mix", sketch=False)
    assert list(dump.data) == list(without.data)
    assert not list(without.folder.glob("*.sketch"))


def test_bfloat16_is_read_as_numbers(kit: Kit, tmp_path: Path) -> None:
    values = [1.5, -2.0, 3.25]
    _, call, name = kit.bfloat16(values)
    with kit.api.record(None, tmp_path, level="L1", task="tensor", risk_level="ALL"):
        call()
    dump = Dump(tmp_path)
    leaf = dump.data[name]["input_args"][0]
    assert leaf["dtype"] in {"BFloat16", "paddle.bfloat16"}
    assert (leaf["Max"], leaf["Min"]) == (3.25, -2.0)
    assert saved(dump, name, "input_args").tolist() == values


def test_checksums_are_crc32_of_the_bytes(kit: Kit, tmp_path: Path) -> None:
    model = kit.networks.TwoUsers()
    data = kit.recorded(tmp_path, model, level="L0", summary_mode="md5").data
    (entry,) = [value for name, value in data.items() if ".left." in name and ".forward." in name]
    leaf = entry["parameters"]["weight"]
    assert leaf["md5"] == f"{zlib.crc32(kit.array(model.left.weight).tobytes()):08x}"


def test_xor_checksums_tell_other_values_apart(kit: Kit, tmp_path: Path) -> None:
    x = kit.networks.batch()
    with kit.api.record(None, tmp_path, level="L1", summary_mode="xor"):
        y = x * 2
        y * 1
        y * 3
    doubled, same, tripled = Dump(tmp_path).data.values()
    assert "Max" not in doubled["output"][0]
    assert doubled["output"][0]["md5"] == same["input_args"][0]["md5"] == same["output"][0]["md5"]
    assert tripled["output"][0]["md5"] != tripled["input_args"][0]["md5"] == same["output"][0]["md5"]


def test_structure_writes_the_tree_and_no_values(kit: Kit, tmp_path: Path) -> None:
    dump = kit.recorded(tmp_path, kit.networks.Residual(), level="mix", task="structure")
    assert dump.data == {}
    parents = dump.side("construct")
    assert any(name.startswith(f"{kit.container}.first.") and name.endswith(".forward.1") for name in parents)


def test_parents_mirror_the_nesting(kit: Kit, tmp_path: Path) -> None:
    parents = kit.recorded(tmp_path, kit.networks.PostNorm(), level="mix").side("construct")
    outer = f"{kit.container}.attention.0.Attending"
    (inner,) = [name for name in parents if name.startswith(f"{kit.container}.attention.0.q.") and "forward" in name]
    assert parents[inner] == f"{outer}.forward.0"
    assert parents[f"{outer}.forward.0"] is None
    assert parents["Functional.softmax.0.forward"] == f"{outer}.forward.0"
    assert parents["Functional.softmax.0.backward"] == f"{outer}.backward.0"


def test_stacks_end_in_the_users_code(kit: Kit, tmp_path: Path) -> None:
    stacks = kit.recorded(tmp_path, kit.networks.PostNorm(), level="mix").side("stack")
    (frames,) = [frames for names, frames in stacks.values() if "Functional.softmax.0.forward" in names]
    assert any("framework_kit.py" in frame for frame in frames)
    assert not any("src/twinprobe" in frame for frame in frames)


def test_every_gradient_of_an_api_is_recorded(kit: Kit, tmp_path: Path) -> None:
    x, y = kit.tensor(np.ones((2, 3))), kit.tensor(np.full((3, 2), 2))
    with kit.api.record(None, tmp_path, level="L1"):
        kit.differentiate(lambda x, y: (x.matmul(y) * 3).sum(), x, y)
    backward = Dump(tmp_path).data["Tensor.matmul.0.backward"]
    assert [leaf["shape"] for leaf in backward["input"]] == [[2, 2]]
    assert [(leaf["shape"], leaf["Max"]) for leaf in backward["output"]] == [([2, 3], 12.0), ([3, 2], 6.0)]


def test_steps_and_lists_and_start_on_the_class(kit: Kit, tmp_path: Path) -> None:
    model, debugger = kit.networks.Residual(), kit.api.PrecisionDebugger
    debugger(dump_path=tmp_path, level="L0", step=[1], list=[f"{kit.container}.last"])
    for _ in range(3):
        debugger.start(model=model)
        model(kit.networks.batch())
        debugger.stop()
        debugger.step()
    debugger.current().close()
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]
    assert [name.rsplit(".", 3)[0] for name in Dump(tmp_path, 1).data] == [f"{kit.container}.last"]


def test_a_step_that_is_not_wanted_saves_no_single_points(kit: Kit, tmp_path: Path) -> None:
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="debug", step=[1])
    for _ in range(2):
        kit.api.save(kit.tensor([1.0]), "point")
        debugger.step()
    debugger.close()
    assert [path.name for path in tmp_path.iterdir()] == ["step1"]


def test_single_points_and_their_gradients(kit: Kit, tmp_path: Path) -> None:
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="debug")

    def loss(x: Any) -> Any:
        y = x * 5
        debugger.save({"a": y, "b": [x, 3]}, "point")
        kit.api.save(y, "y")
        return y.sum() * 2

    kit.differentiate(loss, kit.tensor(np.ones((2, 2))))
    debugger.step()
    debugger.close()
    data = Dump(tmp_path, index="debug").data
    assert data["point.0.debug"]["b"][1] == {"type": "int", "value": 3}
    assert data["point.0.debug"]["a"]["Max"] == 5.0
    assert data["point.a_grad.0.debug"]["Max"] == 2.0
    assert data["y_grad.0.debug"]["Max"] == 2.0
    assert data["point.b.0_grad.0.debug"]["Max"] == 10.0


def test_saving_needs_the_debug_level_and_a_name(kit: Kit, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="create one first"):
        kit.api.save(kit.tensor([1.0]), "point")
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="L1")
    with pytest.raises(BadInput, match="level 'debug'"):
        debugger.save(kit.tensor([1.0]), "point")
    debugger.close()
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="debug")
    with pytest.raises(BadInput, match="needs a name"):
        debugger.save(kit.tensor([1.0]), "")


def test_a_module_can_be_recorded_as_a_whole(kit: Kit, tmp_path: Path) -> None:
    inner = kit.module("Part", lambda _, x: x * 2)
    part = kit.module("Whole", lambda self, x: self.inner(x), inner=inner)
    model = kit.module("Net", lambda self, x: self.part(x), part=part)
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="mix")
    debugger.start(model=model)
    with pytest.raises(BadInput, match=kit.base.__name__):
        kit.api.module_dump("no module", "Name")
    kit.api.module_dump(part, "Name")
    model(kit.tensor([1.0]))
    kit.api.module_dump_end()
    model(kit.tensor([1.0]))
    debugger.stop()
    debugger.close()
    names = list(Dump(tmp_path).data)
    assert names[0] == f"{kit.container}.Name.Whole.forward.0"
    assert "Tensor.__mul__.0.forward" in names[1:]


def test_a_function_of_ones_own_can_be_registered(kit: Kit, tmp_path: Path) -> None:
    class Own:
        @staticmethod
        def doubled(x: Any) -> Any:
            return x * 2

    kit.api.register_custom_api(Own, "doubled", "Mine")
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    Own.doubled(kit.tensor([1.0, 3.0]))
    debugger.stop()
    debugger.close()
    data = Dump(tmp_path).data
    assert list(data) == ["Mine.doubled.0.forward"]
    assert data["Mine.doubled.0.forward"]["output"][0]["Max"] == 6.0


def test_values_of_communication_on_its_way_are_not_looked_at(kit: Kit, tmp_path: Path) -> None:
    class Own:
        @staticmethod
        def sent(x: Any, arrived: bool) -> Any:
            return x, None if arrived else threading.Event()  # something to wait for

    kit.api.register_custom_api(Own, "sent", "Distributed")
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="L1")
    debugger.start()
    for arrived in (False, True):
        Own.sent(kit.tensor([1.0, 3.0]), arrived)
    debugger.stop()
    debugger.close()
    outputs = [call["output"][0] for call in Dump(tmp_path).data.values()]
    assert [(leaf["shape"], leaf["Max"]) for leaf in outputs] == [([2], None), ([2], 3.0)]


def test_the_first_difference_from_an_earlier_run_is_kept_with_its_tensors(kit: Kit, tmp_path: Path) -> None:
    scale = {"by": 2.0}
    parts = {name: kit.module("Scaled", lambda self, x: x * scale["by"]) for name in ("one", "two")}
    parts["one"] = kit.module("Plain", lambda self, x: x + 1)
    model = kit.module("Net", lambda self, x: self.two(self.one(x)), **parts)
    options = {"level": "L0", "summary_mode": "md5"}
    with kit.api.record(model, tmp_path / "first", **options):
        model(kit.networks.batch())
    scale["by"] = 3.0
    with kit.api.record(model, tmp_path / "second", task="tensor", bench_path=tmp_path / "first", **options):
        model(kit.networks.batch())
    files = {path.name for path in (tmp_path / "second").glob("step0/*/dump_tensor_data/*")}
    assert files
    assert all(name.startswith(f"{kit.container}.two.Scaled.forward.0.") for name in files)


def test_seed_all_repeats_and_removes_dropout(kit: Kit) -> None:
    done = run_script(kit.seed_script)
    assert "repeated" in done.stdout, done.stderr


def test_a_seed_must_be_a_number(kit: Kit) -> None:
    with pytest.raises(BadInput, match="seed"):
        kit.api.seed_all(-1)


@pytest.mark.parametrize("model", [None, "a string", ["a list", 3]])
def test_a_model_must_be_a_module(kit: Kit, tmp_path: Path, model: Any) -> None:
    debugger = kit.api.PrecisionDebugger(dump_path=tmp_path, level="mix")
    with pytest.raises(BadInput, match="odel"):
        debugger.start(model=model)


# Perturbed runs, and the settings that change rounding.


def test_perturb_moves_a_quarter_of_the_values_to_a_neighbour(kit: Kit, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((100, 100), np.float32) + 1
    x = kit.tensor(values)
    with kit.api.record(None, tmp_path, level="L1", task="tensor", perturb=1):
        y = x * 3
        z = y + 1
    changed = kit.array(y)
    moved = changed.view(np.int32) - (values * np.float32(3)).view(np.int32)
    assert np.abs(moved).max() == 1
    assert abs((moved == 1).mean() - 0.125) < 0.02
    assert abs((moved == -1).mean() - 0.125) < 0.02
    assert np.array_equal(kit.array(x), values)
    dump = Dump(tmp_path)
    first, second = dump.data
    assert np.array_equal(saved(dump, first, "output"), changed)
    assert np.array_equal(saved(dump, second, "input_args"), changed)
    assert np.array_equal(saved(dump, second, "output"), kit.array(z))
    assert dump.document["settings"]["perturb"] == 0
    assert dump.document["settings"]["version"]


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_perturb_leaves_gradients_parameters_and_inputs_alone(kit: Kit, tmp_path: Path, level: str) -> None:
    def arrays(model: Any) -> list[np.ndarray]:
        found = model.get_parameters() if hasattr(model, "get_parameters") else model.parameters()
        return [np.array(kit.array(one)) for one in found]

    model = kit.networks.TwoUsers()
    before = arrays(model)
    clean = kit.recorded(tmp_path / "clean", model, level=level, task="tensor")
    dump = kit.recorded(tmp_path / "changed", model, level=level, task="tensor", perturb=1)
    assert dump.log() == ""
    assert dump.data.keys() == clean.data.keys()
    for one, other in zip(before, arrays(model), strict=True):
        assert np.array_equal(one, other)
    names = [name for name in clean.data if ".left." in name and "parameters_grad" not in name]
    pairs = {name: (saved(clean, name, "output"), saved(dump, name, "output")) for name in names}
    assert {name.rsplit(".", 2)[-2] for name in pairs} == {"forward", "backward"}
    for name, (one, other) in pairs.items():
        np.testing.assert_allclose(one, other, 1e-4, 1e-6)
        if ".forward." in name:
            assert not np.array_equal(one, other)
