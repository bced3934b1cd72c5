"""The page at 100,000 nodes a side: first picture, opening 400 children, frames and scripts of a scroll, memory.

    python bench/view.py [--nodes 100000] [--keep FOLDER] [--beside FOLDER]

``--beside`` installs tb-graph-ascend into an environment in that folder and measures it on the same file.
Needs playwright and a Chromium (named by the variable CHROMIUM, by default /usr/bin/chromium).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from make_graph import write_graph

SERVER = """
import sys
from pathlib import Path
from twinprobe._view.app import make
server = make(Path(sys.argv[1]), port=0)
print(server.url, flush=True)
server.run()
"""
OPEN = """async () => {
  const box = [...document.querySelectorAll('.pane-target .box')].find((b) => b.textContent.includes('Wide'));
  const calls = (side) => [...document.querySelectorAll(`.pane-${side} .box`)].filter((b) => b.textContent.includes('Torch.mul'));
  const start = performance.now();
  box.querySelector('.twist').click();
  while (calls('target').length < 5 || calls('golden').length < 5) await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""  # noqa: E501
FRAMES = 180
TB_GRAPH_ASCEND = "8.3.2"
SCROLL = """async () => {
  const pane = document.querySelector('.pane-target .scroller');
  const gaps = [];
  await new Promise((done) => {
    let last = performance.now(), frames = 0;
    const step = (now) => {
      gaps.push(now - last); last = now; pane.scrollTop += 240; frames += 1;
      frames < 180 ? requestAnimationFrame(step) : done();
    };
    requestAnimationFrame(step);
  });
  gaps.sort((a, b) => a - b);
  const at = (share) => gaps[Math.floor(gaps.length * share)];
  return { median: at(0.5), p95: at(0.95), worst: gaps.at(-1), boxes: document.querySelectorAll('.box').length };
}"""


def measure(folder: Path) -> dict[str, Any]:
    """Start a server on a folder and use the page in Chromium."""
    from playwright.sync_api import sync_playwright

    command = [sys.executable, "-c", SERVER, str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout
    url = server.stdout.readline().strip()
    try:
        with sync_playwright() as tool:
            path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
            browser = tool.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1600, "height": 950})
            times = _first_visit(page, url)
            page.goto("about:blank")
            page.goto(url + "#node=DefaultModel", wait_until="commit")
            page.wait_for_selector(".details .table, .details .quiet", state="attached")
            page.wait_for_selector(".tabs .count", state="attached", timeout=60_000)
            times["open 400 children ms"] = round(page.evaluate(OPEN))
            client = page.context.new_cdp_session(page)
            client.send("Performance.enable")
            before = _script_seconds(client)
            times["scroll frame ms"] = {key: round(value, 1) for key, value in page.evaluate(SCROLL).items()}
            times["scripts a frame ms"] = round((_script_seconds(client) - before) * 1000 / FRAMES, 2)
            browser.close()
        status = Path(f"/proc/{server.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return times | {"server peak MB": round(int(peak.split()[1]) / 1024)}
    finally:
        server.terminate()
        server.wait()


def measure_tb_graph_ascend(environment: Path, folder: Path) -> dict[str, Any]:
    """The same with tb-graph-ascend inside TensorBoard: its first picture is the root alone."""
    from playwright.sync_api import sync_playwright

    from compat.viewer_environment import install_viewer
    from compat.viewer_server import ViewerServer

    with ViewerServer(install_viewer(environment, TB_GRAPH_ASCEND), folder) as server, sync_playwright() as tool:
        path = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = tool.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1600, "height": 950})
        page.set_default_timeout(120_000)
        frame = page.frame_locator("iframe")

        start = time.perf_counter()
        page.goto(server.page, wait_until="commit")
        frame.locator("text", has_text="DefaultModel").first.wait_for(state="visible")
        times: dict[str, Any] = {"first picture s": round(time.perf_counter() - start, 2)}
        label = frame.locator("text", has_text="DefaultModel").first
        box, last = label.bounding_box(), None
        while box is None or box != last:  # the picture moves for a while, and the label itself takes no clicks
            page.wait_for_timeout(500)
            last, box = box, label.bounding_box()
        start = time.perf_counter()
        page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        frame.locator("text", has_text="Block.forward").first.wait_for(state="visible")
        times["open the root s"] = round(time.perf_counter() - start, 2)
        browser.close()
        return times | {"server peak MB": server.peak_mb}


def _script_seconds(client: Any) -> float:
    found = {entry["name"]: entry["value"] for entry in client.send("Performance.getMetrics")["metrics"]}
    return float(found["ScriptDuration"])


def _first_visit(page: Any, url: str) -> dict[str, Any]:
    page.goto("about:blank")
    start = time.perf_counter()
    times = {}
    page.goto(url, wait_until="commit")
    for name, selector in (
        ("first picture s", ".pane-target .box .name"),
        ("first divergence s", ".pane-target .box.current:not(.open)"),
        ("lists and strip s", ".tabs .count"),
    ):
        page.wait_for_selector(selector, state="attached", timeout=60_000)
        times[name] = round(time.perf_counter() - start, 2)
    return times


def main(argv: Sequence[str] | None = None) -> None:
    """Make the files, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--keep", type=Path, help="folder for the files, kept for another run")
    parser.add_argument("--beside", type=Path, help="folder for an environment with tb-graph-ascend")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        base = args.keep or Path(temporary)
        for name, ours in (("ours", True), ("msprobe", False)):
            file = base / name / f"compare_{args.nodes}.vis.db"
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                write_graph(file, args.nodes, ours=ours)
            print(name, f"{file.stat().st_size / 1e6:.0f} MB", json.dumps(measure(file.parent)))
            if args.beside:
                print(name, "in tb-graph-ascend", json.dumps(measure_tb_graph_ascend(args.beside, file.parent)))


if __name__ == "__main__":
    main()
