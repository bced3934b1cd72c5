"""graph, merge_result, llm compare and view from and to a real S3 server."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import llm_dumps
import pytest
from remote_dumps import local_results, pair_of, rank_folders, s3_results
from s3_server import S3Server

from support import slow


def rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All tables of a graph file."""
    with sqlite3.connect(path) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table' ORDER BY name")]
        return {name: db.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names}


@pytest.mark.parametrize("form", ["db", *slow("vis")])
def test_graphs_of_all_ranks(s3: S3Server, command, tmp_path: Path, form: str) -> None:
    target, golden = (
        rank_folders(tmp_path / "t", ranks=2, steps=1, shift=0.1),
        rank_folders(tmp_path / "g", ranks=2, steps=1),
    )
    urls = s3.put(target, f"graph/{form}/t"), s3.put(golden, f"graph/{form}/g")
    options = ("--file_type", form, "--workers", 2, "--quiet")
    here = command("graph_visualize", "-tp", target, "-gp", golden, "-o", tmp_path / "here", *options)
    there = command("graph_visualize", "-tp", urls[0], "-gp", urls[1], "-o", f"s3://dumps/graph/{form}/out", *options)
    assert (here.code, there.code, there.err) == (0, 0, ""), here.err
    expected, found = local_results(tmp_path / "here"), s3_results(s3, f"graph/{form}/out")
    assert sorted(found) == sorted(expected) != []
    if form == "vis":
        assert found == expected
        return
    for name, content in {"expected.db": expected, "found.db": found}.items():
        (tmp_path / name).write_bytes(content["compare_T.vis.db"])
    assert rows(tmp_path / "found.db") == rows(tmp_path / "expected.db")


def test_a_compare_json_may_name_urls(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = pair_of("statistics", tmp_path)
    urls = s3.put(target, "json/t"), s3.put(golden, "json/g")
    document = tmp_path / "compare.json"
    document.write_text(json.dumps({"npu_path": urls[0], "bench_path": urls[1]}))
    url = s3.put(document, "json/compare.json")
    for name, file in (("local", document), ("remote", url)):
        said = command("graph", "-i", file, "-o", tmp_path / name, "--quiet")
        assert (said.code, said.err) == (0, "")
        assert list(local_results(tmp_path / name)) == ["compare_T.vis"]


def test_a_remote_graph_is_shown_and_exported(s3: S3Server, command, tmp_path: Path) -> None:
    target, _ = pair_of("statistics", tmp_path)
    url = s3.put(target, "view/t")
    assert command("graph_visualize", "-tp", url, "-o", "s3://dumps/view/out", "--quiet").code == 0
    s3.put(tmp_path / "statistics" / "golden" / "dump.json", "view/out/other.json")
    s3.traffic.clear()
    said = command("view", "s3://dumps/view/out", "--export", "s3://dumps/view/page.html")
    assert said.code == 0, said.err
    assert b"<html" in s3.get("view/page.html")[:2000].lower()
    assert s3.traffic.of("other.json") == []


@pytest.mark.parametrize("form", [*slow("csv"), "parquet", *slow("xlsx")])
def test_results_of_ranks_are_merged(s3: S3Server, command, tmp_path: Path, form: str) -> None:
    target, golden = rank_folders(tmp_path / "t", steps=1, shift=0.1), rank_folders(tmp_path / "g", steps=1)
    results = tmp_path / "results"
    options = ("-o", results, "--format", form, "--workers", 1, "--quiet")
    assert command("compare", "-tp", target / "step0", "-gp", golden / "step0", *options).code == 0
    config = tmp_path / "config.yaml"
    config.write_text("api: [Torch.add]\n")
    urls = s3.put(results, f"merge/{form}/in"), s3.put(config, f"merge/{form}/config.yaml")
    assert command("merge_result", "-i", results, "-o", tmp_path / "here", "-config", config, "--quiet").code == 0
    said = command("merge_result", "-i", urls[0], "-o", f"s3://dumps/merge/{form}/out", "-config", urls[1])
    assert (said.code, said.err) == (0, "")
    expected = local_results(tmp_path / "here")
    assert list(expected) == ["multi_ranks_compare_merge_T.xlsx"]
    assert s3_results(s3, f"merge/{form}/out") == expected


def llm_sides(folder: Path, kind: str) -> tuple[Path, Path]:
    sizes = llm_dumps.Sizes(layers=1)
    tokens = {0: llm_dumps.decoder_values(sizes), 1: llm_dumps.decoder_values(sizes, seed=1)}
    changed = {at: {name: value * 1.01 if name == "0.q" else value for name, value in values.items()}
               for at, values in tokens.items()}  # fmt: skip
    golden = llm_dumps.write_torch(folder / "golden" / "10_cpu", tokens, sizes.layers)
    if kind == "torch":
        return llm_dumps.write_torch(folder / "mine" / "11_cpu", changed, sizes.layers), golden
    operators = llm_dumps.atb_model(sizes.layers, llm_dumps.atb_layer())
    return llm_dumps.write_atb_model(folder / "mine" / "ait_dump", "0_77", changed, operators), golden


@pytest.mark.parametrize("kind", [*slow("torch"), "atb"])
def test_inference_dumps(s3: S3Server, command, tmp_path: Path, kind: str) -> None:
    mine, golden = llm_sides(tmp_path, kind)
    urls = [s3.put(side, f"llm/{kind}/{side.parent.name}/{side.name}") for side in (mine, golden)]
    here = command("llm", "compare", "-mp", mine, "-gp", golden, "-o", tmp_path / "here", "--quiet")
    s3.traffic.clear()
    there = command("llm", "compare", "-mp", urls[0], "-gp", urls[1], "-o", f"s3://dumps/llm/{kind}/out", "--quiet")
    assert (here.code, there.code, there.err) == (0, 0, ""), here.err
    (expected,), (found,) = local_results(tmp_path / "here").values(), s3_results(s3, f"llm/{kind}/out").values()
    for side, url in ((mine, urls[0]), (golden, urls[1])):
        expected = expected.replace(str(side).encode(), url.encode())
    assert expected.count(b"\n") > 40
    assert found == expected
    # One listing for all folders of a token, not one for each of its modules.
    listings = [path for method, path, _, _ in s3.traffic.requests if method == "GET" and path.count("/") == 1]
    assert len(listings) < 60


@pytest.mark.slow
def test_statistics_of_inference_dumps_and_two_tensor_files(s3: S3Server, command, tmp_path: Path) -> None:
    mine, golden = llm_sides(tmp_path, "atb")
    urls = [s3.put(side, f"llm2/{side.parent.name}/{side.name}") for side in (mine, golden)]
    outputs = []
    for name, sides in (("here", (mine, golden)), ("there", urls)):
        said = command("llm", "compare", "--stats", "-mp", sides[0], "-gp", sides[1], "-o", tmp_path / name, "--quiet")
        assert (said.code, said.err) == (0, "")
        (table,) = local_results(tmp_path / name).values()
        outputs.append(table.replace(str(sides[0]).encode(), b"MINE").replace(str(sides[1]).encode(), b"GOLDEN"))
    assert outputs[0] == outputs[1]
    file = "0/root.lm_head/output.pth"
    said = command("llm", "compare", "--json", "-mp", f"{urls[1]}/{file}", "-gp", golden / file)
    assert said.code == 0, said.err
    assert json.loads(said.out)["result"] == "pass"
