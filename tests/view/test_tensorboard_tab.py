"""The same page as a tab of TensorBoard."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from page_tools import becomes

pytest.importorskip("tensorboard", reason="tensorboard is not installed")


class Board:
    def __init__(self, place: Path, *options: str) -> None:
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(place), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.said = ""
        while not (found := re.search(r"at http://\S*?:(\d+)/", self.said)):
            assert self.process.stderr
            line = self.process.stderr.readline()
            assert line, self.said
            self.said += line
        self.port = int(found[1])

    def close(self) -> str:
        self.process.terminate()
        return self.said + self.process.communicate(timeout=600)[1]


SHOWN = "cmp_stat/compare_20261115024710.vis.db"
OTHER = "ranks_cmp/compare_20261115025155.vis.db"


@pytest.fixture(scope="module")
def board(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """TensorBoard on a copy of the results, of which SHOWN is the newest: the one that the page opens with."""
    place = tmp_path_factory.mktemp("results")
    for at, path in enumerate(sorted((reference / "graph" / "results").glob("*/*.vis.db"))):
        copy = place / path.parent.name / path.name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, copy)
        os.utime(copy, (at, 99 if f"{path.parent.name}/{path.name}" == SHOWN else at))
    board = Board(place, "--bind_all")
    yield board
    board.close()


def get(board: Board, path: str, host: str = "localhost") -> tuple[dict[str, str], bytes]:
    request = urllib.request.Request(f"http://127.0.0.1:{board.port}{path}", headers={"Host": host})
    with urllib.request.urlopen(request) as reply:
        return dict(reply.headers), reply.read()


def test_the_plugin_is_found_through_its_entry_point() -> None:
    found = {point.name: point.value for point in entry_points(group="tensorboard_plugins")}
    assert found["twinprobe"] == "twinprobe._view.tensorboard_plugin:TwinProbePlugin"


def test_the_tab_is_called_twinprobe_and_is_active_where_there_are_graphs(board: Board) -> None:
    listing = json.loads(get(board, "/data/plugins_listing")[1])
    plugin = listing["twinprobe"]
    assert plugin["tab_name"] == "TWINPROBE"
    assert plugin["enabled"] is True
    assert plugin["loading_mechanism"]["module_path"] == "/data/plugin/twinprobe/static/index.js"


def test_it_answers_under_any_name_that_tensorboard_is_reached_by(board: Board) -> None:
    for host in ("gpu-node-7.example:8080", socket.gethostname(), "10.1.2.3"):
        answer = json.loads(get(board, "/data/plugin/twinprobe/api/files", host)[1])
        assert len(answer["files"]) == 5


def test_the_page_in_the_tab_opens_on_the_first_divergence_and_keeps_its_state_in_the_address(
    board: Board, page: Any
) -> None:
    page.goto(f"http://127.0.0.1:{board.port}/#twinprobe")
    frame = page.frame_locator("iframe")
    frame.locator(".page").wait_for()
    frame.locator(".details .table").first.wait_for()
    for file in (SHOWN, OTHER, SHOWN):  # the first is shown already
        frame.get_by_label("File").first.select_option(file)
        page.wait_for_url(re.compile(f"#twinprobe&twinprobe=.*{file.partition('/')[0]}"))
        frame.locator(".pane-target .box.current", has_text="Functional.gelu.backward.1").wait_for()
        frame.locator(".details .table").first.wait_for()
    page.reload()
    frame.locator(".pane-target .box.current", has_text="Functional.gelu.backward.1").wait_for()
    becomes(page, frame.get_by_label("File").first.input_value, lambda file: "cmp_stat" in file)


def test_the_page_also_stands_alone_under_tensorboard(board: Board, page: Any) -> None:
    page.goto(f"http://127.0.0.1:{board.port}/data/plugin/twinprobe/index.html#file={SHOWN}")
    page.wait_for_selector(".banner.found")


def test_matching_by_hand_works_under_tensorboard_whose_validator_has_no_complaint(
    tmp_path: Path, reference: Path, page: Any
) -> None:
    source = next((reference / "graph" / "results" / "cmp_lm2").glob("*.vis.db"))
    (tmp_path / source.name).write_bytes(source.read_bytes())
    board = Board(tmp_path, "--path_prefix", "/proxy/here")
    try:
        page.goto(f"http://127.0.0.1:{board.port}/proxy/here/#twinprobe")
        frame = page.frame_locator("iframe")
        frame.locator(".tabs [data-tab=byHand]").click()
        frame.locator(".pane-target .head", has_text="language_model.forward").click()
        frame.locator(".pane-golden .head", has_text="decoder.forward").click(modifiers=["Control"])
        frame.locator(".wide-button.primary").click()
        frame.locator(".pairs li").first.wait_for()
        for path in ("index.html", "static/index.js", "static/style.css", "api/files", "api/open"):
            get(board, f"/proxy/here/data/plugin/twinprobe/{path}")
        page.complaints[:] = [text for text in page.complaints if "/data/plugin/twinprobe/" in text]
    finally:
        page.goto("about:blank")  # nothing is asked of a server that is about to go
        said = board.close()
    assert (tmp_path / f"{source.name}.matches.json").exists()
    assert "warning will become an error" not in said, said


def test_without_graphs_the_tab_is_not_active(tmp_path: Path) -> None:
    board = Board(tmp_path)
    try:
        assert json.loads(get(board, "/data/plugins_listing")[1])["twinprobe"]["enabled"] is False
    finally:
        board.close()
