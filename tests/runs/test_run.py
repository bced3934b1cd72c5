"""A dump on disk becomes a table: every kind of entry, whole, cut or unfinished."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import forward, tensor, value, write_dump
from twinprobe._runs.dump_json import read_entries
from twinprobe._runs.run import open_run
from twinprobe._runs.table import FLOAT, INPUT, NULL, OUTPUT, PARAMETER, TENSOR, VALUE
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError


def rows(path: Path) -> dict[str, dict]:
    return {row["name"]: row for row in open_run(path).table.iter_rows(named=True)}


def test_every_run_of_the_reference_can_be_opened(reference: Path) -> None:
    files = [path for path in reference.glob("*/dumps/**/*.json") if path.name in ("dump.json", "debug.json")]
    assert len(files) > 40
    for path in files:
        run = open_run(path)
        assert run.notes == []
        assert run.table.height > 0
        assert run.table["op"].is_sorted()


def test_rows_stand_in_the_order_inputs_parameters_outputs(tmp_path: Path) -> None:
    entry = {
        "input_args": [tensor()], "input_kwargs": {"mask": None}, "output": [tensor()],
        "parameters": {"weight": tensor(), "bias": None},
    }  # fmt: skip
    run = open_run(write_dump(tmp_path, {"Module.fc.Linear.forward.0": entry}))
    names = [name.removeprefix("Module.fc.Linear.forward.0.") for name in run.table["name"]]
    assert names == ["input.0", "input.mask", "parameters.weight", "parameters.bias", "output.0"]
    assert run.table["role"].to_list() == [INPUT, INPUT, PARAMETER, PARAMETER, OUTPUT]


def test_unusual_values_show_what_people_know(tmp_path: Path) -> None:
    data = {
        "Torch.f.0.forward": forward(
            [
                value([5, 4], "torch.Size"), value([1, None, 2], "slice"), value("...", "ellipsis"), None, {},
                {"type": "torch.memory_format", "format": "contiguous_format"},
                [value(3), [value("x")]], {"a": {"b": value(1.5)}},
            ],
            [], group={"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"},
            src=value(3), device=value("cpu", "torch.device"),
        )
    }  # fmt: skip
    shown = {
        name.removeprefix("Torch.f.0.forward.input."): (row["dtype"], row["shape"], row["max_text"])
        for name, row in rows(write_dump(tmp_path, data)).items()
    }
    assert shown == {
        "0": ("torch.Size", "[5, 4]", "None"),
        "1": ("slice", "(3,)", "None"),
        "2": ("ellipsis", "[]", "..."),
        "3": (None, None, "None"),
        "5": ("<class 'NoneType'>", "[]", "None"),
        "6.0": ("<class 'int'>", "[]", "3"),
        "6.1.0": ("<class 'str'>", "[]", "x"),
        "7.a.b": ("<class 'float'>", "[]", None),
        "group": ("torch.ProcessGroup", "[]", "[0, 1]"),
        "src": ("int", "[]", "3"),
        "device": ("<class 'str'>", "[]", "cpu"),
    }


def test_nan_and_infinity_are_read_as_numbers_wherever_they_stand(tmp_path: Path) -> None:
    nan, inf = float("nan"), float("inf")
    data = {
        "Torch.f.0.forward": forward([tensor(high=nan, low=-inf, norm=inf)], []),
        "Torch.g.0.forward": forward([value(nan)], []),
    }
    first, second = rows(write_dump(tmp_path, data)).values()
    assert first["max"] != first["max"]
    assert (first["min"], first["norm"]) == (-inf, inf)
    assert first["max_kind"] == first["min_kind"] == FLOAT
    assert second["max"] != second["max"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_dump_with_such_a_value_is_read_as_quickly_as_one_without(tmp_path: Path, number: float) -> None:
    """Masks are filled with it in nearly every model: the strict reader takes the dump, and the value is a number."""
    data = {"Torch.f.0.forward": forward([tensor(), value(number), value("Infinity")], [])}
    dump = write_dump(tmp_path, data)
    entries = read_entries(dump)
    assert [name for name, _ in entries] == list(data)
    assert entries.raw
    found = rows(dump)
    assert repr(found["Torch.f.0.forward.input.1"]["max"]) == repr(number)
    assert found["Torch.f.0.forward.input.2"]["max_text"] == "Infinity"


def test_the_word_nan_inside_a_text_stays_a_text(tmp_path: Path) -> None:
    data = {"Torch.f.0.forward": forward([value('a "Max": NaN b'), value("Infinity"), tensor(high=float("nan"))], [])}
    found = rows(write_dump(tmp_path, data))
    assert found["Torch.f.0.forward.input.0"]["max_text"] == 'a "Max": NaN b'
    assert found["Torch.f.0.forward.input.1"]["max_text"] == "Infinity"
    assert found["Torch.f.0.forward.input.2"]["max"] != found["Torch.f.0.forward.input.2"]["max"]


def test_the_documented_nested_entry_gives_the_documented_names(seeds: Path, tmp_path: Path) -> None:
    text = next(seeds.glob("004*.txt")).read_text()
    start = text.index('"Cell.network.module.NetworkWithLoss.forward.0": {')
    entry = json.JSONDecoder().raw_decode("{" + text[start:].replace("\n}\n\nThe initial name", "\n}}\n\n", 1))[0]
    path = write_dump(tmp_path, entry, framework="mindspore", level="L0")
    stem = "Cell.network.module.NetworkWithLoss.forward.0"
    places = ["input.0", "input.1.y", "input.1.y_mask", "input.1.x_mask", "input.1.loss_mask"]
    assert list(rows(path)) == [f"{stem}.{place}" for place in [*places, "input.1.data_info.img_hw", "output.0"]]


def test_parameter_gradients_are_named_by_their_parameter_in_old_and_new_dumps(tmp_path: Path) -> None:
    data = {
        "Module.fc.Linear.parameters_grad": {"weight": [tensor()]},
        "Module.fc.Linear.parameters_grad.0": {"bias": [None]},
    }
    assert list(rows(write_dump(tmp_path, data))) == [
        "Module.fc.Linear.parameters_grad.weight",
        "Module.fc.Linear.parameters_grad.0.bias",
    ]


def test_kinds_tell_tensors_values_and_none_apart(tmp_path: Path) -> None:
    run = open_run(write_dump(tmp_path, {"Torch.f.0.forward": forward([tensor(), value(1), None], [])}))
    assert run.table["kind"].to_list() == [TENSOR, VALUE, NULL]


@pytest.mark.parametrize("form", ["new", "old"])
def test_stacks_are_read_in_both_forms(tmp_path: Path, form: str) -> None:
    op, frames = "Torch.f.0.forward", ["File a.py, line 1, in f, \n g()"]
    stacks = {"0": [[op], frames]} if form == "new" else {op: frames}
    run = open_run(write_dump(tmp_path, {op: forward([tensor()], [])}, stacks=stacks))
    assert run.stacks[op] == frames
    assert run.stacks["Torch.other.0.forward"] == ()


def test_parents_are_read_in_both_forms(tmp_path: Path) -> None:
    op = "Torch.f.0.forward"
    parents = {op: ["Module.a.A.forward.0", 1], "Torch.g.0.forward": None, "megatron_micro_step_number": 2}
    run = open_run(write_dump(tmp_path, {op: forward([tensor()], [])}, parents=parents))
    assert run.parents == {op: "Module.a.A.forward.0", "Torch.g.0.forward": None}


@pytest.mark.parametrize("text", ["[1, 2]", "{", '{"0": 5}', '{"Torch.f.0.forward": 3}'])
def test_side_files_that_cannot_be_used_are_a_note(tmp_path: Path, text: str) -> None:
    path = write_dump(tmp_path, {"Torch.f.0.forward": forward([tensor()], [])})
    (tmp_path / "stack.json").write_text(text)
    (tmp_path / "construct.json").write_text(text)
    run = open_run(path)
    assert not run.stacks.of_op
    assert not run.parents
    assert [note.partition(":")[0] for note in run.notes] == [
        str(tmp_path / "stack.json"),
        str(tmp_path / "construct.json"),
    ]


def test_a_cut_file_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    data = {f"Torch.f.{at}.forward": forward([tensor()], [tensor()]) for at in range(4)}
    path = write_dump(tmp_path, data)
    text = path.read_text()
    path.write_text(text[: text.index('"Torch.f.2.forward"') + 60])
    run = open_run(path)
    assert run.ops == ["Torch.f.0.forward", "Torch.f.1.forward"]
    assert "breaks off after 2 whole entries (last: Torch.f.1.forward)" in run.notes[0]


@settings(deadline=None, max_examples=60)
@given(cut=st.integers(min_value=0, max_value=2000))
def test_wherever_a_file_is_cut_nothing_but_our_own_error_leaves_the_reader(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = write_dump(folder, {f"Torch.f.{at}.forward": forward([tensor()], [value("é")]) for at in range(3)})
    path.write_bytes(path.read_bytes()[:cut])
    try:
        assert open_run(path).ops
    except TwinProbeError as error:
        assert str(path) in str(error)


def test_an_unfinished_recording_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    header = {"task": "statistics", "level": "L0", "framework": "pytorch", "dump_data_dir": None}
    entries = [{f"Torch.f.{at}.forward": forward([tensor()], [])} for at in range(3)]
    lines = [json.dumps(item) for item in [header, *entries]]
    (tmp_path / "dump.json.part").write_text("\n".join(lines) + '\n{"Torch.f.3.forw')
    run = open_run(tmp_path)
    assert run.ops == [f"Torch.f.{at}.forward" for at in range(3)]
    assert "the recorder did not finish" in run.notes[0]
    assert "half written" in run.notes[1]


def leaf_with(**change: object) -> dict:
    return {"Torch.f.0.forward": forward([tensor(**change)], [])}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("not json", "is not JSON"),
        ("[1, 2]", "is not a dump"),
        ("3", "is not a dump"),
        ('{"task": "statistics", "data": []}', "is not a dump"),
        ('{"task": 5, "data": {}}', "is not a dump"),
        ('{"task": "statistics"}', 'has no object "data"'),
        ('{"data": {"Torch.f.0.forward": {}}}', 'has no "task"'),
        ('{"task": "acc_check", "data": {"Torch.f.0.forward": {}}}', "'acc_check'"),
        (json.dumps({"task": "statistics", "data": {"Torch.f.0.forward": 7}}), "data['Torch.f.0.forward']: is int"),
        (json.dumps({"task": "statistics", "data": {"Torch.f.0.forward": {"output": 7}}}), ".output: is int"),
        (json.dumps({"task": "statistics", "data": {"Torch.f.0.forward": {"output": [7]}}}), ".output[0]: is int"),
        (json.dumps({"task": "statistics", "data": leaf_with(shape="x")}), ".input_args[0]: is not a recorded value"),
        (json.dumps({"task": "statistics", "data": leaf_with(shape=[-1])}), ".input_args[0]: is not a recorded value"),
        (json.dumps({"task": "statistics", "data": leaf_with(shape=[2**60])}), "[0]: is not a recorded value"),
        (json.dumps({"task": "statistics", "data": leaf_with(shape=[2**40, 2**40])}), "more elements than any memory"),
        (json.dumps({"task": "statistics", "data": leaf_with(Max=[])}), ".input_args[0]: is not a recorded value"),
        (json.dumps({"task": "statistics", "data": leaf_with(dtype=3)}), ".input_args[0]: is not a recorded value"),
    ],
)  # fmt: skip
def test_a_file_of_another_shape_is_refused_by_file_and_key(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "dump.json"
    path.write_text(content)
    with pytest.raises(BadInput, match=re.escape(message)) as caught:
        open_run(path)
    assert str(path) in str(caught.value)


def test_four_hundred_levels_are_enough(tmp_path: Path) -> None:
    deep: object = tensor()
    for _ in range(450):
        deep = [deep]
    with pytest.raises(BadInput, match="deeper than 400"):
        open_run(write_dump(tmp_path, {"Torch.f.0.forward": forward([deep], [])}))


@pytest.mark.parametrize("data", [{}, {"Torch.f.0.forward": forward([], [])}])
def test_a_dump_without_values_is_nothing_to_compare(tmp_path: Path, data: dict) -> None:
    with pytest.raises(NothingToCompare, match="nothing to compare"):
        open_run(write_dump(tmp_path, data))


def test_a_structure_recording_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(NothingToCompare):
        open_run(write_dump(tmp_path, {"Torch.f.0.forward": forward([tensor()], [])}, task="structure"))


def test_a_missing_framework_is_noted(tmp_path: Path) -> None:
    path = write_dump(tmp_path, {"Torch.f.0.forward": forward([tensor()], [])}, framework="")
    assert open_run(path).framework == "pytorch"
    assert "pytorch is assumed" in open_run(path).notes[0]
