"""Matching by hand: what changes, what is written, and what is never touched."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from werkzeug.test import Client

from twinprobe._view.app import ViewApp
from twinprobe._view.nodes import Matches

T, G = "Module.language_model.LM.forward.0", "Module.decoder.Enc.forward.0"
LAYER = "Module.language_model.encoder.layers.0"
ENCODER = "Module.language_model.encoder.Enc.forward.0"


class Tool:
    def __init__(self, place: Path) -> None:
        self.client = Client(ViewApp(place))

    def ask(self, question: str, **asked: Any) -> Any:
        reply = self.client.get(f"/api/{question}", query_string=asked)
        assert reply.status_code == 200, reply.text
        return reply.get_json()

    def change(self, status: int = 200, **change: Any) -> Any:
        reply = self.client.post("/api/change", json=change, headers={"X-TwinProbe": "1"})
        assert reply.status_code == status, reply.text
        return reply.get_json()

    def match_of(self, side: str, name: str) -> str | None:
        return self.ask("node", side=side, name=name)[side].get("match")


@pytest.fixture
def place(copied: Callable[[str], Path]) -> Path:
    return copied("cmp_lm2")


def test_a_pair_is_matched_on_both_sides_and_the_graph_file_stays_as_it_was(place: Path) -> None:
    file = next(place.glob("*.vis.db"))
    before = hashlib.sha256(file.read_bytes()).digest()
    tool = Tool(place)
    assert tool.match_of("target", T) is None
    tool.change(action="add", target=T, golden=G)
    assert (tool.match_of("target", T), tool.match_of("golden", G)) == (G, T)
    assert tool.match_of("target", ENCODER) is None  # it was the partner of G
    assert hashlib.sha256(file.read_bytes()).digest() == before
    assert sorted(p.name for p in place.iterdir()) == [file.name, f"{file.name}.matches.json"]


def test_parting_and_matching_again_moves_nodes_between_the_lists(place: Path) -> None:
    tool = Tool(place)
    start = {side: tool.ask("list", kind="unmatched", side=side)["total"] for side in ("target", "golden")}
    tool.change(action="remove", target=ENCODER)
    assert tool.match_of("golden", G) is None
    assert {side: tool.ask("list", kind="unmatched", side=side)["total"] - start[side] for side in start} == {
        "target": 1,
        "golden": 1,
    }
    tool.change(action="add", target=ENCODER, golden=G)
    assert {side: tool.ask("list", kind="unmatched", side=side)["total"] for side in start} == start


def test_a_branch_takes_descendants_and_backward_twins_along(place: Path) -> None:
    tool = Tool(place)
    tool.change(action="remove", target=ENCODER, branch="1")
    inner = "Module.language_model.encoder.layers.0.ln1.LayerNorm.forward.0"
    assert tool.match_of("target", inner) is None
    made = tool.change(action="add", target=ENCODER, golden=G, branch="1")["matches"]
    assert made[inner] == "Module.decoder.layers.0.ln1.LayerNorm.forward.0"
    assert made["Module.language_model.encoder.Enc.backward.0"] == "Module.decoder.Enc.backward.0"
    assert made["Functional.layer_norm.0.forward"] == "Functional.layer_norm.0.forward"


def test_matches_are_exported_as_the_layer_mapping_that_a_person_would_write(place: Path, reference: Path) -> None:
    tool = Tool(place)
    names = {
        "Module.language_model.embedding.Embedding.forward.0": "Module.embedding.Embedding.forward.0",
        ENCODER: G,
        f"{LAYER}.mlp.dense_h_to_4h.Linear.forward.0": "Module.decoder.layers.0.mlp.linear_fc1.Linear.forward.0",
    }
    for target, golden in names.items():
        tool.change(action="add", target=target, golden=golden)
    mapping = yaml.safe_load(tool.ask("matches")["yaml"])
    written = yaml.safe_load((reference / "graph" / "layer_mapping.yaml").read_text())
    assert mapping["TopLayer"].items() <= written["TopLayer"].items()
    assert mapping["MLP"] == {"dense_h_to_4h": "linear_fc1"}
    assert mapping["MLP"].items() <= written["MLP"].items()


def test_an_import_takes_either_direction_and_tells_how_many_fit(place: Path) -> None:
    tool = Tool(place)
    done = tool.change(
        action="import",
        pairs={
            T: G,
            "Module.nowhere.X.forward.0": G,
            "Module.embedding.Embedding.forward.0": "Module.language_model.embedding.Embedding.forward.0",
        },
    )
    assert done["fitting"] == 2
    assert tool.match_of("target", T) == G


def test_two_users_of_one_folder_see_each_others_matches(place: Path) -> None:
    Tool(place).change(action="add", target=T, golden=G)
    assert Tool(place).match_of("target", T) == G


def test_where_nothing_can_be_written_beside_the_file_matches_are_kept_in_the_cache(place: Path) -> None:
    file = next(place.glob("*.vis.db"))
    (place / f"{file.name}.matches.json").mkdir()  # in the way of the side file
    tool = Tool(place)
    tool.change(action="add", target=T, golden=G)
    assert Tool(place).match_of("target", T) == G


def test_wrong_changes_are_messages(place: Path) -> None:
    tool = Tool(place)
    assert "no node" in tool.change(status=422, action="add", target="x", golden=G)["error"]["what"]
    assert tool.change(status=422, action="import", pairs=[1])["error"]["what"]
    assert tool.change(status=422, action="erase")["error"]["what"]
    assert tool.client.post("/api/change", json={"action": "add", "target": T, "golden": G}).status_code == 403
    damaged = place / f"{next(place.glob('*.vis.db')).name}.matches.json"
    damaged.write_text(json.dumps({"graphs": 7}))
    assert tool.client.get("/api/open").status_code == 422


NAMES = st.sampled_from(list("abcdef"))


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.booleans(), NAMES, NAMES), max_size=12), st.dictionaries(NAMES, NAMES))
def test_whatever_is_matched_and_parted_both_sides_agree(
    edits: list[tuple[bool, str, str]], file: dict[str, str]
) -> None:
    stored = {target: golden for golden, target in {g: t for t, g in file.items()}.items()}  # one to one
    back = {golden: target for target, golden in stored.items()}
    made = Matches()
    for add, target, golden in edits:
        if add:
            made.add(target, golden, back.get(golden))
        else:
            made.remove(target)
    for target in "abcdef":
        golden = made.partner("target", target, stored.get(target))
        if golden is not None:
            assert made.partner("golden", golden, back.get(golden)) == target
    for golden in "abcdef":
        partner = made.partner("golden", golden, back.get(golden))
        if partner is not None:
            assert made.partner("target", partner, stored.get(partner)) == golden
