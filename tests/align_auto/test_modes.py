"""When runs are aligned by themselves, and what wins over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._report.alignment import write_alignment
from twinprobe._runs.run import Run
from twinprobe.errors import BadInput

LAYER = "Cell.module.module.language_model.encoder.layers.{}.mlp.ParallelMLP.forward.0.output.0"
PARTNER = "Module.model.module.decoder.layers.{}.mlp.MLP.forward.0.output.0"


def _named(target: Run, golden: Run, **options: Any) -> dict[str, str]:
    pairs = build_matcher(MappingOptions(**options))(target, golden)
    mine, theirs = target.table["name"].to_list(), golden.table["name"].to_list()
    both = zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)
    return {mine[row]: theirs[other] for row, other in both if row >= 0 and other >= 0}


@pytest.mark.parametrize(("align", "least", "most"), [("auto", 340, 400), ("names", 1, 10), ("none", 0, 0)])
def test_the_option_decides(
    mindspore_pair: tuple[Run, Run], align: Literal["auto", "names", "none"], least: int, most: int
) -> None:
    assert least <= len(_named(*mindspore_pair, align=align)) <= most


def test_bare_mappings_mean_what_they_say(mindspore_pair: tuple[Run, Run]) -> None:
    assert LAYER.format(0) not in _named(*mindspore_pair, cell=True)
    assert LAYER.format(0) not in _named(*mindspore_pair, api=True)


def test_a_mapping_file_wins_where_it_speaks_and_the_rest_is_filled(
    mindspore_pair: tuple[Run, Run], tmp_path: Path
) -> None:
    file = tmp_path / "data.yaml"
    file.write_text(f"{LAYER.format(0)}: {PARTNER.format(1)}\n")
    pairs = _named(*mindspore_pair, data=file)
    assert pairs[LAYER.format(0)] == PARTNER.format(1)
    assert pairs[LAYER.format(1).replace("output", "input")] == PARTNER.format(1).replace("output", "input")
    assert len(pairs) > 280


def test_layers_that_a_user_swaps_stay_swapped_inside_too(mindspore_pair: tuple[Run, Run], tmp_path: Path) -> None:
    """Only the two layers are named; what lies in them follows, although that crosses."""
    file = tmp_path / "cells.yaml"
    cell, module = "module.module.language_model.encoder.layers.{}", "model.module.decoder.layers.{}"
    lines = [
        f"{cell.format(mine)}.ParallelTransformerLayer: {module.format(theirs)}.TransformerLayer"
        for mine, theirs in ((0, 1), (1, 0))
    ]
    file.write_text("\n".join(lines) + "\n")
    pairs = _named(*mindspore_pair, cell=file)
    assert pairs[LAYER.format(0)] == PARTNER.format(1)
    assert pairs[LAYER.format(1)] == PARTNER.format(0)


def test_an_edited_alignment_is_obeyed(mindspore_pair: tuple[Run, Run], tmp_path: Path) -> None:
    target, golden = mindspore_pair
    write_alignment(align_runs(target, golden), target, golden, tmp_path)
    path = tmp_path / "alignment.json"
    document = msgspec.json.decode(path.read_bytes())
    mlp = LAYER.format(0).removesuffix(".output.0")
    document["relations"] = [one for one in document["relations"] if one["target"] != [mlp]]
    path.write_bytes(msgspec.json.encode(document))
    assert LAYER.format(0) not in _named(target, golden, alignment=path)
    document["relations"] = [{"target": mlp, "golden": PARTNER.format(1).removesuffix(".output.0")}]
    path.write_bytes(msgspec.json.encode(document))
    pairs = _named(target, golden, alignment=path, align="none")
    assert pairs[LAYER.format(0)] == PARTNER.format(1)
    assert set(pairs) == {name for name in pairs if "layers.0.mlp.ParallelMLP" in name}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "is not an alignment"),
        ('{"relations": 3}', "is not an alignment"),
        ('{"relations": [{"target": "a", "golden": []}]}', "calls on both sides"),
        ('{"relations": [{"target": "a", "golden": "b", "kind": "cousins"}]}', "kind 'cousins' is not known"),
        ('{"relations": [{"target": "a", "golden": "b"}, {"target": "a", "golden": "c"}]}', "relations[0] already"),
        ('{"relations": [], "format": "other"}', "its format is 'other'"),
    ],
)
def test_a_bad_alignment_file_is_told_apart(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "alignment.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=told.replace("[", r"\[").replace("]", r"\]")):
        build_matcher(MappingOptions(alignment=path))


def test_names_that_were_never_recorded_are_refused_with_a_guess(
    mindspore_pair: tuple[Run, Run], tmp_path: Path
) -> None:
    path = tmp_path / "alignment.json"
    mlp = LAYER.format(0).removesuffix(".output.0")
    path.write_bytes(msgspec.json.encode({"relations": [{"target": mlp.replace("MLP", "MPL"), "golden": "Module.x"}]}))
    with pytest.raises(BadInput, match="did you mean") as caught:
        build_matcher(MappingOptions(alignment=path))(*mindspore_pair)
    assert str(path) in str(caught.value)
