"""Graphs for Model Explorer: what its reader of JSON graphs expects, and node data for every node that it names."""

from __future__ import annotations

import json
from pathlib import Path

import twinprobe

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo"


def test_a_graph_with_the_errors_of_a_comparison(tmp_path: Path) -> None:
    files = twinprobe.draw(DEMO / "target", DEMO / "golden", output_path=tmp_path, file_type="model_explorer")
    assert [file.name for file in files] == ["model_explorer.json", "model_explorer_node_data.json"]
    (graph,) = json.loads(files[0].read_text())["graphs"]
    nodes = {node["id"]: node for node in graph["nodes"]}
    assert len(nodes) == len(graph["nodes"]) > 50
    for node in graph["nodes"]:
        assert set(node) == {"id", "label", "namespace", "attrs", "incomingEdges", "outputsMetadata"}
        assert all(edge["sourceNodeId"] in nodes for edge in node["incomingEdges"])
        assert all(type(attribute["value"]) is str for attribute in node["attrs"])
    assert any(node["namespace"] == "layers/1/mlp" for node in graph["nodes"])
    results = json.loads(files[1].read_text())[graph["id"]]["results"]
    assert set(results) <= set(nodes)
    guilty = "Module.layers.1.post_norm.Norm.forward.0"
    assert (nodes[guilty]["namespace"], nodes[guilty]["label"]) == ("layers/1", "post_norm")
    assert results[guilty]["value"] > 0.9
    assert results[graph["nodes"][0]["id"]]["value"] == 0.0


def test_a_graph_of_one_run(tmp_path: Path) -> None:
    (file,) = twinprobe.draw(DEMO / "target", output_path=tmp_path, file_type="model_explorer")
    assert json.loads(file.read_text())["graphs"][0]["nodes"]
