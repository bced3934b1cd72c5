"""The reference pair, 28 MindSpore cells against 27 PyTorch modules: complete, and nothing wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models.reference_truth import REFERENCE_PAIRS
from models.score import score
from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.auto.alignment import read_alignment
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.mapping.layer_tree import read_layer_file
from twinprobe._align.matcher import build_matcher
from twinprobe._report.alignment import write_alignment
from twinprobe._runs.run import Run, open_run

# Golden rows that nothing in the other run corresponds to: MindSpore skips dropout's function, and PyTorch records for
# the backward of composite functions what its last autograd node saw.
WITHOUT_COUNTERPART = re.compile(
    r"Functional\.dropout\.0\.|Functional\.(linear|layer_norm|embedding|cross_entropy)\.\d+\.backward\.output|"
    r"Torch\.matmul\.\d+\.backward\.output"
)


@pytest.mark.parametrize(
    ("name", "target", "golden", "truth"), REFERENCE_PAIRS, ids=[pair[0] for pair in REFERENCE_PAIRS]
)
def test_every_module_finds_its_partner_and_none_a_wrong_one(
    reference: Path, name: str, target: str, golden: str, truth: set[tuple[str, str]]
) -> None:
    runs = [open_run(next((reference / where).rglob("dump.json"))) for where in (target, golden)]
    found = score(align_runs(*runs), *runs, truth)
    assert not found.wrong
    assert not found.missed
    assert found.right >= 22


def test_the_extra_level_stays_alone_and_says_why(mindspore_pair: tuple[Run, Run]) -> None:
    alignment = align_runs(*mindspore_pair)
    alone = [one for one in alignment.target_unmatched if one.name.startswith("Cell.")]
    assert [one.name for one in alone] == ["Cell.module.module.language_model.TransformerLanguageModel.forward.0"]
    assert "level of its own" in alone[0].why
    assert alignment.modules == (28, 27)
    assert alignment.matched_modules == (27, 27)


def test_tensor_rows_follow_their_calls(mindspore_pair: tuple[Run, Run]) -> None:
    target, golden = mindspore_pair
    pairs = build_matcher(MappingOptions())(target, golden)
    names, shapes = golden.table["name"].to_list(), golden.table["shape"].to_list()
    matched = set(pairs.golden[pairs.target >= 0].tolist())
    tensors = [row for row, shape in enumerate(shapes) if shape not in (None, "[]")]
    left = [names[row] for row in tensors if row not in matched and not WITHOUT_COUNTERPART.match(names[row])]
    assert left == []
    assert int(((pairs.target >= 0) & (pairs.golden >= 0)).sum()) >= 340  # 5 by names, 214 with a good mapping file


def test_the_written_layer_mapping_is_the_one_that_an_expert_wrote(
    reference: Path, mindspore_pair: tuple[Run, Run], tmp_path: Path
) -> None:
    target, golden = mindspore_pair
    write_alignment(align_runs(target, golden), target, golden, tmp_path)
    mine = read_layer_file(tmp_path / "layer_mapping.yaml")
    theirs = read_layer_file(reference / "mindspore" / "mapping" / "lm_good.yaml")
    assert _rules(mine) == _rules(theirs)


def _rules(file) -> set[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    return {(rule.cls, tuple(rule.left), tuple(rule.right)) for rule in file.rules}


def test_the_written_alignment_pairs_the_same_rows(mindspore_pair: tuple[Run, Run], tmp_path: Path) -> None:
    target, golden = mindspore_pair
    write_alignment(align_runs(target, golden), target, golden, tmp_path)
    found = build_matcher(MappingOptions())(target, golden)
    given = build_matcher(MappingOptions(alignment=tmp_path / "alignment.json"))(target, golden)
    assert (found.target == given.target).all()
    assert (found.golden == given.golden).all()
    assert len(read_alignment(tmp_path / "alignment.json").relations) > 50


def test_the_gradient_fault_of_one_framework_does_not_move_a_pair(mindspore_pair: tuple[Run, Run]) -> None:
    """The MindSpore run has wrong gradients from qkv_proj of layer 1 on; backward follows forward all the same."""
    target, golden = mindspore_pair
    pairs = build_matcher(MappingOptions())(target, golden)
    mine, theirs = target.table["name"].to_list(), golden.table["name"].to_list()
    partner = {
        mine[row]: theirs[other] for row, other in zip(pairs.target, pairs.golden, strict=True) if row >= 0 <= other
    }
    cell = "Cell.module.module.language_model.encoder.layers.0.attention.qkv_proj.Dense"
    module = "Module.model.module.decoder.layers.0.self_attention.query_key_value.Linear"
    assert partner[f"{cell}.backward.0.input.0"] == f"{module}.backward.0.input.0"
    gradients = [name for name in partner if "parameters_grad" in name]
    assert len(gradients) == 29
    assert partner[f"{cell}.parameters_grad.0.weight"].startswith(module)
