"""What the server answers, on every graph file that other tools wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from graph_files import flat, node, write_pair
from reference_files import FILES
from werkzeug.test import Client

from twinprobe._view.app import ViewApp

STAT = "results/cmp_stat/compare_20261115024710.vis.db"


@pytest.fixture
def ask(reference: Path) -> Any:
    return asker(reference / "graph")


def asker(place: Path) -> Any:
    client = Client(ViewApp(place))

    def ask(question: str, status: int = 200, **asked: Any) -> Any:
        reply = client.get(f"/api/{question}", query_string=asked)
        assert reply.status_code == status, reply.text
        return reply.get_json()

    return ask


def test_every_file_of_a_folder_is_listed_once(ask: Any) -> None:
    assert {file["id"] for file in ask("files")["files"]} == set(FILES)


@pytest.mark.parametrize("file", FILES)
def test_counts_and_first_divergence_of_every_file(ask: Any, file: str) -> None:
    target, golden, first = FILES[file]
    counts = ask("counts", file=file)
    assert counts["target"]["nodes"] == target
    assert counts.get("golden", {"nodes": 0})["nodes"] == golden
    found = ask("first", file=file)["first"]
    assert (found and found["name"]) == first


@pytest.mark.parametrize("file", FILES)
def test_walking_down_from_the_root_meets_every_node_once_and_in_order(ask: Any, file: str) -> None:
    opened = ask("open", file=file)
    for side in opened["roots"]:
        seen, waiting = {opened["roots"][side]["name"]}, [opened["roots"][side]["name"]]
        while waiting:
            parent = waiting.pop()
            page = ask("children", file=file, side=side, parent=parent)
            orders = [child["order"] for child in page["nodes"]]
            assert orders == sorted(orders)
            assert page["total"] == len(orders)
            assert not seen & {child["name"] for child in page["nodes"]}
            seen |= {child["name"] for child in page["nodes"]}
            waiting += [child["name"] for child in page["nodes"] if child["kids"]]
        assert len(seen) == ask("counts", file=file)[side]["nodes"]


def test_children_come_in_pages(ask: Any) -> None:
    whole = ask("children", file=STAT, parent="optimizer")
    assert whole["total"] == 27
    parts = [ask("children", file=STAT, parent="optimizer", offset=at, limit=10)["nodes"] for at in (0, 10, 20)]
    assert [item for part in parts for item in part] == whole["nodes"]


def test_unfolding_opens_the_path_on_both_sides(ask: Any) -> None:
    found = ask("unfold", file=STAT, name="Functional.gelu.1.backward")
    for side in ("target", "golden"):
        assert [page["parent"] for page in found[side]][:2] == ["DefaultModel", "Module.language_model.LM.backward.0"]
        assert "Functional.gelu.1.backward" in [child["name"] for child in found[side][-1]["nodes"]]


def test_a_limit_of_the_users_own_finds_what_the_file_does_not_mark(ask: Any) -> None:
    first = ask("first", file=STAT, metric="NormRelativeErr", above="0.001")["first"]
    assert first["name"] == "Functional.linear.6.forward"
    assert first["output"] == pytest.approx(0.0466, abs=1e-3)
    assert ask("counts", file=STAT, metric="NormRelativeErr", above="0.001")["target"]["suspicious"] > 4


def test_next_and_previous_suspicious_node_go_round_in_execution_order(ask: Any) -> None:
    seen, order = [], None
    for _ in range(5):
        found = ask("step", file=STAT, **({} if order is None else {"from": order}))
        order = found["node"]["order"]
        seen.append(found["at"])
    assert seen == [1, 2, 3, 4, 1]
    assert ask("step", file=STAT, back="1", **{"from": order})["at"] == 4


def test_the_strip_covers_the_run_and_its_top_is_the_largest_error(ask: Any) -> None:
    strip = ask("strip", file=STAT, metric="NormRelativeErr", bins=50)
    assert strip["nodes"] == 157
    assert len(strip["order"]) == len(strip["value"]) == 50
    assert max(value for value in strip["value"] if value is not None) == pytest.approx(0.0667896, rel=1e-4)
    assert strip["order"] == sorted(strip["order"])


def test_details_hold_both_sides_with_tensors_metrics_and_stack(ask: Any) -> None:
    found = ask("node", file=STAT, name="Functional.linear.6.forward")
    assert found["target"]["stack"] == found["golden"]["stack"] != []
    weight = found["target"]["inputs"][1]
    assert weight["NormRelativeErr"] == "4.999996%"
    assert "NormRelativeErr" not in found["golden"]["inputs"][1]
    assert found["facts"]["argument"] == "input.1"  # the weight: the other inputs agree
    assert found["facts"]["output"] == pytest.approx(0.0466, abs=1e-3)


def test_data_flow_between_siblings_follows_the_tensors(ask: Any) -> None:
    parent = "Module.language_model.encoder.layers.0.Block.forward.0"
    names = {child["order"]: child["name"] for child in ask("children", file=STAT, parent=parent)["nodes"]}
    flow = {(names[a], names[b]) for a, b in ask("edges", file=STAT, parent=parent)["edges"]}
    assert ("Tensor.__add__.0.forward", "Tensor.__add__.1.forward") in flow  # the residual
    assert len(flow) == 6


def test_collectives_name_the_peer_rank(ask: Any) -> None:
    for file in (
        "results/ranks_cmp/compare_20261115025155.vis.db",
        "results_json/8.1.2/ranks/compare_20261115030039.vis",
    ):
        found = ask("node", file=file, rank=0, name="Distributed.all_reduce.0.forward")
        assert {peer["rank"] for peer in found["target"]["peers"]} == {1}
        peer = found["target"]["peers"][0]
        assert ask("node", file=file, rank=1, name=peer["node"])["target"]["name"] == peer["node"]


def test_ranks_by_steps_say_the_worst_of_each(ask: Any) -> None:
    found = ask("heat", file="results/ranks_cmp/compare_20261115025155.vis.db")
    assert found["complete"]
    assert [(cell["rank"], cell["suspicious"]) for cell in found["cells"]] == [(0, 4), (1, 4)]


def test_unmatched_lists_include_modules(ask: Any) -> None:
    file = "results/cmp_lm2/compare_20261115025819.vis.db"
    found = ask("list", file=file, kind="unmatched")
    assert found["total"] == 10
    assert "Module.language_model.LM.forward.0" in [item["name"] for item in found["nodes"]]
    assert ask("list", file=file, kind="unmatched", what="apis")["total"] == 0


def test_search_finds_parts_of_names_in_any_case_and_takes_no_wildcards(ask: Any) -> None:
    found = ask("search", file=STAT, text="GELU")
    assert found["target"][0]["name"] == "Functional.gelu.0.forward"
    assert ask("search", file=STAT, text="%")["target"] == []
    assert ask("search", file=STAT, text="_")["target"] != []


def test_old_md5_files_mean_the_opposite_and_are_read_so(ask: Any) -> None:
    bands = ask("open", file="results_json/1.2.2/cmp_md5/compare_20261115025818.vis")["bands"]
    assert [(band["low"], band["color"]) for band in bands] == [(1.0, "#FFFCF3"), (0.0, "#FF704D")]


def test_micro_steps_divide_the_root_only(tmp_path: Path) -> None:
    names = ["Module.a.A.forward.0", "Module.a.A.forward.1"]
    nodes = flat(names)
    nodes[names[1]] |= {"micro_step_id": 1, "subnodes": ["Torch.add.0.forward"]}
    nodes["Torch.add.0.forward"] = node("Torch.add.0.forward", names[1])
    write_pair(tmp_path / "compare_1.vis", nodes, nodes, MicroSteps=2)
    ask = asker(tmp_path)
    assert [n["name"] for n in ask("children", parent="DefaultModel", micro=1)["nodes"]] == [names[1]]
    assert ask("children", parent=names[1], micro=1)["total"] == 1
    assert ask("list", kind="matched", micro=1)["total"] == 2


def test_what_our_own_files_know_is_told(tmp_path: Path) -> None:
    name = "Module.layers.1.mlp.up_proj.Linear.forward.0"
    sentence = "layers.1.mlp.up_proj: input equal, output differs, relative norm error 3.1 %; injected here"
    known = {
        "first_node": name,
        "first_sentence": sentence,
        "nodes": {name: {"error": 0.031, "verdict": "error", "origin": "injected", "matched_by": "name"}},
    }
    write_pair(tmp_path / "compare_1.vis", flat([name, "Torch.add.0.forward"]), flat([name]), TwinProbe=known)
    opened = asker(tmp_path)("open")
    assert opened["first"]["sentence"] == sentence
    assert opened["metrics"] == ["error"]
    child = opened["pages"]["target"][0]["nodes"][0]
    assert (child["error"], child["verdict"], child["origin"], child["by"]) == (0.031, "error", "injected", "name")


def test_two_files_of_one_name_in_different_folders_are_two(tmp_path: Path) -> None:
    for folder, names in (("a", ["Torch.add.0.forward"]), ("b", ["Torch.mul.0.forward"])):
        (tmp_path / folder).mkdir()
        write_pair(tmp_path / folder / "compare_1.vis", flat(names), flat(names))
    ask = asker(tmp_path)
    assert ask("open", file="a/compare_1.vis")["pages"]["target"][0]["nodes"][0]["name"] == "Torch.add.0.forward"
    assert ask("open", file="b/compare_1.vis")["pages"]["target"][0]["nodes"][0]["name"] == "Torch.mul.0.forward"


@pytest.mark.parametrize(
    "asked", [{"offset": "-1"}, {"offset": "x"}, {"step": "9"}, {"side": "left"}, {"above": "high"}, {"file": "../x"}]
)
def test_a_wrong_argument_is_a_message(ask: Any, asked: dict[str, str]) -> None:
    values = {"file": STAT, "parent": "DefaultModel", "metric": "NormRelativeErr"} | asked
    question = "counts" if "above" in asked else "children"
    assert ask(question, status=422, **values)["error"]["what"]


def test_a_file_that_is_still_being_written_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "empty.vis.db").touch()
    (tmp_path / "cut.vis").write_text('{"NPU": {"root": "Def')
    (tmp_path / "other.vis").write_text(json.dumps([1, 2]))
    ask = asker(tmp_path)
    assert "empty" in ask("open", status=422, file="empty.vis.db")["error"]["what"]
    assert "cannot" not in ask("files")
    for file in ("cut.vis", "other.vis"):
        assert "graph file" in ask("open", status=422, file=file)["error"]["what"]


def test_a_rewritten_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "compare_1.vis"
    write_pair(path, flat(["Torch.add.0.forward"]), flat(["Torch.add.0.forward"]))
    ask = asker(tmp_path)
    assert ask("counts")["target"]["nodes"] == 2
    write_pair(path, flat(["Torch.add.0.forward", "Torch.add.1.forward"]), flat(["Torch.add.0.forward"]))
    assert ask("counts")["target"]["nodes"] == 3
