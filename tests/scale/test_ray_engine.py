"""The engine of many machines, on a real Ray cluster of two nodes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_work import dies_at_first, node_and_square, rank_or_death, wrong
from many_ranks import compare, leftovers, ranks_at, tables, tensors_at
from two_nodes import HERE, two_nodes

from twinprobe._cli import main
from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.ray import Versions, check_versions
from twinprobe._scale.spread import spread
from twinprobe.errors import BadInput

ray = pytest.importorskip("ray", reason="Ray is not installed")
MANY = 18


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with two_nodes() as made:
        yield made


def options(cluster: Any) -> EngineOptions:
    return EngineOptions("ray", address=cluster.address)


def test_compare_gives_the_same_tables_on_every_engine(cluster: Any, tmp_path: Path) -> None:
    for side, off in (("t", {7: 3.0}), ("g", {})):
        ranks_at(tmp_path / side, MANY, off=off)
    found = {}
    for engine in ("inline", "process", "ray"):
        more = ["--ray-address", cluster.address] if engine == "ray" else []
        form = ["--format", "csv,dataset", "--engine", engine, *more]
        assert compare(tmp_path / "t", tmp_path / "g", tmp_path / engine, *form) == 0
        found[engine] = tables(tmp_path / engine)
        assert leftovers(tmp_path / engine) == []
    assert len(found["inline"]) == 3 * MANY
    assert found["inline"] == found["process"] == found["ray"]


@pytest.mark.slow
def test_graphs_and_merged_ranks_are_the_same_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    from openpyxl import load_workbook

    for side, off in (("t", {1: 3.0}), ("g", {})):
        for folder in ranks_at(tmp_path / side, 3, off=off).iterdir():
            names = json.loads((folder / "dump.json").read_text())["data"]
            (folder / "construct.json").write_text(json.dumps(dict.fromkeys(names)))
            (folder / "stack.json").write_text("{}")
    assert compare(tmp_path / "t", tmp_path / "g", tmp_path / "results", "--csv") == 0
    (tmp_path / "merge.yaml").write_text("api: [Torch.a]\n")
    found = []
    for engine in (["--engine", "inline"], ["--ray-address", cluster.address]):
        out = tmp_path / engine[0]
        draw = ["graph_visualize", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(out)]
        assert main([*draw, "--file_type", "vis", "--quiet", *engine]) == 0
        merge = ["merge_result", "-i", str(tmp_path / "results"), "-o", str(out)]
        assert main([*merge, "-config", str(tmp_path / "merge.yaml"), "--quiet", *engine]) == 0
        (book,) = out.glob("*.xlsx")
        sheets = [[list(row) for row in sheet.iter_rows(values_only=True)] for sheet in load_workbook(book)]
        found.append((sheets, [path.read_bytes() for path in sorted(out.glob("*.vis"))]))
    assert len(found[0][1]) == 3
    assert found[0] == found[1]


@pytest.mark.slow
def test_tokens_of_an_inference_run_are_compared_on_the_cluster(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(HERE).parent / "llm")
    from llm_dumps import Sizes, decoder_values, write_torch

    values = {token: decoder_values(Sizes(), token) for token in range(3)}
    sides = [write_torch(tmp_path / side, values, 2) for side in ("mine", "golden")]
    found = []
    for engine in (["--engine", "inline"], ["--ray-address", cluster.address]):
        out = tmp_path / engine[0]
        command = ["llm", "compare", "-mp", str(sides[0]), "-gp", str(sides[1]), "-o", str(out)]
        assert main([*command, "--quiet", *engine]) == 0
        (report,) = out.glob("*.csv")
        found.append(report.read_bytes())
    assert found[0] == found[1]


@pytest.mark.slow
def test_slices_of_one_rank_are_measured_on_the_cluster(cluster: Any, tmp_path: Path) -> None:
    from twinprobe._compare.job import run_request
    from twinprobe._compare.request import Request

    for side, seed in (("t", 2), ("g", 3)):
        tensors_at(tmp_path / side, 12, seed=seed)
    for name, engine in (
        ("plain", EngineOptions("inline")),
        ("ray", EngineOptions("ray", address=cluster.address, slice_bytes=8 << 10)),
    ):
        sides = tmp_path / "t", tmp_path / "g"
        request = Request(*sides, tmp_path / name, ("csv",), "20260102030405", engine=engine)
        assert run_request(request, lambda _what, _done, _total: None).failures == []
    assert tables(tmp_path / "plain") == tables(tmp_path / "ray")


def test_errors_and_killed_workers_are_as_on_one_machine(cluster: Any, tmp_path: Path) -> None:
    ((_, error),) = spread(wrong, [1], options=options(cluster))
    assert str(error) == "here: is not wanted"
    items = [(str(tmp_path), at) for at in range(5)]
    assert dict(spread(dies_at_first, items, options=options(cluster))) == {at: at for at in range(5)}


def test_a_rank_that_the_cluster_lost_is_exit_code_2(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks_at(tmp_path / "t", MANY)
    monkeypatch.setattr("twinprobe._compare.job.run_rank", rank_or_death)
    sides = tmp_path / "t", tmp_path / "t"
    assert compare(*sides, tmp_path / "out", "--ray-address", cluster.address) == 2
    assert "the result is incomplete: rank5: a Ray worker or node was lost" in capsys.readouterr().err
    assert len(list((tmp_path / "out").rglob("part.parquet"))) == MANY - 1


@pytest.mark.slow
def test_a_node_that_is_lost_in_the_middle_costs_only_its_pieces(cluster: Any, tmp_path: Path) -> None:
    doomed = cluster.add_node(num_cpus=2, object_store_memory=80 << 20)
    (tmp_path / f"doomed-{doomed.node_id}").touch()

    def lose() -> None:
        while not list(tmp_path.glob(f"*-{doomed.node_id}-*")):
            time.sleep(0.05)
        cluster.remove_node(doomed, allow_graceful=False)

    killer = threading.Thread(target=lose)
    killer.start()
    found = dict(spread(node_and_square, [(str(tmp_path), at) for at in range(12)], options=options(cluster)))
    killer.join()
    assert {at: result[0] for at, result in found.items() if isinstance(result, tuple)} == {
        at: at * at for at in range(12)
    }
    assert doomed.node_id not in {result[1] for result in found.values() if isinstance(result, tuple)}
    assert list(tmp_path.glob(f"*-{doomed.node_id}-*"))


@pytest.mark.slow
def test_other_versions_on_a_node_are_named(cluster: Any, tmp_path: Path) -> None:
    other = tmp_path / "twinprobe"
    other.mkdir()
    (other / "__init__.py").write_text('__version__ = "0.0.9"\n')
    odd = cluster.add_node(num_cpus=1, object_store_memory=80 << 20, env_vars={"PYTHONPATH": f"{tmp_path}:{HERE}"})
    try:
        with pytest.raises(BadInput, match=r"has TwinProbe 0\.0\.9.*here are TwinProbe") as told:
            list(spread(wrong, [1], options=options(cluster)))
        assert "install the same versions on every node" in str(told.value)
    finally:
        cluster.remove_node(odd)


def test_differences_of_versions_are_told_node_by_node() -> None:
    mine = Versions("this machine", "3.11.7", "1.2")
    check_versions(mine, [Versions("node a", "3.11.2", "1.2")])
    nodes = [Versions("node b", "3.12.1", "1.2"), Versions("node c", "3.11.7", ""), Versions("node d", "3.11.7", "1.1")]
    with pytest.raises(BadInput) as told:
        check_versions(mine, nodes)
    for part in ("node b has Python 3.12.1", "node c has no TwinProbe", "node d has TwinProbe 1.1"):
        assert part in str(told.value)


def refused(address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    ranks_at(tmp_path / "t", 2)
    assert compare(tmp_path / "t", tmp_path / "t", tmp_path / "out", "--ray-address", address) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("address", "says"), [("127.0.0.1:1", "does not answer"), ("somewhere", "is not a Ray address")]
)
def test_an_address_that_is_none_is_an_error(
    address: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{address}: " in (said := refused(address, tmp_path, capsys))
    assert says in said


@pytest.mark.slow
def test_something_else_than_ray_at_the_address_is_given_up_in_time(tmp_path: Path) -> None:
    ranks_at(tmp_path / "t", 2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        start = "import sys; from twinprobe._cli import main; sys.exit(main())"
        command = [sys.executable, "-c", start, "compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "t")]
        command += ["-o", str(tmp_path / "out"), "--ray-address", address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2
    assert f"{address}: the Ray cluster does not answer" in done.stderr


def test_without_ray_the_extra_is_named(tmp_path: Path) -> None:
    ranks_at(tmp_path / "t", 2)
    hidden = "import sys; sys.modules['ray'] = None; from twinprobe._cli import main; sys.exit(main())"
    command = [sys.executable, "-c", hidden, "compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "t")]
    command += ["-o", str(tmp_path / "out"), "--engine", "ray"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert 'pip install "twinprobe[ray]"' in done.stderr


@pytest.mark.slow
def test_a_cluster_is_started_where_none_is_named(tmp_path: Path) -> None:
    for side, off in (("t", {1: 3.0}), ("g", {})):
        ranks_at(tmp_path / side, 3, off=off)
    start = "import sys; from twinprobe._cli import main; sys.exit(main())"
    command = [sys.executable, "-c", start, "compare", "-tp", "t", "-gp", "g", "-o", "ray", "--csv", "--engine", "ray"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run([*command, "--workers", "2"], cwd=tmp_path, env=environment, capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert main(["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "here"),
                 "--csv", "--quiet"]) == 0  # fmt: skip
    assert tables(tmp_path / "ray") == tables(tmp_path / "here")
