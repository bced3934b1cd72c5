"""Inside the tensor: in the report of a comparison and on the page of its graph, from real files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_tools import becomes, box_of, show
from werkzeug.test import Client

from support import tensor_dump
from twinprobe._cli import main
from twinprobe._runs.sketches import read_summaries
from twinprobe._view.app import ViewApp

NAME = "Torch.a.0.forward"


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that kept their tensors, whose output differs by a factor, with the report and the graph of them."""
    root = tmp_path_factory.mktemp("kept")
    rng = np.random.default_rng(0)
    given, made = (rng.standard_normal((2, 4, 32, 48)).astype(np.float32) for _ in range(2))
    for side, factor in (("t", 1.25), ("g", 1.0)):
        tensor_dump(root / side, {NAME: {"input.0": given, "output.0": made * np.float32(factor)}})
        (root / side / "construct.json").write_text(json.dumps({NAME: None}))
        (root / side / "stack.json").write_text("{}")
    sides = [str(root / side / "dump.json") for side in "tg"]
    assert main(["compare", "-tp", sides[0], "-gp", sides[1], "-o", str(root / "out"), "--format", "html"]) == 0
    (root / "pair.json").write_text(
        json.dumps({"npu_path": str(root / "t"), "bench_path": str(root / "g"), "is_print_compare_log": False})
    )
    assert main(["graph", "-i", str(root / "pair.json"), "-o", str(root / "graph")]) == 0
    return root


def test_the_report_draws_the_first_divergence(page: Any, kept: Path) -> None:
    (report,) = (kept / "out").glob("compare_result*.html")
    page.goto((kept / "out" / "index.html").as_uri())
    page.get_by_role("link", name=report.name).click()
    page.locator("#first-show").click()
    page.wait_for_selector(".inside canvas")
    becomes(page, page.locator(".inside-kinds").inner_text, lambda text: "target = 1.25" in text)
    becomes(page, page.locator(".inside canvas").count, lambda count: count == 5)
    worst = page.locator(".inside-table").nth(1).locator("tbody tr").first.inner_text().split("\t")
    index = tuple(int(at) for at in worst[0].strip("[]").split(","))
    sides = [np.load(kept / side / "dump_tensor_data" / f"{NAME}.output.0.npy")[index] for side in "tg"]
    assert [float(text) for text in worst[1:3]] == pytest.approx(sides, rel=1e-3)


def test_the_report_has_sliders_and_a_choice_of_axes_without_a_server(page: Any, kept: Path) -> None:
    (report,) = (kept / "out").glob("compare_result*.html")
    page.goto(report.as_uri())
    page.locator("#first-show").click()
    facts = page.locator(".inside-facts")
    facts.wait_for()
    sliders = page.locator(".inside-controls input[type=range]")
    becomes(page, sliders.count, lambda count: count == 2)
    sliders.nth(1).evaluate("e => { e.value = '3'; e.dispatchEvent(new Event('change')); }")
    becomes(page, facts.inner_text, lambda text: "3,072 elements" in text)
    page.locator(".inside-controls select").nth(1).select_option("1")
    becomes(page, page.locator(".inside-controls select").nth(1).input_value, lambda axis: axis == "1")
    becomes(page, facts.inner_text, lambda text: "12,288 elements" in text)


def test_the_page_draws_it_and_a_slider_and_a_drag_read_a_part(
    page: Any, serve: Callable[..., str], kept: Path
) -> None:
    show(page, serve(kept / "graph"), tall=600)
    page.wait_for_selector(".inside canvas")
    facts = page.locator(".inside-facts")
    becomes(page, facts.inner_text, lambda text: text.startswith("[2, 4, 32, 48], 12,288 elements"))
    page.locator(".inside-controls input[type=range]").first.evaluate(
        "e => { e.value = '1'; e.dispatchEvent(new Event('change')); }"
    )
    becomes(page, facts.inner_text, lambda text: "6,144 elements" in text)
    box = box_of(page, page.locator(".inside canvas").first)
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.up()
    becomes(page, facts.inner_text, lambda text: "1,536 elements" in text)
    page.locator(".inside-controls button").click()
    becomes(page, facts.inner_text, lambda text: "12,288 elements" in text)
    page.locator(".inside-figure select").first.select_option("input.0")
    becomes(page, lambda: page.url, lambda url: "inside=input.0" in url)
    becomes(page, lambda: page.locator(".inside").inner_text(), lambda text: "Equal: no element differs." in text)


def test_the_first_picture_comes_from_the_file_and_a_part_from_the_tensors(kept: Path, tmp_path: Path) -> None:
    place = tmp_path / "graph"
    shutil.copytree(kept / "graph", place)
    client = Client(ViewApp(place))
    asked = {"name": NAME, "argument": "output.0"}
    first = client.get("/api/inside", query_string=asked).get_json()
    assert first["size"] == [24, 36]  # as the graph command wrote it
    part = client.get("/api/inside", query_string={**asked, "rows": 2, "columns": 3, "ranges": "1-2,0-4,0-32,0-48"})
    assert part.get_json()["elements"] == 4 * 32 * 48
    assert part.get_json()["size"] == [32, 48]
    for wrong in ({"ranges": "x"}, {"ranges": "0-9", "rows": 0, "columns": 1}, {"ranges": "0-1", "columns": 7}):
        assert client.get("/api/inside", query_string={**asked, **wrong}).status_code == 422
    assert client.get("/api/inside", query_string={**asked, "argument": "../../x"}).status_code == 422


def test_a_graph_that_names_a_file_outside_of_its_dump_is_refused(kept: Path, tmp_path: Path) -> None:
    (file,) = (kept / "graph").glob("*.vis")
    document = json.loads(file.read_text())
    document["NPU"]["node"][NAME]["output_data"][f"{NAME}.output.0"]["data_name"] = "../../../pair.json"
    document["TwinProbe"] = {key: value for key, value in document["TwinProbe"].items() if not key.startswith("inside")}
    (tmp_path / "evil.vis").write_text(json.dumps(document))
    client = Client(ViewApp(tmp_path))
    for _ in range(100):
        reply = client.get("/api/inside", query_string={"name": NAME, "argument": "output.0"})
        if reply.status_code != 202:
            break
    assert reply.status_code == 422
    assert "leaves its folder" in reply.get_json()["error"]["what"]


@pytest.fixture(scope="session")
def summarised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recordings of one model that kept summaries and no tensors; a row of one weight is three times as large."""
    import torch

    from twinprobe.torch import record

    root = tmp_path_factory.mktemp("summarised")
    for side in "tg":
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.Linear(40, 16))
        if side == "t":
            with torch.no_grad():
                model[1].weight[5] *= 3
        with record(model, root / side, level="mix", summaries=True):
            model(torch.randn(6, 24)).square().mean().backward()
        torch.save(model[1].weight.detach(), root / f"{side}.pt")
        next((root / side / "step0").iterdir()).rename(root / side / "step0" / "rank0")
    return root


def test_summaries_show_the_inside_without_tensors(page: Any, serve: Callable[..., str], summarised: Path) -> None:
    import torch

    sides = [summarised / side / "step0" / "rank0" for side in "tg"]
    assert not (sides[0] / "dump_tensor_data").exists()
    out = summarised / "out"
    assert main(["compare", str(sides[0]), str(sides[1]), "-o", str(out), "--format", "html"]) == 0
    (report,) = out.glob("compare_result*.html")
    page.goto(report.as_uri())
    page.locator("#first-show").click()
    page.wait_for_selector(".inside canvas")
    assert "the elements themselves were not kept" in page.locator(".inside").inner_text()
    captions = page.locator(".inside-maps figcaption").all_inner_texts()[:3]
    weights = [torch.load(summarised / f"{side}.pt") for side in "tg"]
    largest = float(weights[0].abs().max())
    assert captions[1].split() == ["target", f"±{largest:.4g}"]
    assert captions[2].split() == ["golden", f"±{largest:.4g}"]  # one colour scale
    first = page.locator(".inside-table").nth(1).locator("tbody tr").first.inner_text().split("\t")
    index = tuple(int(at) for at in first[0].strip("[]").split(","))
    assert (index[0], float(first[1])) == (5, pytest.approx(float(weights[0][index]), rel=1e-3))

    pair = {"npu_path": str(sides[0]), "bench_path": str(sides[1]), "is_print_compare_log": False}
    (summarised / "pair.json").write_text(json.dumps(pair))
    assert main(["graph", "-i", str(summarised / "pair.json"), "-o", str(summarised / "graph")]) == 0
    show(page, serve(summarised / "graph"), tall=600)
    page.wait_for_selector(".inside canvas")
    assert "the elements themselves were not kept" in page.locator(".inside").inner_text()


def test_summaries_are_small_and_a_damaged_one_is_left_out(summarised: Path, tmp_path: Path) -> None:
    file = summarised / "t" / "step0" / "rank0" / "dump.summaries.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert max(len(json.dumps(line)) for line in lines) < 5_000
    named = {line["name"]: line for line in lines}
    seen_again = named["Module.1.Linear.forward.0.input.0"]
    assert named[seen_again["like"]]["summary"]["shape"] == [6, 40]
    evil = dict(lines[0]["summary"], size=[60, 60])  # more blocks than it has numbers for
    kept = [{"name": "a", "summary": evil}, {"name": "b", "summary": lines[0]["summary"]}, {"name": "c", "like": "b"}]
    text = "\n".join(map(json.dumps, kept)).replace('": ', '":').replace(", ", ",") + '\n{"name":"d","summ'
    (tmp_path / "dump.summaries.jsonl").write_text(text)
    assert set(read_summaries(tmp_path / "dump.json", {"a", "b", "c", "d"})) == {"b", "c"}


def test_resume_makes_a_report_anew_for_a_run_that_has_summaries_now(summarised: Path, tmp_path: Path) -> None:
    for side in ("t", "g"):
        shutil.copytree(summarised / side, tmp_path / side)
    files = [tmp_path / side / "step0" / "rank0" / "dump.summaries.jsonl" for side in "tg"]
    told = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    command = ["compare", "-tp", str(tmp_path / "t"), "-gp", str(tmp_path / "g"), "-o", str(tmp_path / "out")]
    sizes = []
    for _ in range(2):
        assert main([*command, "--format", "html,dataset", "--resume", "--quiet"]) == 0
        sizes.append([path.stat().st_size for path in (tmp_path / "out").glob("step0/compare_result_*.html")])
        for file, content in zip(files, told, strict=True):
            file.write_bytes(content)
    (before,), (after,) = sizes  # one report, and now it draws what is inside
    assert after > before + 10_000
