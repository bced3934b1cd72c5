"""twinprobe align: what it prints and writes, and what it refuses."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support import forward, tensor, write_dump
from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.alignment import read_alignment
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._cli import align
from twinprobe._runs.run import Run, open_run
from twinprobe.errors import NothingToCompare


def _command(*words: object) -> int:
    parser = argparse.ArgumentParser()
    align.add_arguments(parser)
    parser.set_defaults(prog="twinprobe")
    return align.run(parser.parse_args([str(word) for word in words]))


def test_it_tells_what_fits_by_which_rule_and_what_stays_alone(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = reference / "mindspore" / "dumps"
    assert _command(folder / "ms_mix_statistics", folder / "pt_mix_statistics", "-o", tmp_path) == 0
    told = capsys.readouterr().out
    assert "27 of 28 modules match 27 of 27" in told
    assert re.search(r"layers in order +16", told)
    assert "TransformerLanguageModel.forward.0: a level of its own" in told
    assert "the other run has no call of reshape" in told
    assert {path.name for path in tmp_path.iterdir()} == {
        "alignment.json", "layer_mapping.yaml", "cell_mapping.yaml", "api_mapping.yaml", "data_mapping.yaml",
        "alignment.html", "index.html",
    }  # fmt: skip
    assert len(read_alignment(tmp_path / "alignment.json").relations) > 50


def test_machines_get_one_json_object(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = reference / "graph" / "dumps"
    assert _command(folder / "struct_statistics", folder / "base_statistics", "-o", tmp_path, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["modules"] == {"target": 22, "golden": 23}
    assert told["aligned_modules"] == {"target": 22, "golden": 22}
    assert all(0 < one["confidence"] <= 1 for one in told["relations"])


def test_the_layer_mapping_says_what_it_leaves_out(recorded: Callable[..., Any], tmp_path: Path) -> None:
    made = recorded("llama / suite")
    assert _command(made.target.path, made.golden.path, "-o", tmp_path, "--quiet") == 0
    text = (tmp_path / "layer_mapping.yaml").read_text()
    assert "# " in text
    assert "query_key_value is model.layers.0.self_attn.q_proj + model.layers.0.self_attn.k_proj" in text
    rules = yaml.safe_load(text)
    assert rules["TransformerLanguageModel"]["encoder.layers"] == "layers"
    assert rules["ParallelAttention"] == {"dense": "o_proj"}
    pairs = build_matcher(MappingOptions(layer=tmp_path / "layer_mapping.yaml", align="names"))(
        made.target, made.golden
    )
    names = made.target.table["name"].to_list()
    mapped = {names[row] for row, other in zip(pairs.target, pairs.golden, strict=True) if row >= 0 <= other}
    assert (
        "Module.module.module.language_model.encoder.layers.3.mlp.dense_4h_to_h.RowParallelLinear.forward.0.output.0"
        in mapped
    )


def test_the_page_holds_both_trees_and_runs_nothing_foreign(reference: Path, tmp_path: Path) -> None:
    folder = reference / "mindspore" / "dumps"
    _command(folder / "ms_mix_statistics", folder / "pt_mix_statistics", "-o", tmp_path, "--quiet")
    page = (tmp_path / "alignment.html").read_text()
    assert "default-src 'none'" in page
    data = json.loads(re.search(r'id="data"[^>]*>(.*?)</script>', page, re.S)[1])
    assert [side["framework"] for side in data["sides"]] == ["mindspore", "pytorch"]
    assert "language_model (TransformerLanguageModel)" in data["sides"][0]["labels"]
    assert len(data["links"]) == len(align_runs(*_pair(folder)).relations)


def _pair(folder: Path) -> list[Run]:
    return [open_run(next((folder / f"{side}_mix_statistics").rglob("dump.json"))) for side in ("ms", "pt")]


def test_foreign_names_cannot_leave_their_place_in_the_page(tmp_path: Path) -> None:
    name = "Module.</script><script>alert(1).Linear.forward.0"
    data = {name: {**forward([tensor()], [tensor()]), "parameters": {"weight": tensor(shape=[3, 3])}}}
    run = write_dump(tmp_path / "run", data, parents={name: None})
    _command(run, run, "-o", tmp_path / "out", "--quiet")
    assert "<script>alert" not in (tmp_path / "out" / "alignment.html").read_text()


def test_models_with_nothing_in_common_are_refused(recorded: Callable[..., Any], tmp_path: Path) -> None:
    text, image = recorded("llama / release", "one layer missing"), recorded("resnet")
    with pytest.raises(NothingToCompare, match=r"0 of \d+ modules could be aligned"):
        _command(text.target.path, image.golden.path, "-o", tmp_path)
    assert not list(tmp_path.iterdir())


def test_api_calls_alone_are_aligned_in_their_order(recorded: Callable[..., Any], tmp_path: Path, capsys: Any) -> None:
    made = recorded("gpt2 / stages", level="L1")
    assert _command(made.target.path, made.golden.path, "-o", tmp_path) == 0
    told = capsys.readouterr()
    assert "there is no construct.json with the hierarchy" in told.err
    assert "API calls match; no modules were recorded" in told.out
    relations = read_alignment(tmp_path / "alignment.json").relations
    assert len(relations) > 40
    linears = {name for one in relations for name in one.target if name.startswith("Functional.linear.")}
    assert len(linears) == 17  # four in each of four layers, and the head


@pytest.mark.parametrize("dialect", ["layer", "cell", "api", "data"])
def test_every_mapping_file_gives_the_pairs_back_and_takes_an_edit(
    recorded: Callable[..., Any], tmp_path: Path, dialect: str
) -> None:
    made = recorded("llama / release")
    assert _command(made.target.path, made.golden.path, "-o", tmp_path) == 0
    path = tmp_path / f"{dialect}_mapping.yaml"
    found = _paired(made, align="auto")
    given = _paired(made, align="none", **{dialect: path})
    row, other = "Module.layers.1.attention.wo.Linear.forward.0.output.0", "Module.model.layers.1.self_attn.{}.Linear"
    if dialect == "api":
        row = "Torch.rsqrt.1.forward.output.0"
    assert given[row] == found[row]
    modules = {one: two for one, two in given.items() if one.startswith("Module.")}
    assert modules.items() <= found.items()
    if dialect == "data":
        assert given == found
    text = path.read_text()
    wrong = {
        "layer": ("wo: o_proj", "wo: v_proj"),
        "cell": ("layers.1.attention.wo.Linear: model.layers.1.self_attn.o_proj.Linear",
                 "layers.1.attention.wo.Linear: model.layers.1.self_attn.v_proj.Linear"),
        "api": ("pt_api: Torch.rsqrt", "pt_api: Tensor.pow"),
        "data": (f"{row}: {other.format('o_proj')}", f"{row}: {other.format('v_proj')}"),
    }[dialect]  # fmt: skip
    assert wrong[0] in text
    path.write_text(text.replace(*wrong))
    assert _paired(made, align="none", **{dialect: path}).get(row) != found[row]


def _paired(made: Any, **options: Any) -> dict[str, str]:
    pairs = build_matcher(MappingOptions(**options))(made.target, made.golden)
    names = made.target.table["name"].to_list(), made.golden.table["name"].to_list()
    both = zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)
    return {names[0][row]: names[1][other] for row, other in both if row >= 0 and other >= 0}
