"""One page for everything: opened from the disk, without a server and without the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from evil_files import EVIL, evil_file
from graph_files import flat, node, write_pair
from page_tools import becomes, stands_on
from reference_files import FILES

from support import slow
from twinprobe._report.reports import SHARED
from twinprobe._view.app import STATIC
from twinprobe._view.export import bundle, export_page

DIVERGING = [file for file, (_, _, first) in FILES.items() if first]  # the first is a .vis.db, the last a .vis


def open_page(page: Any, path: Path) -> list[str]:
    asked: list[str] = []
    page.on(
        "request", lambda request: asked.append(request.url) if not request.url.startswith(("file:", "blob:")) else None
    )
    page.goto(path.as_uri())
    page.wait_for_selector(".pane-target .box .name", state="attached")
    return asked


@pytest.mark.parametrize("file", [DIVERGING[0], *slow(*DIVERGING[1:-1]), DIVERGING[-1]])
def test_the_exported_page_opens_on_the_first_divergence_and_asks_nobody(
    page: Any, reference: Path, tmp_path: Path, file: str
) -> None:
    folder = (reference / "graph" / file).parent
    done = export_page(folder, tmp_path / "page.html")
    assert done.left_out == 0
    asked = open_page(page, tmp_path / "page.html")
    page.wait_for_selector(".details .table")
    stands_on(page, FILES[file][2], "target", "golden")
    page.keyboard.press("n")
    page.wait_for_selector(".steps:has-text('of')")
    page.locator(".search-input").fill("linear")
    page.wait_for_selector(".list-row:has-text('linear')")
    assert asked == []


def test_it_shows_the_same_as_the_server(page: Any, serve: Any, results: Path, tmp_path: Path) -> None:
    def read(page: Any) -> dict[str, Any]:
        return {
            "said": page.locator(".banner .said").inner_text(),
            "boxes": sorted(page.locator(".box > .head").all_inner_texts()),
            "list": page.locator(".list-row").all_inner_texts(),
            "details": page.locator(".details").inner_text(),
            "counts": page.locator(".chips").first.inner_text(),
        }

    export_page(results / "cmp_stat", tmp_path / "page.html")
    served = page.context.new_page()
    served.goto(serve(results / "cmp_stat"))
    open_page(page, tmp_path / "page.html")
    for one in (served, page):
        for part in (".details .stack li", ".tabs .count", ".list-row:nth-child(4)", ".pane-golden .box.current"):
            one.wait_for_selector(part, state="attached")
    becomes(page, lambda: (read(page), read(served)), lambda both: both[0] == both[1])


def test_names_full_of_markup_stay_text_in_the_exported_page(page: Any, tmp_path: Path) -> None:
    export_page(evil_file(tmp_path / "compare_1.vis"), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert text.count("<script") == 2
    assert not any(name in text for name in EVIL[:3])
    open_page(page, tmp_path / "page.html")
    page.wait_for_selector(".banner.found")
    assert page.evaluate("() => document.querySelectorAll('img, iframe, svg[onload]').length") == 0


def test_of_a_large_graph_the_neighbourhood_of_findings_is_kept(page: Any, tmp_path: Path) -> None:
    layers = [f"Module.layers.{n}.Block.forward.0" for n in range(60)]
    nodes = flat(layers)
    for number, layer in enumerate(layers):
        calls = [f"Torch.add.{number * 100 + n}.forward" for n in range(100)]
        nodes[layer] = node(layer, "DefaultModel", calls)
        nodes |= {call: node(call, layer) for call in calls}
    nodes["Torch.add.4242.forward"]["data"]["precision_index"] = 1
    write_pair(tmp_path / "compare_1.vis", nodes, nodes)
    done = export_page(tmp_path, tmp_path / "page.html")
    assert done.nodes < 400 < done.left_out
    assert done.size < 400_000
    open_page(page, tmp_path / "page.html")
    page.wait_for_selector(".details .table")
    stands_on(page, "Torch.add.4242.forward", "target", "golden")
    page.wait_for_selector(".kids:has-text('(+')")


def test_all_ranks_are_in_the_page(page: Any, results: Path, tmp_path: Path) -> None:
    export_page(results / "ranks_cmp", tmp_path / "page.html", rank=1)
    open_page(page, tmp_path / "page.html")
    rank = page.get_by_label("Rank").first
    becomes(page, rank.input_value, lambda value: value == "1")
    rank.select_option("0")
    page.wait_for_selector(".banner.found")
    stands_on(page, "Functional.gelu.1.backward")


def test_modules_are_inlined_in_dependency_order_and_none_is_missing() -> None:
    script = bundle((STATIC, SHARED), "start.js")
    order = re.findall(r'^modules\["([\w.]+)"\] = ', script, re.MULTILINE)
    assert sorted(order) == sorted(path.name for folder in (STATIC, SHARED) for path in folder.glob("*.js"))
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)


def test_modules_that_import_each_other_are_refused(tmp_path: Path) -> None:
    for one, other in (("a", "b"), ("b", "a")):
        (tmp_path / f"{one}.js").write_text(f'import {{ {other} }} from "./{other}.js";\nexport const {one} = 1;\n')
    with pytest.raises(ValueError, match=r"a.js -> b.js -> a.js"):
        bundle((tmp_path,), "a.js")
