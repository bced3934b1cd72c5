"""Our .vis.db files beside those of the old tool, made of the same dumps: every table, every row, every field.

What differs, and why:

* ``Result``, ``Err_message`` and ``precision_index`` carry our verdicts (the documented rules, done right), so the old
  tool's are only compared where they must agree;
* colours and tool tips are described in our own words; keys, bands and levels are the same;
* JSON is written without spaces after commas and colons;
* two tables more (tb_twinprobe, tb_twinprobe_summary), which old viewers do not look at;
* journal mode DELETE, so that no side files are left.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graph_drawing import draw, dump, nodes, reference_db, schema, table, values

OURS = ("precision_index", "input_data", "output_data", "matched_distributed")
JUDGEMENT = {"Result", "Err_message"}
PAIRS = [("cmp_stat", "pert_statistics", "base_statistics"), ("cmp_md5", "pert_md5", "base_md5"),
         ("ranks_cmp", "dist_pert", "dist_base")]  # fmt: skip


@pytest.fixture(params=PAIRS, ids=[pair[0] for pair in PAIRS])
def both(request: pytest.FixtureRequest, reference: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Our file and the old tool's file of the same two dumps."""
    name, target, golden = request.param
    outcome = draw(dump(reference, target), dump(reference, golden), tmp_path)
    return outcome.files[0], reference_db(reference, name)


def test_a_single_graph_equals_the_old_tools_in_every_table_and_field(reference: Path, tmp_path: Path) -> None:
    (ours,) = draw(dump(reference, "base_statistics"), None, tmp_path).files
    theirs = reference_db(reference, "build_single")
    assert nodes(ours) == nodes(theirs)
    assert table(ours, "tb_config") == table(theirs, "tb_config")
    assert _stacks(ours) == _stacks(theirs)


def test_the_schema_is_that_of_the_old_tool_with_two_tables_more(both: tuple[Path, Path]) -> None:
    ours, theirs = map(schema, both)
    assert {name: columns for name, columns in ours.items() if name in theirs} == theirs
    assert ours.keys() - theirs.keys() == {"tb_twinprobe", "tb_twinprobe_summary"}


def test_compared_nodes_have_the_same_places_links_and_stacks(both: tuple[Path, Path]) -> None:
    ours, theirs = map(nodes, both)
    assert ours.keys() == theirs.keys()
    for name, row in theirs.items():
        mine = ours[name]
        assert {k: v for k, v in mine.items() if k not in OURS} == {k: v for k, v in row.items() if k not in OURS}
    assert _stacks(both[0]) == _stacks(both[1])


def test_values_and_metrics_have_the_same_fields_in_the_same_order_with_the_same_texts(both: tuple[Path, Path]) -> None:
    ours, theirs = map(nodes, both)
    compared = 0
    for name, row in theirs.items():
        for (key, mine), (their_key, value) in zip(values(ours[name]), values(row), strict=True):
            assert key == their_key
            assert list(mine) == list(value)
            assert _but(mine, JUDGEMENT) == _but(value, JUDGEMENT), key
            compared += 1
    assert compared > 800


def test_golden_nodes_carry_no_verdict(both: tuple[Path, Path]) -> None:
    for row in nodes(both[0]).values():
        if row["data_source"] == "Bench":
            assert row["precision_index"] is None
            assert all("Result" not in value for _, value in values(row))


def test_precision_is_the_worst_verdict_of_a_nodes_values(both: tuple[Path, Path]) -> None:
    scale = {"pass": 0, "warning": 0.5, "error": 1}
    seen = set()
    for row in nodes(both[0]).values():
        verdicts = [scale[value["Result"]] for _, value in values(row) if "Result" in value]
        if verdicts:
            assert row["precision_index"] == max(verdicts)
            seen.add(row["precision_index"])
    assert {0, 0.5} <= seen


def test_a_collection_takes_its_worst_child(both: tuple[Path, Path]) -> None:
    rows = nodes(both[0])
    for row in rows.values():
        if row["node_type"] == "9" and row["data_source"] == "NPU":
            inside = [rows[f"{row['graph_id']}_{child}"]["precision_index"] for child in row["sub_nodes"]]
            assert row["precision_index"] == max(index for index in inside if index is not None)


def test_nodes_without_values_carry_no_number_as_in_the_old_files(both: tuple[Path, Path]) -> None:
    ours, theirs = map(nodes, both)
    for name, row in theirs.items():
        if row["precision_index"] is None:
            assert ours[name]["precision_index"] is None


def test_the_configuration_has_the_same_keys_bands_and_levels(both: tuple[Path, Path]) -> None:
    (ours,), (theirs,) = (table(path, "tb_config") for path in both)
    worded = ("tool_tip", "node_colors")
    assert _but(ours, worded) == _but(theirs, worded)
    assert json.loads(ours["tool_tip"]).keys() == json.loads(theirs["tool_tip"]).keys()
    assert _bands(ours["node_colors"]) == _bands(theirs["node_colors"])


def test_links_between_ranks_name_the_same_partners(reference: Path, tmp_path: Path) -> None:
    outcome = draw(dump(reference, "dist_pert"), dump(reference, "dist_base"), tmp_path)
    ours, theirs = nodes(outcome.files[0]), nodes(reference_db(reference, "ranks_cmp"))
    linked = 0
    for name, row in theirs.items():
        old = row["matched_distributed"]
        mine = ours[name]["matched_distributed"]
        if not old:
            assert mine == {}
            continue
        linked += 1
        assert mine["communications_type"] == old["communications_type"]
        assert {rank: node for rank, (_, node) in mine["nodes_info"].items()} == {
            rank: node for rank, (_, node) in old["nodes_info"].items()
        }
        for rank, (index, node) in mine["nodes_info"].items():
            source, step, _ = row["graph_id"].split("_")
            number = ours[f"{source}_{step}_{rank}_{node}"]["precision_index"]
            assert index == ("Nan" if number is None else str(number))
    assert linked == 12


def _stacks(path: Path) -> dict[str, list[str]]:
    return {row["id"]: json.loads(row["stack_info"]) for row in table(path, "tb_stack")}


def _but(row: dict[str, object], left_out: object) -> dict[str, object]:
    return {key: value for key, value in row.items() if key not in left_out}  # type: ignore[operator]


def _bands(text: str) -> dict[str, tuple[list[float], str]]:
    return {colour: (band["value"], band["accuracy_level"]) for colour, band in json.loads(text).items()}
