"""What other packages make of us and we of them: jax, Jupyter's kernel, Model Explorer.

They are too large for the environment of all tests: ``./test --all`` builds one of their own, .test-env/extras.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

import twinprobe

pytestmark = pytest.mark.slow
PROJECT = Path(__file__).resolve().parents[2]
EXTRAS = PROJECT / ".test-env" / "extras" / "bin"
DEMO = PROJECT / "examples" / "demo"


def run_there(program: str, *words: str) -> str:
    command = [str(EXTRAS / "python"), "-c", program, *words]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_arrays_of_jax_are_compared_with_numpys() -> None:
    program = """
import jax.numpy as jnp, numpy as np, twinprobe
values = np.linspace(-1, 1, 24, dtype=np.float32).reshape(4, 6)
for dtype in (jnp.float32, jnp.bfloat16, jnp.int32, jnp.float8_e4m3fn):
    array = jnp.asarray(values).astype(dtype)
    assert twinprobe.compare({"w": array}, {"w": array + 0}), dtype
    assert not twinprobe.compare({"w": array}, {"w": -array}), dtype
assert twinprobe.compare({"w": jnp.asarray(values)}, {"w": values})

class Foreign:  # all that is known of it is DLPack
    def __init__(self, array): self._array = array
    def __dlpack__(self, **given): return self._array.__dlpack__(**given)
    def __dlpack_device__(self): return self._array.__dlpack_device__()

assert twinprobe.compare({"w": Foreign(jnp.asarray(values))}, {"w": values})
result = twinprobe.compare({"w": Foreign(jnp.asarray(values) * 2)}, {"w": values})
assert not result and result.first is not None
print(result.first.sentence)
"""
    assert "2 x golden" in run_there(program)


def test_a_kernel_runs_the_example_notebook() -> None:
    program = """
import json, nbformat
from nbclient import NotebookClient
notebook = nbformat.read("examples/notebook.ipynb", 4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=1800, resources={"metadata": {"path": "examples"}}).execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(json.dumps([[one.get("data", {}) for one in cell.outputs] for cell in cells]))
"""
    cells = json.loads(run_there(program).splitlines()[-1])
    shown = [outputs[-1]["text/html"] for outputs in cells if "text/html" in outputs[-1]]
    assert len(cells) == 5
    assert len(shown) == 4  # all but the dictionary of metrics
    assert "Module.layers.1.post_norm.Norm.forward.0" in "".join(shown)


def test_a_long_comparison_shows_in_a_notebook_how_far_it_is() -> None:
    program = """
import json, nbformat
from nbclient import NotebookClient
source = '''import time
from twinprobe._notebook import Progress
with Progress() as progress:
    for done in range(25):
        time.sleep(0.1)
        progress(done, 25)
'''
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
seen = []
class Client(NotebookClient):
    def process_message(self, msg, cell, index):
        if msg["msg_type"] in ("display_data", "update_display_data"):
            seen.append(msg["content"]["data"]["text/plain"])
        return super().process_message(msg, cell, index)
Client(notebook, timeout=1800).execute()
print(json.dumps(seen))
"""
    seen = json.loads(run_there(program).splitlines()[-1])
    assert len(seen) > 3
    assert all(re.fullmatch(r"\d+% compared, \d+ s left", text) for text in seen[:-1])
    assert seen[-1] == ""  # gone at the end


def test_model_explorer_opens_the_graph_and_the_node_data(tmp_path: Path, chromium: Any) -> None:
    files = twinprobe.draw(DEMO / "target", DEMO / "golden", output_path=tmp_path, file_type="model_explorer")
    nodes = json.loads(files[0].read_text())["graphs"][0]["nodes"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    command = [str(EXTRAS / "model-explorer"), str(files[0]), "--no_open_in_browser", "--port", str(port)]
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(2400):
            try:
                with urlopen(f"http://localhost:{port}/check_health"):
                    break
            except OSError:
                assert server.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.25)
        page = chromium.new_page(viewport={"width": 1400, "height": 900})
        wanted = {"models": [{"url": str(files[0])}], "nodeData": [str(files[1])]}
        page.goto(f"http://localhost:{port}/?data={quote(json.dumps(wanted))}")
        page.get_by_text("NODE DATA PROVIDERS").wait_for()
        page.get_by_text("post_norm").first.wait_for()
        text = page.inner_text("body")
        assert f"run {len(nodes)} nodes" in text
        assert "model_explorer_node_data.json" in text
        assert re.search(r"post_norm\s+0\.9999", text)
        page.close()
    finally:
        server.terminate()
        server.wait()
