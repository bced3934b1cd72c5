"""JSON graph files are put into a database once, completely, and a bad one is a message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._graph.read.db import GraphFile
from twinprobe._graph.read.json import _Links, _post_order, index_of, write_index
from twinprobe.errors import BadInput


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


def files(reference: Path) -> list[Path]:
    return sorted((reference / "graph" / "results_json").rglob("*.vis"))


def test_every_node_of_every_file_comes_out_as_it_went_in(reference: Path) -> None:
    for path in files(reference):
        document = json.loads(path.read_text())
        with GraphFile(write_index(path)) as file:
            graph = file.graph(0, 0)
            for side, source in (("target", document.get("NPU", document)), ("golden", document.get("Bench"))):
                if source is None:
                    continue
                assert len(list(graph.outline(side))) == len(source["node"])
                for name, node in source["node"].items():
                    row = graph.node(side, name, full=True)
                    assert row
                    assert json.loads(row["input_data"]) == node["input_data"]
                    assert json.loads(row["output_data"]) == node["output_data"]
                    assert graph.stack(row) == node["stack_info"]
                    assert row["precision_index"] == node["data"].get("precision_index")
                    assert (row["up_node"] or "None") == node["upnode"]
                    children = [child["node_name"] for child in graph.children(side, name, 0, 1000, None)]
                    assert children == node["subnodes"]


def test_a_file_is_indexed_once_with_progress(reference: Path) -> None:
    path = files(reference)[0]
    steps: list[float] = []
    index = write_index(path, steps.append)
    assert steps[-1] == 1.0
    assert steps == sorted(steps)
    stamp = index.stat().st_mtime_ns
    assert write_index(path) == index_of(path) == index
    assert index.stat().st_mtime_ns == stamp


def test_not_a_number_is_understood_as_pythons_json_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.vis"
    node = {
        "node_type": 0,
        "subnodes": [],
        "upnode": "None",
        "data": {"precision_index": float("nan")},
        "input_data": {},
        "output_data": {},
    }
    path.write_text(json.dumps({"root": "DefaultModel", "node": {"DefaultModel": node}}))
    assert "NaN" in path.read_text()
    with GraphFile(write_index(path)) as file:
        root = file.graph(0, 0).root("target")
    assert root
    assert root["precision_index"] is None


BAD: list[Any] = [
    "",
    "{",
    "[]",
    "7",
    "{}",
    '{"NPU": 3}',
    '{"NPU": {"node": []}}',
    '{"node": {"a": {"subnodes": 3}}}',
    "[" * 200_000,
    '{"NPU":' * 50_000,
    '{"node": {"a": 1}, "x": NaN',
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_no_graph_file_is_a_message_and_leaves_nothing_behind(
    tmp_path: Path, own_cache: Path, text: str
) -> None:
    path = tmp_path / "a.vis"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"a\.vis"):
        write_index(path)
    assert [p for p in own_cache.rglob("*") if p.is_file()] == []


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from("abcdefgh"), st.lists(st.sampled_from("abcdefghx"), max_size=5)))
def test_any_tree_or_tangle_is_numbered_once_per_node_children_first(links: dict[str, list[str]]) -> None:
    known = {name: _Links(subnodes=children) for name, children in links.items()}
    order = list(_post_order("a", known))
    assert sorted(order) == sorted(known)
    assert "a" not in known or set(order[order.index("a") + 1 :]).isdisjoint(reachable("a", links))


def reachable(name: str, links: dict[str, list[str]]) -> set[str]:
    seen, waiting = {name}, [name]
    while waiting:
        for child in links[waiting.pop()]:
            if child in links and child not in seen:
                seen.add(child)
                waiting.append(child)
    return seen
