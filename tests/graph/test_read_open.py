"""Finding the graph files of a folder and opening them by step and rank."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from twinprobe._graph.read.json import index_of
from twinprobe._graph.read.open import IndexingError, find_graph, find_graphs, has_graphs, open_graph
from twinprobe.errors import BadInput


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def small(path: Path, name: str = "DefaultModel") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"root": name, "node": {name: {"node_type": 0, "subnodes": [], "upnode": "None"}}}))


def test_files_of_all_ranks_and_steps_are_one_thing_to_open(tmp_path: Path) -> None:
    for step in (0, 1):
        for rank in (0, 2):
            small(tmp_path / f"build_step{step}_rank{rank}_20261115.vis", f"root{step}{rank}")
    [source] = find_graphs(tmp_path)
    assert source.id == "build_20261115.vis"
    for step in (0, 1):
        for rank in (0, 2):
            with open_graph(source, step, rank) as (config, graph):
                assert (config.steps, config.ranks) == ([0, 1], [0, 2])
                root = graph.root("target")
                assert root
                assert root["node_name"] == f"root{step}{rank}"
    with pytest.raises(BadInput, match="no rank 1"), open_graph(source, 0, 1):
        pass


def test_a_missing_combination_is_a_message(tmp_path: Path) -> None:
    small(tmp_path / "build_step0_rank0_1.vis")
    small(tmp_path / "build_step1_rank1_1.vis")
    [source] = find_graphs(tmp_path)
    with pytest.raises(BadInput, match="no file for step 0, rank 1"), open_graph(source, 0, 1):
        pass


def test_sub_folders_are_searched_newest_first_and_hidden_ones_are_not(tmp_path: Path) -> None:
    for age, name in enumerate(["new/build_1.vis", "old/deep/er/build_1.vis", ".hidden/build_1.vis", "a/.build_2.vis"]):
        small(tmp_path / name)
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert [source.id for source in find_graphs(tmp_path)] == ["new/build_1.vis", "old/deep/er/build_1.vis"]
    assert has_graphs(tmp_path)


def test_a_file_is_found_by_its_id_as_in_the_list_and_never_outside(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    small(inside / "a" / "build_rank0_1.vis")
    small(inside / "a" / "build_rank1_1.vis")
    small(inside / "build_2.vis")
    small(tmp_path / "outside" / "build_3.vis")
    (inside / "link").symlink_to(tmp_path / "outside")
    (inside / "link.vis").symlink_to(tmp_path / "outside" / "build_3.vis")
    listed = find_graphs(inside)
    assert {source.id for source in listed} == {"a/build_1.vis", "build_2.vis"}
    assert [find_graph(inside, source.id) for source in listed] == listed
    wrong_ids = [
        "", ".", "..", "../outside/build_3.vis", "link/build_3.vis", "link.vis", "a/../build_2.vis", "a//build_1.vis",
        str(inside / "build_2.vis"), "a/build_rank0_1.vis", "b\0.vis", "none/x.vis",
    ]  # fmt: skip
    for wrong in wrong_ids:
        assert find_graph(inside, wrong) is None, wrong


def test_an_index_that_nobody_opened_for_a_month_is_deleted(tmp_path: Path) -> None:
    small(tmp_path / "build_1.vis")
    [source] = find_graphs(tmp_path)
    with open_graph(source):
        index = index_of(source.path)
    os.utime(index, (1e9, 1e9))
    small(tmp_path / "build_2.vis")
    with open_graph(next(found for found in find_graphs(tmp_path) if found.id == "build_2.vis")):
        assert not index.exists()
    with open_graph(source):
        assert index.exists()


def test_a_single_file_is_a_folder_of_one(tmp_path: Path) -> None:
    small(tmp_path / "build_rank3_1.vis")
    [source] = find_graphs(tmp_path / "build_rank3_1.vis")
    with open_graph(source) as (config, _):
        assert not config.compared


def test_an_empty_or_missing_folder_has_no_graphs(tmp_path: Path) -> None:
    assert find_graphs(tmp_path) == []
    assert not has_graphs(tmp_path)
    assert not has_graphs(tmp_path / "none")


def test_a_large_file_says_how_far_its_indexing_is(tmp_path: Path) -> None:
    tensor = {f"k{n}": "0.123456789" for n in range(40)}
    names = [f"Torch.add.{n}.forward" for n in range(40_000)]
    nodes = {
        name: {"node_type": 1, "subnodes": [], "upnode": "DefaultModel", "output_data": {f"{name}.output.0": tensor}}
        for name in names
    }
    nodes["DefaultModel"] = {"node_type": 0, "subnodes": names, "upnode": "None"}
    (tmp_path / "build_1.vis").write_text(json.dumps({"root": "DefaultModel", "node": nodes}))
    [source] = find_graphs(tmp_path)
    seen = []
    for _ in range(600):
        try:
            with open_graph(source) as (_, graph):
                assert graph.child_count("target", "DefaultModel") == len(names)
            break
        except IndexingError as error:
            seen.append(error.done)
    assert seen == sorted(seen)
    assert all(0 <= done <= 1 for done in seen)
    with open_graph(source):  # at once, from the index
        pass
