"""Large files are read piece by piece. Whatever they hold, that gives the same as reading them at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from twinprobe._align.auto import alignment as alignment_file
from twinprobe._align.mapping import yaml_files
from twinprobe._runs import dump_json
from twinprobe._runs import dump_json as dump_pieces
from twinprobe._runs import json_pieces as member_pieces
from twinprobe._runs.dump_json import read_micro_steps, read_parents, read_stacks
from twinprobe._runs.run import Run, open_run
from twinprobe.errors import BadInput

DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> Any:
    """From the call on, every file counts as large."""

    def begin(piece: int = 2000) -> None:
        for module, limit in ((dump_json, "_WHOLE"), (member_pieces, "_WHOLE"), (alignment_file, "_WHOLE")):
            monkeypatch.setattr(module, limit, 0)
        monkeypatch.setattr(yaml_files, "MAX_BYTES", 10)
        monkeypatch.setattr(dump_pieces, "PIECE", piece)
        monkeypatch.setattr(member_pieces, "PIECE", piece)

    return begin


def said(run: Run) -> tuple[Any, ...]:
    return run.ops, repr(run.table.to_dicts()), run.table.schema, run.task, run.level, run.framework, run.notes


def dump(folder: Path, text: str) -> Path:
    (folder / "dump.json").write_text(text, encoding="utf-8")
    return folder / "dump.json"


def document() -> dict[str, Any]:
    return json.loads((DATA / "align" / "pt" / "dump.json").read_text(encoding="utf-8"))


def with_nan(whole: dict[str, Any]) -> str:
    first, second = list(whole["data"].values())[:2]
    first["output"][0]["Max"] = float("nan")
    second["output"][0]["beside"] = float("-inf")
    return json.dumps(whole)


def with_a_name_twice(whole: dict[str, Any]) -> str:
    names = list(whole["data"])
    again = json.dumps({names[2]: whole["data"][names[5]]})
    return json.dumps(whole).removesuffix("}}") + ", " + again[1:] + "}"


FORMS = {
    "as recorders write it": lambda whole: json.dumps(whole, indent=1),
    "without a space": lambda whole: json.dumps(whole, separators=(",", ":")),
    "keys sorted, the header behind the data": lambda whole: json.dumps(whole, sort_keys=True),
    "with NaN": with_nan,
    "a name that stands twice": with_a_name_twice,
    "cut off": lambda whole: json.dumps(whole, indent=1)[:-3000],
}


@pytest.mark.parametrize("piece", [300, 5000, 1 << 20])
@pytest.mark.parametrize("form", FORMS)
def test_a_dump_in_pieces_is_the_same(form: str, piece: int, tmp_path: Path, in_pieces: Any) -> None:
    path = dump(tmp_path, FORMS[form](document()))
    whole = said(open_run(path))
    in_pieces(piece)
    assert said(open_run(path)) == whole


def test_keys_on_both_sides_of_the_data_are_the_header(tmp_path: Path, in_pieces: Any) -> None:
    whole = document()
    order = {key: whole[key] for key in ("task", "data", "level", "framework")}
    in_pieces()
    run = open_run(dump(tmp_path, json.dumps(order)))
    assert (run.task, run.level, run.framework) == (whole["task"], whole["level"], whole["framework"])
    assert len(run.ops) == len(whole["data"])


@pytest.mark.parametrize("piece", [100, 1000, 1 << 20])
def test_stacks_and_parents_in_pieces_are_the_same(piece: int, tmp_path: Path, in_pieces: Any) -> None:
    stack, construct = DATA / "align" / "pt" / "stack.json", DATA / "align" / "pt" / "construct.json"
    odd = tmp_path / "construct.json"
    odd.write_text(
        '{"megatron_micro_step_number": 2, "a,": ":b", "c": ["a,", 1], "d": [], "e": null, "\\u00e9,\\"x": "f"}'
    )
    whole = read_stacks(stack), read_parents(construct), read_parents(odd), read_micro_steps(odd)
    assert len(whole[0][0].of_op) > 10
    assert len(whole[1][0]) > 10
    assert whole[2][0] == {"a,": ":b", "c": "a,", "d": None, "e": None, 'é,"x': "f"}
    assert whole[3] == {"c": 1}
    in_pieces(piece)
    assert (read_stacks(stack), read_parents(construct), read_parents(odd), read_micro_steps(odd)) == whole


@pytest.mark.parametrize(
    "text", ['{"a": "b", "c": "d"', '{"a": "b"} {"c": "d"}', '["a"]', '{"a": 1}', "", '{"a": "b",}']
)
def test_a_damaged_hierarchy_is_a_note_in_pieces_too(text: str, tmp_path: Path, in_pieces: Any) -> None:
    in_pieces(3)
    (tmp_path / "construct.json").write_text(text)
    parents, note = read_parents(tmp_path / "construct.json")
    assert not parents
    assert "no hierarchy is known" in str(note)


def test_an_alignment_in_pieces_is_the_same(tmp_path: Path, in_pieces: Any) -> None:
    relations = [
        {
            "target": f"Module.a{at}.A.forward.0",
            "golden": [f"b{at}", f"c{at}"],
            "kind": "fused",
            "reason": "}] of {both",
        }
        for at in range(300)
    ]
    path = tmp_path / "alignment.json"
    behind = {"notes": [{"a": [{}]}], "unmatched": {"target": [{"name": "x", "why": "y"}] * 100}}
    path.write_text(json.dumps({"format": alignment_file.FORMAT, "relations": relations, **behind}))
    whole = alignment_file.read_alignment(path)
    assert len(whole.relations) == 300
    in_pieces()
    assert alignment_file.read_alignment(path) == whole
    path.write_text(json.dumps({"relations": [*relations, relations[7]]}))
    with pytest.raises(BadInput, match=r"relations\[300\].*target call of relations\[7\] already"):
        alignment_file.read_alignment(path)
    path.write_text(json.dumps({"relations": relations})[:-10])
    with pytest.raises(BadInput, match="is not an alignment"):
        alignment_file.read_alignment(path)


def test_plain_lines_are_read_however_many_and_nothing_else(tmp_path: Path, in_pieces: Any) -> None:
    path = tmp_path / "dm.yaml"
    path.write_text("# all values\n" + "".join(f"a.{at}: b.{at}\n" for at in range(50)) + "\nlast: one")
    whole = yaml_files.read_flat(path, "")
    in_pieces()
    assert yaml_files.read_flat(path, "") == whole
    assert (whole[-1].left, whole[-1].number) == ("last", 53)
    for more in ("\n'quoted': b\n", "\na.3: twice\n"):
        path.write_text("".join(f"a.{at}: b.{at}\n" for at in range(50)) + more)
        with pytest.raises(BadInput, match="only of plain lines 'name: name', none twice"):
            yaml_files.read_flat(path, "")
