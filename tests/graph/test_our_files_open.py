"""Files that we write are opened by our own reader, with everything that was put into them."""

from __future__ import annotations

from pathlib import Path

import pytest
from graph_drawing import draw, dump

from twinprobe._graph.read.open import find_graphs, open_graph

FIRST = "Module.language_model.encoder.layers.1.mlp.dense_h_to_4h.Linear.forward.0"


@pytest.mark.parametrize("form", ["db", "vis"])
def test_a_comparison_is_read_back(reference: Path, tmp_path: Path, form: str) -> None:
    target, golden = dump(reference, "dist_pert"), dump(reference, "dist_base")
    outcome = draw(target, golden, tmp_path, form)
    (source,) = find_graphs(tmp_path)
    for rank in (0, 1):
        with open_graph(source, 0, rank) as (config, graph):
            assert config.ranks == [0, 1]
            facts = config.summary[0, rank]
            first = outcome.summaries[rank].first
            assert first is not None
            assert facts["first_node"] == first.op
            root = graph.root("target")
            assert root is not None
            assert root["node_name"] == "DefaultModel"
            assert graph.child_count("target", "DefaultModel") == 6
            found = graph.knowledge("target", [first.op])[first.op]
            assert found["verdict"] in ("warning", "error")
            assert found["matched_by"] == "name"


@pytest.mark.parametrize("form", ["db", "vis"])
def test_a_single_graph_is_read_back(reference: Path, tmp_path: Path, form: str) -> None:
    draw(dump(reference, "base_statistics"), None, tmp_path, form)
    (source,) = find_graphs(tmp_path)
    with open_graph(source) as (config, graph):
        assert config.summary in ({}, {(0, 0): {}})
        assert graph.node("target", FIRST) is not None
