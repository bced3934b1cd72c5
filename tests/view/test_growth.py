"""How the error grows, on the page: against noise, forward and backward apart, layer over layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_tools import becomes, current, show

from support import forward, tensor, write_dump
from twinprobe._align.mapping import MappingOptions
from twinprobe._graph.job import GraphRequest, run_request
from twinprobe._scale.engine import EngineOptions
from twinprobe._view.answers import RequestArguments, Workspace, counts, error_growth, nodes
from twinprobe._view.export import export_page
from twinprobe._view.overview import _leaving

LAYERS, ODD = 6, 4


@pytest.fixture(scope="session")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph of layers that are built alike, of which one is off by itself."""
    root = tmp_path_factory.mktemp("layers")
    for side in ("t", "g"):
        data: dict[str, Any] = {}
        carried = 1.0
        for layer in range(LAYERS):
            for part, kind in (("norm", "LayerNorm"), ("mlp", "Linear")):
                off = 0.5 if side == "t" and layer == ODD and part == "mlp" else 0.0
                given, carried = carried, (1.0 if part == "norm" else 2.0) + off
                name = f"Module.blocks.{layer}.{part}.{kind}.forward.0"
                data[name] = forward([tensor(norm=given)], [tensor(norm=carried)])
            carried = 1.0
        write_dump(root / side, data, parents=dict.fromkeys(data), stacks={})
    request = GraphRequest(target=root / "t", golden=root / "g", output=root / "out", form="db",
                           timestamp="20260102030405", mapping=MappingOptions(align="auto"), same_ancestors=True,
                           engine=EngineOptions(workers=1))  # fmt: skip
    run_request(request, lambda _what, _done, _total: None)
    return root / "out"


def test_layers_lie_over_each_other_and_the_odd_one_stands_out(drawn: Path) -> None:
    workspace, asked = Workspace(drawn), RequestArguments({})
    with workspace.view(asked) as view:
        found = error_growth(workspace, view, asked)["forward"]
        injected = nodes(workspace, view, RequestArguments({"kind": "suspicious", "injected": "1"}))
        assert counts(workspace, view, asked)["target"]["injected"] == injected["total"] > 0
    assert len(found["error"]) == 2 * LAYERS
    layers = found["layers"]
    assert (layers["stack"], layers["numbers"], layers["parts"]) == ("blocks", list(range(LAYERS)), ["norm", "mlp"])
    largest = max(range(LAYERS), key=lambda layer: layers["error"][layer][1])
    assert largest == layers["leaves"] == ODD
    assert f"Module.blocks.{ODD}.mlp.Linear.forward.0" in [node["name"] for node in injected["nodes"]]


@pytest.mark.parametrize("home", ["server", pytest.param("exported", marks=pytest.mark.slow)])
def test_the_page_draws_it_and_a_key_goes_to_the_node(
    page: Any, serve: Callable[..., str], drawn: Path, tmp_path: Path, home: str
) -> None:
    url = serve(drawn)
    if home == "exported":
        export_page(drawn, tmp_path / "page.html")
        url = (tmp_path / "page.html").as_uri()
    show(page, url)
    becomes(page, lambda: page.url, lambda now: "node=" in now)
    page.locator(".growth-button").click()
    page.wait_for_selector(".growth-canvas")
    captions = page.locator(".growth figcaption").all_inner_texts
    becomes(page, captions, lambda texts: texts == ["Forward", "Forward: one line per layer of blocks"])
    page.locator(".growth-canvas").nth(1).focus()
    hint = page.locator(".growth .heat-hint")
    # A plot has points once it has a size: ask for the first of them until there is one.
    becomes(page, lambda: page.keyboard.press("ArrowLeft") or hint.inner_text(), lambda text: "0.norm: 0" in text)
    page.keyboard.press("ArrowRight")
    becomes(page, hint.inner_text, lambda text: "0.mlp: 0" in text)
    page.keyboard.press("Enter")
    becomes(page, lambda: current(page), lambda name: name == "Module.blocks.0.mlp.Linear.forward.0")
    becomes(page, lambda: page.url, lambda now: "growth=1" in now)


@pytest.mark.parametrize(("errors", "times", "leaves"), [
    # The second half of layer 1 is off by itself; layers 2 and 3 inherit that, and noise explains it.
    ([[0.0, 0.0], [0.0, 1.0], [0.4, 0.4], [0.4, 0.4]], [[None, None], [None, 4e7], [0.6, 0.6], [0.7, 0.6]], 1),
    # The same with another weight: what that does to the output is expected.
    ([[0.0, 0.0], [0.0, 1.0], [0.4, 0.4], [0.4, 0.4]], [[None, None], [None, 0.6], [0.6, 0.6], [0.7, 0.6]], 1),
    ([[0.1, 0.1], [0.1, 3.0], [0.1, 0.1], [0.1, 0.2]], [[0.5, 0.5], [0.5, 0.9], [0.7, 0.5], [0.5, 0.5]], 1),
    ([[0.4, 0.4], [0.4, 0.5], [0.5, 0.6]], [[0.5, 0.5], [0.5, 0.6], [0.7, 0.5]], None),  # it began before all layers
    ([[0.0, None], [0.0, 0.0]], [[None, None], [None, None]], None),
])  # fmt: skip
def test_the_layer_that_leaves_the_pack_is_where_the_error_arose_not_the_one_that_inherits_it(
    errors: list[list[float | None]], times: list[list[float | None]], leaves: int | None
) -> None:
    orders = [[10 * layer + part for part in range(len(line))] for layer, line in enumerate(errors)]
    assert _leaving(errors, orders, times, injected=True) == leaves
