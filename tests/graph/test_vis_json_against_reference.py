"""Our .vis files beside those of two old tools, made of the same dumps: every node, every field.

What differs, and why:

* ``precision_index`` follows the users' own document: small values are judged by their absolute difference;
* a module's stack is the one line that calls it (``-cs`` keeps all frames), an API's is whole: as in 8.1.2;
* the old tools know no stack.json of the new form and were given a converted one; 1.2.2 wrote md5 "00000000" in
  statistics mode because of it;
* colours and tool tips are described in our own words;
* one key more, ``TwinProbe``, which old viewers do not look at; JSON without indentation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from graph_drawing import draw, dump, only

PAIRS = {
    "8.1.2/cmp_stat": ("pert_statistics", "base_statistics"),
    "1.2.2/cmp_md5": ("pert_md5", "base_md5"),
}


def load(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    assert isinstance(document, dict)
    return document


def old(reference: Path, name: str, pattern: str = "*.vis") -> dict[str, Any]:
    return load(only(reference / "graph" / "results_json" / name, pattern))


@pytest.fixture(params=PAIRS)
def both(request: pytest.FixtureRequest, reference: Path, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    target, golden = (dump(reference, name) for name in PAIRS[request.param])
    (file,) = draw(target, golden, tmp_path, "vis").files
    return load(file), old(reference, request.param)


def test_a_single_graph_equals_the_old_tools_in_every_field(reference: Path, tmp_path: Path) -> None:
    (file,) = draw(dump(reference, "base_statistics"), None, tmp_path, "vis").files
    ours, theirs = load(file), old(reference, "8.1.2/build")
    assert ours == theirs
    assert list(ours) == list(theirs)
    for name, node in theirs["node"].items():
        assert list(ours["node"][name]) == list(node)


def test_compared_nodes_have_the_same_fields_links_and_values(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    ours, theirs = both
    assert [key for key in ours if key != "TwinProbe"] == list(theirs)
    for side in ("NPU", "Bench"):
        assert ours[side]["root"] == theirs[side]["root"]
        assert ours[side]["node"].keys() == theirs[side]["node"].keys()
        for name, node in theirs[side]["node"].items():
            mine = ours[side]["node"][name]
            assert list(mine) == list(node)
            assert mine | {"data": 0} == node | {"data": 0}, name
            assert mine["data"].keys() == node["data"].keys(), name


def test_the_bands_are_those_of_the_old_files(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    ours, theirs = both
    bands = [{colour: band["value"] for colour, band in document["Colors"].items()} for document in both]
    assert bands[0] == bands[1]
    assert json.loads(ours["ToolTip"]).keys() == json.loads(theirs["ToolTip"]).keys()
    for key in ("MicroSteps", "task", "OverflowCheck"):
        assert ours[key] == theirs[key]


def test_with_checksums_one_is_equal_and_zero_is_different(reference: Path, tmp_path: Path) -> None:
    (file,) = draw(dump(reference, "pert_md5"), dump(reference, "base_md5"), tmp_path, "vis").files
    ours, theirs = load(file)["NPU"]["node"], old(reference, "1.2.2/cmp_md5")["NPU"]["node"]
    numbers = {name: node["data"] for name, node in ours.items()}
    assert numbers == {name: node["data"] for name, node in theirs.items()}
    assert {data.get("precision_index") for data in numbers.values()} == {0, 1, None}


def test_statistics_are_the_largest_relative_error_of_the_outputs(reference: Path, tmp_path: Path) -> None:
    (file,) = draw(dump(reference, "pert_statistics"), dump(reference, "base_statistics"), tmp_path, "vis").files
    ours, theirs = load(file)["NPU"]["node"], old(reference, "8.1.2/cmp_stat")["NPU"]["node"]
    differ = {}
    for name, node in theirs.items():
        mine, index = ours[name]["data"].get("precision_index"), node["data"].get("precision_index")
        assert (mine is None) == (index is None)
        if mine is not None and mine != pytest.approx(index, rel=1e-9, abs=1e-12):
            differ[name] = (mine, index)
    small = {
        name: [value for value in ours[name]["output_data"].values() if _has_small_value(value)] for name in differ
    }
    assert all(small.values()), differ
    assert len(differ) < len(theirs) / 4


def test_ranks_have_a_file_each_with_links_to_one_another(reference: Path, tmp_path: Path) -> None:
    files = draw(dump(reference, "dist_pert"), dump(reference, "dist_base"), tmp_path, "vis").files
    assert [file.name for file in files] == [f"compare_rank{rank}_20260102030405.vis" for rank in (0, 1)]
    for rank, file in enumerate(files):
        ours, theirs = load(file), old(reference, "8.1.2/ranks", f"*rank{rank}*.vis")
        for side in ("NPU", "Bench"):
            for name, node in theirs[side]["node"].items():
                mine = ours[side]["node"][name]
                assert list(mine) == list(node)
                assert _partners(mine) == _partners(node)


def _partners(node: dict[str, Any]) -> object:
    link = node.get("matched_distributed")
    return link and (link["communications_type"], {rank: info[1] for rank, info in link["nodes_info"].items()})


def _has_small_value(value: dict[str, str]) -> bool:
    return any(
        abs(float(value[stat])) <= 1e-6 for stat in ("Max", "Min", "Mean", "Norm") if value.get(stat, "null") != "null"
    )
