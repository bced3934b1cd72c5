"""twinprobe view as a command: it prints where it serves, serves, and ends on Ctrl+C; or it writes a page."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from twinprobe._cli import main, view
from twinprobe._view.app import Server, make
from twinprobe.errors import BadInput

PROGRAM = """
import argparse, sys
from twinprobe._cli import view
parser = argparse.ArgumentParser()
view.add_arguments(parser)
sys.exit(view.run(parser.parse_args()))
"""


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *words], stdout=subprocess.PIPE, text=True)


def test_it_prints_its_address_serves_the_folder_and_ends_on_an_interrupt(results: Path) -> None:
    process = start(str(results), "--no-browser", "--port", "0")
    assert process.stdout
    found = re.search(r"at (http://127\.0\.0\.1:\d+/) ", process.stdout.readline())
    assert found
    with urllib.request.urlopen(found[1] + "api/files") as reply:
        assert len(json.load(reply)["files"]) == 5
    process.send_signal(signal.SIGINT)
    assert process.wait(600) == 0


def test_without_a_port_two_servers_find_a_free_one_each(results: Path) -> None:
    servers = [start(str(results), "--no-browser") for _ in range(2)]
    try:
        lines = [server.stdout.readline() for server in servers if server.stdout]
        assert len({re.search(r":(\d+)/", line)[1] for line in lines}) == 2  # type: ignore[index]
    finally:
        for server in servers:
            server.send_signal(signal.SIGINT)
            server.wait(600)


def test_servers_that_look_for_a_port_at_the_same_moment_do_not_get_in_each_others_way(results: Path) -> None:
    together = threading.Barrier(6)

    def serve(_: int) -> Server:
        together.wait()
        return make(results, host="127.0.0.1", port=None)

    for _ in range(5):
        with ThreadPoolExecutor(6) as pool:
            servers = list(pool.map(serve, range(6)))
        assert len({server.url for server in servers}) == 6
        for server in servers:
            server.wsgi.server_close()


def test_an_address_for_others_comes_with_a_token(results: Path) -> None:
    process = start(str(results), "--no-browser", "--port", "0", "--host", "0.0.0.0")
    assert process.stdout
    assert re.search(r"\?token=[\w-]{20,}", process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.wait(600)


def test_the_hint_for_a_folder_without_graphs_is_a_command_that_makes_one(reference: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        main_view(tmp_path)
    words = re.search(r"twinprobe (.*)", refused.value.hint or "")
    assert words
    dump = str(next((reference / "msprobe" / "dumps").rglob("construct.json")).parent)
    values = iter([dump, str(tmp_path)])
    command = [next(values) if word.isupper() or word == "..." else word for word in words[1].split()]
    assert main(command) == 0
    assert len(list(tmp_path.glob("*.vis.db"))) == 1


def main_view(place: Path) -> int:
    return view.run(Namespace(place=place, export=None))


def test_export_writes_a_page_and_says_what_is_in_it(results: Path, tmp_path: Path) -> None:
    process = start(str(results / "cmp_stat"), "--export", str(tmp_path / "page.html"))
    said = process.communicate(timeout=600)[0]
    assert process.returncode == 0
    assert "314 nodes" in said
    assert (tmp_path / "page.html").stat().st_size > 100_000
