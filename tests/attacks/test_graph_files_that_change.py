"""A graph file that somebody shortens while it is read: a message or a whole graph, never a dead process."""

from __future__ import annotations

from pathlib import Path

import pytest

from warm_python import run_warm

HERE = Path(__file__).resolve().parent

# Files above 1 GiB are read otherwise; here a small one is, so that the same lines run.
CHILD = """
import os, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from twinprobe.errors import BadInput
from twinprobe._graph.read import json as read_json
from twinprobe._graph.read.db import SOURCES, GraphFile
from worst_files import _vis
path, when = Path(sys.argv[3]), int(sys.argv[4])
path.write_bytes(_vis())
read_json._LARGEST_READ, read_json._BLOCK = 1 << 16, 1 << 20
calls = 0
def shorten(done):
    global calls
    calls += 1
    if calls == when:
        os.truncate(path, 5000)
try:
    index = read_json.write_index(path, shorten)
except BadInput as error:
    print(error)
else:
    with GraphFile(index) as file:
        print(len(list(file.graph(0, 0).outline(next(iter(SOURCES))))), "nodes")
"""


@pytest.mark.parametrize(
    ("when", "said"),
    [(1, "became shorter while it was read"), (6, "20001 nodes"), (0, "20001 nodes")],
    ids=["while it is copied", "after that", "never"],
)
def test_a_process_survives_a_large_graph_file_that_shrinks(
    when: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = run_warm(CHILD, str(HERE), str(HERE.parent / "fuzz"), str(tmp_path / "a.vis"), str(when))
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    left = [one.name for one in (tmp_path / "cache").rglob("*") if one.is_file()]
    assert len(left) == ("nodes" in said), left  # the copy is gone, the index is there
