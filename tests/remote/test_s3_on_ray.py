"""Several Ray nodes, results behind a URL: what travels between them lies in the storage, not on one node's disk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_dumps import local_results, rank_folders, s3_results
from s3_server import S3Server

from support import slow

pytest.importorskip("ray", reason="Ray is not installed")
sys.path.append(str(Path(__file__).resolve().parents[1] / "scale"))
from two_nodes import two_nodes


@pytest.fixture(scope="module")
def cluster(s3_session: S3Server) -> Iterator[Any]:
    """Nodes that know where the storage is."""
    assert s3_session.url
    with two_nodes() as made:
        yield made


@pytest.mark.parametrize("form", slow("db", "vis"))
def test_graphs_of_ranks_are_drawn_by_nodes_and_put_together_there(
    s3: S3Server, cluster: Any, command, tmp_path: Path, form: str
) -> None:
    target = rank_folders(tmp_path / "t", ranks=3, steps=1, shift=0.1)
    golden = rank_folders(tmp_path / "g", ranks=3, steps=1)
    urls = s3.put(target, f"ray/{form}/t"), s3.put(golden, f"ray/{form}/g")
    words = ("graph_visualize", "--file_type", form, "--quiet")
    assert command(*words, "-tp", target, "-gp", golden, "-o", tmp_path / "here", "--engine", "inline").code == 0
    s3.traffic.clear()
    out = f"s3://dumps/ray/{form}/out"
    said = command(*words, "-tp", urls[0], "-gp", urls[1], "-o", out, "--ray-address", cluster.address)
    assert (said.code, said.err) == (0, "")
    sent = [path for method, path, _, _ in s3.traffic.requests if method == "PUT" and path.endswith(f"part.{form}")]
    assert len(sent) == 3
    expected, found = local_results(tmp_path / "here"), s3_results(s3, f"ray/{form}/out")
    assert sorted(found) == sorted(expected) != []
    if form == "vis":
        assert found == expected


@pytest.mark.slow
def test_ranks_are_merged_by_nodes(s3: S3Server, cluster: Any, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", steps=1, shift=0.1), rank_folders(tmp_path / "g", steps=1)
    options = ("--format", "dataset", "--engine", "inline", "--quiet")
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "set", *options).code == 0
    url = s3.put(tmp_path / "set", "ray/set")
    config = tmp_path / "config.yaml"
    config.write_text("api: [Torch.add]\n")
    words = ("merge_result", "-config", config, "--quiet")
    assert command(*words, "-i", tmp_path / "set", "-o", tmp_path / "here").code == 0
    said = command(*words, "-i", url, "-o", "s3://dumps/ray/merged", "--ray-address", cluster.address)
    assert (said.code, said.err) == (0, "")
    assert s3_results(s3, "ray/merged") == local_results(tmp_path / "here")
