"""What the page says in words about a node, against what stands in the rows below."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_tools import show, stands_on

from support import forward, tensor, write_dump
from twinprobe._align.mapping import MappingOptions
from twinprobe._graph.job import GraphRequest, run_request
from twinprobe._scale.engine import EngineOptions
from twinprobe._view.answers import RequestArguments, Workspace, node, nodes

NAME = "Torch.add.0.forward"


def draw(folder: Path, target: dict[str, Any], golden: dict[str, Any], form: str) -> Path:
    """A graph file of two recordings of one call."""
    for side, leaf in (("a", target), ("b", golden)):
        call = forward([tensor(), tensor(**leaf)], [tensor(mean=leaf["mean"])])
        write_dump(folder / side, {NAME: call}, parents={NAME: None}, stacks={})
    request = GraphRequest(target=folder / "a", golden=folder / "b", output=folder / "out", form=form,
                           timestamp="20260102030405", mapping=MappingOptions(align="auto"), same_ancestors=True,
                           engine=EngineOptions(workers=1))  # fmt: skip
    run_request(request, lambda _what, _done, _total: None)
    return folder / "out"


@pytest.mark.parametrize("form", ["db", "vis"])
def test_inputs_of_the_same_norm_that_differ_are_not_called_equal(
    page: Any, serve: Callable[..., str], tmp_path: Path, form: str
) -> None:
    same = {"high": 2.0, "low": -2.0, "norm": 3.0}
    place = draw(tmp_path, {**same, "mean": 0.5}, {**same, "mean": 0.25}, form)
    show(page, serve(place))
    stands_on(page, NAME)
    said = page.locator(".facts").inner_text()
    assert "input equal" not in said
    assert "input.1 differs" in said
    row = page.locator("figure.table", has_text="Inputs").locator("tbody tr", has_text="input.1")
    assert row.locator("td.differs").count() > 0


def test_no_node_of_any_file_has_an_input_that_differs_under_a_sentence_that_says_equal(results: Path) -> None:
    seen = 0
    for file in ("cmp_stat", "cmp_md5", "ranks_cmp"):
        workspace = Workspace(results / file)
        asked = RequestArguments({"kind": "matched", "limit": "1000"})
        with workspace.view(asked) as view:
            for item in nodes(workspace, view, asked)["nodes"]:
                found = node(workspace, view, RequestArguments({"name": item["name"]}))
                there = {tensor["name"]: tensor for tensor in found["golden"]["inputs"]}
                pairs = [(one, there.get(one["name"])) for one in found["target"]["inputs"]]
                keys = ("Max", "Min", "Mean", "Norm", "md5")
                differs = [a for a, b in pairs if b and any(a.get(key) != b.get(key) for key in keys)]
                seen += bool(differs)
                assert bool(found["facts"]["differs"]) >= bool(differs), item["name"]
    assert seen > 20


@pytest.mark.slow
def test_no_reason_says_that_all_inputs_agree_beside_an_input_that_differs(tmp_path: Path) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    import twinprobe

    for side in ("target", "golden"):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=48, n_head=4, vocab_size=211)).eval()
        if side == "target":
            model.transformer.h[1].mlp.act = torch.nn.ReLU()  # one call in the place of eight
        tokens = torch.randint(0, 211, (3, 20), generator=torch.Generator().manual_seed(0))
        with twinprobe.record(model, tmp_path / side, level="mix"):
            model(tokens, labels=tokens).loss.backward()
    sides = [next((tmp_path / side / "step0").iterdir()) for side in ("target", "golden")]
    request = GraphRequest(target=sides[0], golden=sides[1], output=tmp_path / "out", form="db",
                           timestamp="20260102030405", mapping=MappingOptions(align="auto"), same_ancestors=True,
                           engine=EngineOptions(workers=1))  # fmt: skip
    run_request(request, lambda _what, _done, _total: None)
    workspace, asked = Workspace(tmp_path / "out"), RequestArguments({"name": "Functional.relu.0.forward"})
    with workspace.view(asked) as view:
        said = node(workspace, view, asked)["facts"]  # it stands for eight calls: the one beside it has another input
    assert (said["inputs"], said["differs"], said["how"]) == (0, 0, "injected")
    rows = twinprobe.compare(tmp_path / "target", tmp_path / "golden").table.to_dicts()
    calls = {row["target"].rpartition(".output.")[0] for row in rows if "all inputs agree" in row["reason"]}
    differing = [row["target"] for row in rows if row["reason"] == "this input already differs"]
    assert calls
    assert len(differing) > 20
    assert [name for name in differing if name.rpartition(".input.")[0] in calls] == []
