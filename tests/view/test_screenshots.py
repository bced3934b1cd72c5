"""Every page as a picture, wide and narrow, light and dark, to be looked at.

TWINPROBE_SCREENSHOTS names a folder to keep them in. bench/pictures.py makes the images of the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_tools import becomes

from twinprobe._cli import main
from twinprobe._view.export import export_page

WIDTHS = {1440: 900, 390: 844}
EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from tiny_transformer import VOCABULARY, TinyTransformer
torch.manual_seed(0)
model = TinyTransformer()
optimizer = torch.optim.SGD(model.parameters(), lr=float(sys.argv[2]))
tokens = torch.randint(0, VOCABULARY, (2, 12))
for _ in range(3):
    torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real recordings with tensors, and every page that can be made of them."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        import torch
        from make_demo import make_paths_neutral
        from tiny_transformer import VOCABULARY, TinyTransformer
        from torch.nn import functional
    finally:
        sys.path.pop(0)
    from twinprobe import auto_diff
    from twinprobe.torch import record

    root = tmp_path_factory.mktemp("pages")
    for side in ("golden", "target"):
        torch.manual_seed(0)
        model = TinyTransformer(faulty=side == "target")
        tokens = torch.randint(0, VOCABULARY, (2, 12))
        with record(model, root / f"{side}_run", level="mix", task="tensor"):
            logits = model(tokens[:, :-1])
            functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        (run,) = (root / f"{side}_run" / "step0").iterdir()
        make_paths_neutral(run / "stack.json")
        shutil.copytree(run, root / side)
    for step in range(3):
        for rank in range(4):
            faulty = step == 2 or (step == 1 and rank == 3)
            shutil.copytree(root / ("target" if faulty else "golden"), root / f"ranks_t/step{step}/rank{rank}")
            shutil.copytree(root / "golden", root / f"ranks_g/step{step}/rank{rank}")
    compare = ["compare", "--format", "html", "--quiet"]
    sides = ["-tp", str(root / "target" / "dump.json"), "-gp", str(root / "golden" / "dump.json")]
    assert main([*compare, *sides, "-o", str(root / "report")]) == 0
    assert main([*compare, "-tp", str(root / "ranks_t"), "-gp", str(root / "ranks_g"), "-o", str(root / "map")]) == 0
    pair = {"npu_path": str(root / "target"), "bench_path": str(root / "golden"), "is_print_compare_log": False}
    (root / "pair.json").write_text(json.dumps(pair))
    assert main(["graph", "-i", str(root / "pair.json"), "-o", str(root / "graph")]) == 0
    export_page(root / "graph", root / "exported.html")
    assert main(["align", str(root / "target"), str(root / "golden"), "-o", str(root / "align")]) == 0
    for side in ("golden", "target"):
        torch.manual_seed(0)
        model = TinyTransformer()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if side == "golden" else 0.2)
        with record(model, root / f"{side}_watched", level="watch"):
            for _ in range(6):
                functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
    watched = [str(root / f"{side}_watched") for side in ("target", "golden")]
    assert main([*compare, *watched, "-o", str(root / "steps")]) == 0
    (root / "program.py").write_text(PROGRAM)
    programs = [f"{sys.executable} {root / 'program.py'} {EXAMPLES} {rate}" for rate in (0.2, 0.1)]
    assert main(["find", *programs, "-o", str(root / "find"), "--quiet"]) == 0
    assert main([*compare, *sides, "-o", str(root / "tokens"), "--tokens", "on"]) == 0
    for side, gaps in (("target", (-0.5, -0.6, -1.5)), ("golden", (-0.5, -0.5, -0.5))):
        rows = [{"input_ids": [3, 4, 5], "logprobs": [-0.1, -2.0, gap], "step": step} for step, gap in enumerate(gaps)]
        (root / f"{side}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    scored = [str(root / f"{side}.jsonl") for side in ("target", "golden")]
    assert main(["llm", "logprobs", *scored, "-o", str(root / "logprobs")]) == 0
    auto_diff(TinyTransformer(), TinyTransformer(faulty=True), tokens).save(root / "auto", formats=["html"])
    return root


def address(made: Path, page: str, serve: Callable[..., str]) -> str:
    """Where a page is found."""
    states = {"view": "", "view_growth": "#growth=1", "view_inside": "#tall=560"}
    if page in states:
        return serve(made / "graph") + states[page]
    (report,) = (made / "report").glob("compare_result*.html")
    (overview,) = (made / "map").glob("compare_summary*.html")
    files = {"report": report, "report_row": report, "map": overview, "index": made / "map" / "index.html",
             "exported": made / "exported.html", "index_one": made / "report" / "index.html",
             "align": made / "align" / "alignment.html", "auto_diff": made / "auto" / "auto_diff.html",
             "index_find": made / "find" / "index.html", "find": made / "find" / "find.html",
             "steps": next((made / "steps").glob("compare_steps*.html")),
             "tokens": next((made / "tokens").glob("compare_tokens*.html")),
             "logprobs": next((made / "logprobs").glob("logprobs_*.html"))}  # fmt: skip
    return files[page].as_uri()


@pytest.mark.slow
@pytest.mark.parametrize("page_name", ["view", "view_growth", "view_inside", "exported", "report", "report_row", "map",
                                       "index", "index_one", "index_find", "steps", "align", "auto_diff", "find",
                                       "tokens", "logprobs"])  # fmt: skip
def test_every_page_fits_every_screen(
    made: Path,
    chromium: Any,
    axe: Callable[[Any], list[str]],
    serve: Callable[..., str],
    tmp_path: Path,
    page_name: str,
) -> None:
    folder = Path(os.environ.get("TWINPROBE_SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    url = address(made, page_name, serve)
    for width, height in WIDTHS.items():
        for scheme in ("light", "dark"):
            page = chromium.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, locale="en-US")
            page.goto(url)
            _settle(page, page_name)
            becomes(page, lambda page=page: page.evaluate("document.documentElement.scrollWidth"),
                    lambda wide, width=width: wide == width)  # fmt: skip
            assert axe(page) == [], (page_name, width, scheme)
            file = folder / f"{page_name}_{width}_{scheme}.png"
            page.screenshot(path=str(file), full_page=width < 500)
            page.close()
            assert struct.unpack(">I", file.read_bytes()[16:20])[0] == width
            assert file.stat().st_size > 4_000  # something is on it


def _settle(page: Any, page_name: str) -> None:
    if page_name.startswith("view") or page_name == "exported":
        page.wait_for_selector(".banner.found")
        page.wait_for_selector(".tabs .count")
        page.wait_for_selector(".details-body table")
    if page_name == "view_growth":
        page.wait_for_selector(".growth-canvas")
    if page_name == "view_inside":
        page.locator(".inside canvas").first.scroll_into_view_if_needed()
    if page_name.startswith("report"):
        page.wait_for_selector("html[data-ready]", state="attached")
    if page_name == "report_row":
        page.locator("#first-show").click()
        page.wait_for_selector(".inside canvas")


@pytest.mark.slow
@pytest.mark.parametrize(("page_name", "said"), [
    ("index_one", "报告"), ("steps", "仅显示有差异的"), ("align", "一对一"),
    ("auto_diff", "未对齐"), ("map", "结论"), ("report", "相对误差"), ("find", "逐 step 曲线"), ("tokens", "全部词元"),
    ("logprobs", "差异随 step 的变化"), ("index_find", "文件夹"),
])  # fmt: skip
def test_pages_speak_chinese(made: Path, chromium: Any, serve: Callable[..., str], page_name: str, said: str) -> None:
    page = chromium.new_page(locale="zh-CN")
    page.goto(address(made, page_name, serve))
    _settle(page, page_name)
    becomes(page, page.locator("body").inner_text, lambda text: said in text)
    assert page.evaluate("document.documentElement.lang") == "zh-CN"
    page.close()
