"""Hostile dump.json, debug.json, stack.json and construct.json: read, or refused in one line, at a bounded cost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_tools import ALLOWED_MEMORY, GOOD, compared, cost, statistics

from support import forward, tensor
from twinprobe._cli import main
from twinprobe._runs.run import open_run
from twinprobe.errors import BadInput


def document(entries: str) -> str:
    return f'{{"task": "statistics", "level": "L1", "framework": "pytorch", "data": {{{entries}}}}}'


def call(inputs: str, name: str = GOOD) -> str:
    return f'"{name}": {{"input_args": [{inputs}], "input_kwargs": {{}}, "output": []}}'


def leaf(**fields: Any) -> str:
    return json.dumps(tensor(**fields))


def under(key: str, levels: int, value: str) -> str:
    return f'{{"{key}": ' * levels + value + "}" * levels


REFUSED: dict[str, Callable[[], str]] = {
    "lists 400 levels deep": lambda: document(call("[" * 401 + "null" + "]" * 401)),
    "lists 100,000 levels deep": lambda: document(call("[" * 100_000)),
    "objects 100,000 levels deep": lambda: "{" + '"a":{' * 100_000,
    "a shape that no memory holds": lambda: document(call(leaf(shape=[1 << 40, 1 << 40]))),
    "a shape of negative sizes": lambda: document(call(leaf(shape=[-1]))),
    "a size of 5000 digits": lambda: document(call(leaf(shape=[0]).replace("[0]", f"[{'9' * 5000}]"))),
    "an entry that is a number": lambda: document(f'"{GOOD}": 1'),
    "an argument that is a number": lambda: document(call("1")),
    "data that is a list": lambda: document("").replace("{}", "[]"),
    "a task that is an object": lambda: document(call(leaf())).replace('"statistics"', "{}"),
    "a number beyond all measure": lambda: document(call(leaf().replace('"Min": -1.0', '"Min": 1e999'))),
    "names that multiply": lambda: document(call(under("k" * 900, 4, f"[{','.join(['null'] * 60_000)}]"))),
    "a name of a million letters": lambda: document(call(leaf(), f"Torch.{'f' * 1_000_000}.0.forward")),
    "a path of 300,000 letters to one value": lambda: document(call(under("k" * 1000, 300, "null"))),
    "bytes that are no UTF-8": lambda: document(call('{"type": "str", "value": "\udcff"}')),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_dump_without_sense_is_refused_in_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = statistics(tmp_path / "bad")
    path.write_bytes(REFUSED[name]().encode("utf-8", "surrogateescape"))
    peak, error = cost(lambda: open_run(path))
    assert isinstance(error, BadInput)
    assert peak < ALLOWED_MEMORY + 3 * path.stat().st_size
    assert main(["compare", "-tp", str(path), "-gp", str(statistics(tmp_path / "good")), "-o", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("twinprobe: error: ")
    assert "Traceback" not in shown
    assert len(shown) < 10_000


def read(folder: Path, text: str) -> Any:
    path = statistics(folder)
    path.write_text(text, encoding="utf-8")
    return open_run(path)


def test_a_key_that_stands_twice_counts_once(tmp_path: Path) -> None:
    run = read(tmp_path, document(f"{call(leaf(norm=1.0))}, {call(leaf(norm=7.0))}"))
    assert run.ops == [GOOD]
    assert run.table["norm"].to_list() == [7.0]  # as every reader of JSON in Python decides it


def test_a_million_keys_in_one_call_are_refused_by_the_name_of_the_call(tmp_path: Path) -> None:
    keys = ",".join(f'"k{at}":null' for at in range(1_000_000))
    with pytest.raises(BadInput, match=rf"{GOOD}.*holds more than 262144 values, which no call has"):
        read(tmp_path, document(f'"{GOOD}": {{"input_args": [], "input_kwargs": {{{keys}}}, "output": []}}'))


def test_a_call_with_ten_thousand_tensors_is_read(tmp_path: Path) -> None:
    run = read(tmp_path, document(call(", ".join([leaf()] * 10_000))))
    assert run.table.height == 10_000


def test_values_packed_too_densely_are_refused_by_the_name_of_the_call(tmp_path: Path) -> None:
    calls = ", ".join(call(",".join(["null"] * 1000), f"Torch.f.{at}.forward") for at in range(200))
    with pytest.raises(BadInput, match=r"Torch\.f\.\d+\.forward.*one value too many"):
        read(tmp_path, document(calls))


def large(entries: int, **fields: Any) -> list[str]:
    return [call(leaf(**fields), f"Torch.f.{at}.forward") for at in range(entries)]


def test_a_large_dump_is_read_in_pieces_and_loses_nothing(tmp_path: Path) -> None:
    calls = large(20_000)
    # Keys that look like calls, inside of a call: a piece must not end there.
    inner = ", ".join(f'"Torch.inner.{at}.forward": {leaf()}' for at in range(10_000))
    calls[10_000] = f'"Torch.f.10000.forward": {{"input_args": [], "input_kwargs": {{{inner}}}, "output": []}}'
    run = read(tmp_path, document(", ".join(calls)))
    assert run.path.stat().st_size > 4_000_000
    assert run.ops == [f"Torch.f.{at}.forward" for at in range(20_000)]
    assert run.table.height == 19_999 + 10_000


def test_a_key_that_stands_twice_in_a_large_dump_counts_once(tmp_path: Path) -> None:
    again = call(leaf(norm=7.0), "Torch.f.5.forward")
    run = read(tmp_path, document(", ".join([*large(20_000, norm=1.0), again])))
    assert len(run.ops) == run.table.height == 20_000
    assert run.table["norm"].to_list() == [1.0] * 5 + [7.0] + [1.0] * 19_994


@pytest.mark.parametrize(("cut", "words"), [(100, "breaks off"), (None, "is damaged")])
def test_a_large_dump_that_is_damaged_is_read_up_to_there(cut: int | None, words: str, tmp_path: Path) -> None:
    calls = large(20_000)
    text = document(", ".join(calls))
    where = text.index('"Torch.f.15000.forward"')
    text = text[:-cut] if cut else text[:where] + "?" + text[where:]
    run = read(tmp_path, text)
    assert len(run.ops) == (19_999 if cut else 15_000)
    assert [note for note in run.notes if f"the file {words} after {len(run.ops)} whole entries" in note]


def test_nan_in_a_large_dump_loses_nothing(tmp_path: Path) -> None:
    calls = [entry.replace('"type"', '"x": NaN, "type"') for entry in large(20_000)]
    run = read(tmp_path, document(", ".join(calls)))
    assert run.table.height == 20_000
    assert run.notes == []


def test_numbers_beyond_all_measure_are_kept_or_unknown(tmp_path: Path) -> None:
    values = leaf(high=3).replace('"Max": 3', f'"Max": {"9" * 400}')
    run = read(tmp_path, document(call(values)))
    assert run.table.height == 1


def test_halves_of_characters_are_spelled_out(tmp_path: Path) -> None:
    # NaN outside of the statistics sends the file to the tolerant parser, which lets such halves through.
    text = document(call('{"type": "str", "value": "\\ud800", "x": NaN}', "Torch.f\\udfff.0.forward"))
    run = read(tmp_path, text)
    assert run.ops == ["Torch.f\\udfff.0.forward"]
    assert run.table["max_text"].to_list() == ["\\ud800"]


CALL_NUMBERS = ["9" * 4000, "\u00b2", "\u0663", "-1", "1e5", "0x10", ""]


@pytest.mark.parametrize("number", CALL_NUMBERS, ids=lambda text: text[:6] or "none")
def test_a_call_number_that_is_none_is_part_of_the_name(number: str, tmp_path: Path) -> None:
    names = [f"Torch.f.{number}.forward", f"Module.a.A.forward.{number}", GOOD]
    data = {name: forward([tensor()], [tensor()]) for name in names}
    target, golden = (statistics(tmp_path / side, data, parents=dict.fromkeys(names), stacks={}) for side in "tg")
    rows = compared(target, golden, tmp_path / "out")
    assert len(rows) == 6 if number else 4
    assert {row["Result"] for row in rows} == {"pass"}
    words = ["graph_visualize", "-tp", str(target.parent), "-gp", str(golden.parent), "-o", str(tmp_path / "graph")]
    assert main(words) == 0


def chain(length: int) -> dict[str, str | None]:
    names = [f"Module.m{at}.M.forward.0" for at in range(length)]
    return dict(zip(names, [*names[1:], None], strict=True))


HIERARCHIES: dict[str, Callable[[], Any]] = {
    "a call that is its own parent": lambda: {GOOD: GOOD},
    "two calls that are each other's parents": lambda: {GOOD: "Module.a.A.forward.0", "Module.a.A.forward.0": GOOD},
    "a circle of a thousand": lambda: chain(1000) | {"Module.m999.M.forward.0": "Module.m0.M.forward.0", GOOD: None},
    "a parent that is not there": lambda: {GOOD: "Module.gone.G.forward.0"},
    "100,000 levels": lambda: {GOOD: "Module.m0.M.forward.0", **chain(100_000)},
    "100,000 children": lambda: {f"Torch.f.{at}.forward": GOOD for at in range(100_000)} | {GOOD: None},
    "a parent that is a number": lambda: {GOOD: 7},
    "a parent that is an object": lambda: {GOOD: {"a": "b"}},
    "a list without end": lambda: {GOOD: [[[[]]]]},
    "nothing but a list": lambda: [GOOD],
    "a parent of an empty name": lambda: {GOOD: "", "": GOOD},
    "a name of 100,000 letters": lambda: {GOOD: "x" * 100_000, "x" * 100_000: None},
}


@pytest.mark.parametrize("name", HIERARCHIES)
def test_a_hierarchy_that_is_none_does_not_stop_compare(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = statistics(tmp_path / "t", parents=HIERARCHIES[name](), stacks={})
    golden = statistics(tmp_path / "g", parents={GOOD: None}, stacks={})
    assert {row["Result"] for row in compared(target, golden, tmp_path / "out")} == {"pass"}
    words = ["graph_visualize", "-tp", str(target.parent), "-gp", str(golden.parent), "-o", str(tmp_path / "graph")]
    capsys.readouterr()
    if main(words):  # a graph cannot be drawn of what is no hierarchy at all
        shown = capsys.readouterr().err
        assert "construct.json" in shown
        assert shown.startswith("twinprobe: error: ")
        assert len(shown.splitlines()) == 1
    else:
        assert list((tmp_path / "graph").glob("*.vis.db"))


STACKS: dict[str, Callable[[], Any]] = {
    "a stack that is a number": lambda: {GOOD: 7},
    "frames that are objects": lambda: {GOOD: [{"a": 1}, [2], None]},
    "a group that is no pair": lambda: {"0": [1], "1": [[GOOD], ["x"], ["y"]]},
    "a million frames": lambda: {"0": [[GOOD], ["File a.py, line 1, in f, \n x"] * 1_000_000]},
    "a frame of ten megabytes": lambda: {"0": [[GOOD], ["x" * 10_000_000]]},
    "a list": lambda: [GOOD],
}


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_that_is_none_costs_the_stack_alone(name: str, tmp_path: Path) -> None:
    target = statistics(tmp_path / "t", stacks=STACKS[name]())
    rows = compared(target, statistics(tmp_path / "g"), tmp_path / "out")
    assert {row["Result"] for row in rows} == {"pass"}


def test_a_group_of_ranks_that_is_a_program_is_not_evaluated(tmp_path: Path) -> None:
    group = {"type": "torch.distributed.ProcessGroup", "value": "[" + "-" * 60_000 + "1]"}
    name = "Distributed.all_reduce.0.forward"
    data = {name: forward([tensor()], [tensor()], group=group)}
    target, golden = (
        write / "dump.json"
        for write in (statistics(tmp_path / side / "rank0", data).parent for side in ("target", "golden"))
    )
    words = [
        "compare",
        "-tp",
        str(target.parents[1]),
        "-gp",
        str(golden.parents[1]),
        "-o",
        str(tmp_path / "out"),
        "-da",
    ]
    assert main(words) in (0, 2)


def test_a_layer_number_of_5000_digits_is_a_name(tmp_path: Path) -> None:
    names = [
        f"Module.layers.{number}.mlp.MLP.forward.{call}" for number in ("9" * 5000, "1") for call in ("0", "7" * 5000)
    ]
    data = {name: forward([tensor()], [tensor()]) for name in names}
    target, golden = (statistics(tmp_path / side, data, parents=dict.fromkeys(names), stacks={}) for side in "tg")
    (tmp_path / "map.yaml").write_text("TopLayer:\n  layers: layers\n")
    rows = compared(target, golden, tmp_path / "out", "-lm", str(tmp_path / "map.yaml"))
    assert {row["Result"] for row in rows} == {"pass"}
    words = ["graph_visualize", "-tp", str(target.parent), "-gp", str(golden.parent), "-o", str(tmp_path / "graph")]
    assert main(words) == 0
