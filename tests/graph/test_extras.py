"""What our page knows beyond the old viewers, where they do not look."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from graph_drawing import draw, dump, nodes, table

from support import forward, tensor, write_dump


def test_the_first_divergence_stands_in_words_beside_the_graph(reference: Path, tmp_path: Path) -> None:
    outcome = draw(dump(reference, "pert_statistics"), dump(reference, "base_statistics"), tmp_path)
    (summary,) = outcome.summaries
    facts = {row["key"]: row["value"] for row in table(outcome.files[0], "tb_twinprobe_summary")}
    assert summary.first is not None
    assert facts["first_node"] == summary.first.op
    assert facts["first_golden_node"] == summary.first.op
    assert facts["first_sentence"] == summary.first.sentence
    assert facts["first_stack"] == summary.first.stack_line
    assert facts["mode"] == "statistics"
    assert json.loads(facts["verdicts"]) == summary.verdicts


def test_every_compared_node_has_its_error_verdict_origin_and_rule(reference: Path, tmp_path: Path) -> None:
    (file,) = draw(dump(reference, "pert_statistics"), dump(reference, "base_statistics"), tmp_path).files
    scale = {"pass": 0, "warning": 0.5, "error": 1}
    extras = {row["node_name"]: row for row in table(file, "tb_twinprobe")}
    drawn = {row["node_name"]: row for row in nodes(file).values() if row["data_source"] == "NPU"}
    compared = {name for name, row in drawn.items() if row["precision_index"] is not None and row["node_type"] != "9"}
    assert extras.keys() == compared
    for name, row in extras.items():
        assert scale[row["verdict"]] == drawn[name]["precision_index"]
        assert row["node_order"] == drawn[name]["node_order"]
        assert row["matched_by"] == "name"
        assert row["origin"] in ("", "injected", "inherited")
        assert row["data_source"] == "NPU"
    assert any(row["origin"] == "injected" for row in extras.values())


def test_vis_files_carry_the_same_facts_under_their_own_key(reference: Path, tmp_path: Path) -> None:
    target, golden = dump(reference, "pert_statistics"), dump(reference, "base_statistics")
    (vis,) = draw(target, golden, tmp_path / "vis", "vis").files
    (db,) = draw(target, golden, tmp_path / "db").files
    facts = json.loads(vis.read_text(encoding="utf-8"))["TwinProbe"]
    in_db = {row["key"]: row["value"] for row in table(db, "tb_twinprobe_summary")}
    assert {key: value for key, value in facts.items() if key != "nodes"} == in_db
    for row in table(db, "tb_twinprobe"):
        told = facts["nodes"][row["node_name"]]
        assert told == {
            key: row[key] for key in ("error", "verdict", "origin", "matched_by", "expected", "times", "arguments")
        }


@pytest.mark.parametrize(("target", "golden", "dtype", "expected"), [
    (1.1, 1.0, "torch.float32", 0.1),
    (9.0, 1.0, "torch.float32", 1.0),
    (5e-7, 1e-9, "torch.float32", 0.0),  # small, and the difference is small too
    (5e-7, 1e-3, "torch.float32", 1.0),  # small, and the difference is not
    (5e-4, 9e-4, "torch.bfloat16", 0.0),
    (5e-4, 9e-4, "torch.float32", 0.444444),
    (float("nan"), 1.0, "torch.float32", 1.0),
])  # fmt: skip
def test_the_seeds_number_of_statistics(
    tmp_path: Path, target: float, golden: float, dtype: str, expected: float
) -> None:
    name = "Torch.add.0.forward"
    for side, number in (("a", target), ("b", golden)):
        leaf = tensor(high=number, low=number, mean=number, norm=number, dtype=dtype)
        write_dump(tmp_path / side, {name: forward([tensor()], [leaf])}, parents={name: None}, stacks={})
    (vis,) = draw(tmp_path / "a", tmp_path / "b", tmp_path / "vis", "vis").files
    data = json.loads(vis.read_text())["NPU"]["node"][name]["data"]
    assert data["precision_index"] == pytest.approx(expected, abs=1e-6)
    (db,) = draw(tmp_path / "a", tmp_path / "b", tmp_path / "db").files
    (row,) = table(db, "tb_twinprobe")
    assert row["drift"] == pytest.approx(expected, abs=1e-6)
