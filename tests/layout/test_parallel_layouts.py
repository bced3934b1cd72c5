"""A training in a parallel layout against the same training in one process: losses agree, and compare says so."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import slow
from twinprobe._cli import main

if TYPE_CHECKING:  # the tests of other folders have a conftest as well
    from conftest import Trained

# Each layout, and the single process that computes the same.
TWINS = {
    "ddp": "single", "ddp+clip": "single+clip", "fsdp1+clip": "single+clip", "fsdp2+clip": "single+clip",
    "tp": "single", "megatron": "single", "sp": "single", "cp": "single", "cp+clip": "single+clip", "pp": "single",
    "ep": "single+moe", "megatron+dropout": "single+dropout", "megatron+fused": "single+fused",
    "ddp+micro": "single+micro", "ddp+zero": "single", "fsdp2+mixed": "fsdp2+mixed", "hsdp": "single",
    "hsdp+mixed": "fsdp2+mixed", "2d": "single",
    "ep+branches": "single+moe+branches",
}  # fmt: skip


def compared(
    target: Path, golden: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str, code: int = 0
) -> dict[str, Any]:
    """The JSON document of compare; the results of each step by name."""
    words = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--format", "csv", "--json", *more]
    assert main(words) == code
    document = json.loads(capsys.readouterr().out)
    document["by_name"] = {rank["rank"]: rank for rank in document["ranks"]}
    return document


def assert_agreement(document: dict[str, Any], *, steps: int = 2, calls: int = 100, unknown: int = 0) -> None:
    names = [f"step{step}/{what}" for step in range(steps) for what in ("whole", "optimizer")]
    assert sorted(document["by_name"]) == sorted(names)
    assert document["failures"] == []
    for name, result in document["by_name"].items():
        assert result["first"] is None, (name, result["first"])
        assert result["verdicts"]["error"] == 0, name
        # Where only one run made a call, that is a warning, unless it is a collective; nothing else is.
        assert result["verdicts"]["warning"] <= result["target_only"] + result["golden_only"] + unknown, name
        assert not [note for note in result["notes"] if "replica" in note or "copies" in note]
        assert not [note for note in result["notes"] if "not compared" in note]
        assert result["verdicts"]["pass"] > (calls if name.endswith("whole") else 100)


def mean_losses(losses: dict[int, list[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*losses.values(), strict=True)]


@pytest.mark.parametrize("level", ["L0", *slow("mix")])
@pytest.mark.parametrize("kind", ["ddp", *slow(*(kind for kind in TWINS if kind != "ddp"))])
def test_a_layout_agrees_with_one_process(
    trained: Trained, losses: dict[Path, Any], kind: str, level: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    target, golden = trained(kind, RANKS.get(kind, 2), level), trained(TWINS[kind], 1, level)
    assert mean_losses(losses[target]) == pytest.approx(
        mean_losses(losses[golden]), rel=2e-2 if "mixed" in kind else 1e-5
    )
    # Where both sides are made of micro batches, a sum outside of the model and masks that look alike are not compared.
    # In 16 bits, a weight may be a little further off after a step than its drift explains, which is a note.
    unknown = 4 if "micro" in kind else int("mixed" in kind)
    assert_agreement(compared(target, golden, tmp_path, capsys), unknown=unknown)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "task"), [("L0", "statistics"), ("mix", "statistics"), ("mix", "tensor")])
@pytest.mark.parametrize("kind", ["ddp", "fsdp1+clip", "fsdp2+clip", "tp", "megatron", "sp", "cp", "pp", "ep"])
def test_a_layout_in_bfloat16_agrees_with_one_process(
    trained: Trained, losses: dict[Path, Any], kind: str, level: str, task: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    sides = [trained(name, 2, level, task, "bfloat16") for name in (kind, TWINS[kind])]
    assert mean_losses(losses[sides[0]]) == pytest.approx(mean_losses(losses[sides[1]]), rel=2e-2)
    assert_agreement(compared(*sides, tmp_path, capsys))


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize(
    "kind",
    ["pp", "tp", "fsdp1+clip", "fsdp2+clip", "fsdp2+mixed", "ddp+zero", "ddp+checkpoint", "fsdp2+checkpoint", "cp",
     "ep",
     *(f"{kind}+compile" for kind in ("ddp", "fsdp1", "fsdp2", "tp", "megatron", "sp", "cp", "pp", "ep"))],
)  # fmt: skip
def test_recording_changes_nothing(
    trained: Trained, losses: dict[Path, Any], digests: dict[Path, Any], kind: str, level: str
) -> None:
    plain, recorded = trained(kind, 2, "off"), trained(kind, 2, level)
    assert losses[recorded] == losses[plain]
    assert digests[recorded] == digests[plain]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "on_top"),
    [*((kind, "checkpoint") for kind in ("ddp", "fsdp1", "fsdp2", "tp", "megatron", "sp", "cp", "pp", "ep")),
     *((kind, "compile") for kind in ("ddp", "fsdp2", "tp"))],
)  # fmt: skip
def test_checkpointing_and_compilation_on_top_agree_with_one_process(
    trained: Trained, losses: dict[Path, Any], digests: dict[Path, Any], kind: str, on_top: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    target, plain = trained(f"{kind}+{on_top}", 2, "mix"), trained(f"{kind}+{on_top}", 2, "off")
    assert (losses[target], digests[target]) == (losses[plain], digests[plain])
    twin = TWINS.get(kind, "single")
    # Inside of a compiled region nothing is recorded that a run without it could be compared with.
    for golden in (f"{twin}+{on_top}", *([twin] if on_top == "checkpoint" else ())):
        document = compared(target, trained(golden, 1, "mix"), tmp_path, capsys)
        assert_agreement(document, calls=0 if on_top == "compile" else 100)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("kind", ["ddp", "fsdp2+clip", "tp", "megatron", "megatron+fused", "sp", "cp", "pp", "ep"])
def test_reassembled_tensors_agree_with_one_process(
    trained: Trained, kind: str, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = compared(trained(kind, 2, level, "tensor"), trained(TWINS[kind], 1, level, "tensor"), tmp_path, capsys)
    assert_agreement(document)
    assert not [note for one in document["ranks"] for note in one["notes"] if "differs" in note]


@pytest.mark.slow
def test_a_bias_that_is_added_later_is_not_blamed(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = compared(trained("sp", 2, "mix"), trained("single+biased", 1, "mix"), tmp_path, capsys)
    assert_agreement(document)
    assert not [note for one in document["ranks"] for note in one["notes"] if "differs" in note]


@pytest.mark.parametrize("level", ["L0", *slow("mix")])
def test_gradients_that_are_reduced_in_16_bits_are_judged_by_these(
    trained: Trained, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = compared(trained("ddp+hook", 2, level), trained("single", 1, level), tmp_path, capsys)
    assert_agreement(document)
    said = "target: gradients are reduced in float16, and judged by its precision"
    assert said in document["by_name"]["step0/optimizer"]["notes"]


@pytest.mark.slow
def test_the_rank_of_a_stale_shard_is_named(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = trained("megatron", 2, "L0", "tensor", fault="stale_parameter")
    found = compared(target, trained("single", 1, "L0", "tensor"), tmp_path, capsys)["by_name"]["step1/whole"]
    assert found["notes"][0].endswith("parameters.weight: rank 1's shard differs")
    assert "embedding" in found["notes"][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "layout"), [("megatron", "tp=4"), ("ddp", "dp=4"), ("tp", ""), ("2d", ""), ("sp", ""), ("hsdp", "")]
)
def test_four_ranks_agree_with_one_process(
    trained: Trained, kind: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--layout", layout] if layout else []
    assert_agreement(compared(trained(kind, 4), trained("single", 1), tmp_path, capsys, *more))


AXES = {"ddp": "dp", "fsdp1": "dp", "fsdp2": "dp", "megatron": "tp", "tp": "tp", "sp": "tp", "cp": "cp", "ep": "ep",
        "pp": "pp", "hsdp": "dp"}  # fmt: skip


AGAINST_EACH_OTHER = {
    "dense": [*(f"{kind}-2" for kind in ("ddp", "fsdp1", "fsdp2", "tp", "megatron", "sp", "cp", "pp")),
              *(f"{kind}-4" for kind in ("ddp", "fsdp1", "fsdp2", "hsdp", "2d", "tp", "megatron", "sp", "cp"))],
    "deep": ["pp+deep-2", "pp+deep-4"],
    "experts": ["ep-2", "ep-4"],
}  # fmt: skip
PAIRS = [pair for group in AGAINST_EACH_OTHER.values() for pair in combinations(group, 2)]
ODD = {"sp-2", "cp-2", "fsdp1-4", "2d-4", "hsdp-4", "ep-2", "pp+deep-2"}  # with functions and cuts of their own


def sizes_of(kind: str, ranks: int) -> str:
    return "tp=2,dp=2" if kind == "2d" else f"{AXES[kind.partition('+')[0]]}={ranks}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "golden", "level"),
    [*((*pair, "L0") for pair in PAIRS), *((*pair, "mix") for pair in PAIRS if ODD & set(pair))],
)
def test_two_layouts_agree_with_each_other(
    trained: Trained, target: str, golden: str, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [(kind, int(ranks)) for kind, _, ranks in (side.partition("-") for side in (target, golden))]
    sizes = [sizes_of(*side) for side in sides]
    document = compared(*(trained(*side, level) for side in sides), tmp_path, capsys, "--layout", *sizes)
    assert document["failures"] == []
    assert len(document["by_name"]) == 4
    for name, result in document["by_name"].items():
        assert result["first"] is None, (name, result["first"])
        assert result["verdicts"]["error"] == 0, name
        assert not [note for note in result["notes"] if "replica" in note or "copies" in note]
        assert result["verdicts"]["pass"] > (75 if "pp" in (target + golden) else 100), name
    assert any(f"layout {sizes[0]} (as given)" in note for note in document["by_name"]["step0/whole"]["notes"])


# Each fault: the layout, the result that must blame, the guilty module, and what a note or the first difference says of
# the rank or the collective; nothing where all ranks do the same wrong thing.
SUM, RANK_1 = "but nothing adds them up", "rank 1's"
FAULTS = [
    ("megatron", "no_all_reduce", "step0/whole", "layers.0.attention.o", SUM),
    ("megatron", "world_scale", "step0/whole", "layers.0.attention.o", ""),
    ("megatron", "double_reduce", "step0/whole", "layers.0.attention.o", "all_reduce"),
    ("megatron", "bias_every_rank", "step0/whole", "layers.0.attention.o", "each of 2 ranks adds it before the sum"),
    ("megatron", "bias_dropped", "step0/whole", "layers.0.attention.o", RANK_1),
    ("megatron", "shard_swapped", "step0/whole", "layers.0.mlp.up", ""),
    ("megatron", "shard_scaled", "step0/whole", "layers.0.mlp.up", RANK_1),
    ("megatron", "vocabulary_offset", "step0/whole", "embedding", "rank 1"),
    ("megatron", "replica_differs", "step0/whole", "layers.1.norm1", RANK_1),
    ("megatron", "no_gradient_reduce", "step0/whole", "layers.1.mlp.up", SUM),
    ("megatron", "stale_parameter", "step1/whole", "embedding|position", "rank 1"),
    ("megatron+dropout", "random_not_split", "step0/whole", "layers.0.dropout", RANK_1),
    ("sp", "sp_gradient", "step0/optimizer", "position.weight", SUM),
    ("ddp", "wrong_rate", "step0/optimizer", "embedding.weight", RANK_1),
    ("ddp", "replica_differs", "step0/whole", "layers.1.norm1", RANK_1),
    ("ddp", "sum_not_mean", "step0/whole", "head|__mul__", ""),  # mix sees the product itself
    ("ddp", "stale_parameter", "step1/whole", "embedding|position", RANK_1),  # both are stale
    ("ddp+clip", "no_clip", "step0/optimizer", "embedding.weight", ""),
    ("fsdp2+clip", "wrong_rate", "step0/optimizer", "embedding.weight", RANK_1),
    ("cp+clip", "kv_order", "step0/whole", "layers.0.attention", ""),
    ("cp+clip", "position_offset", "step0/whole", "position", "rank 1"),
    ("cp", "gradient_scale", "step0/optimizer", "embedding.weight", ""),
    ("cp+clip", "no_gradient_reduce", "step0/optimizer", "embedding.weight", "ranks 0, 1"),
    ("ep", "expert_moved", "step0/whole", "layers.0.mlp", "rank 1"),
    ("ep", "gradient_scale", "step0/optimizer", "embedding.weight", ""),
    ("pp", "micro_scale", "step0/optimizer", "embedding.weight", ""),
    ("ddp+micro", "never_synced", "step0/optimizer", "embedding.weight", "ranks 0, 1"),
    ("ddp+micro", "micro_scale", "step0/optimizer", "embedding.weight", ""),
    ("ddp+zero", "no_broadcast", "step0/optimizer", "embedding.weight|position.weight", RANK_1),
    ("ddp+zero", "wrong_rate", "step0/optimizer", "layers.0.norm1.weight", RANK_1),  # its first one
    ("hsdp", "no_replica_reduce", "step0/optimizer", "embedding.weight", ""),  # torch keeps the gradients back
    ("hsdp", "scaled:2:layers.1.mlp.up.weight:1.5", "step0/whole", "layers.1.mlp.up", "rank 2"),
    ("pp", "scaled:1:layers.0.mlp.up.weight:1.25", "step0/whole", "layers.1.mlp.up", "stage 1"),
    ("pp", "second_call", "step0/whole", "layers.0.norm2", "micro batch 0"),
    ("ep", "scaled:0:layers.1.mlp.experts.1.down.bias:3", "step0/whole", "layers.1.mlp.experts.1.down", "rank 0"),
    ("ep", "returned_in_order", "step0/whole", "layers.1.mlp", "rank 0"),
    ("cp", "mask_shifted", "step0/whole", "layers.1.attention", "rank 0"),
    ("sp", "other_epsilon", "step0/whole", "layers.1.norm1", "rank 0"),
    # In 16 bits no result of the pass at L0 is further off than noise: the optimizer tells that the shard is.
    ("fsdp2+mixed", "scaled:0:layers.0.attention.k.weight:1.5", "step0/whole", "layers.0.attention.k", "rank 0's"),
    ("hsdp+mixed", "scaled:2:layers.0.attention.k.weight:1.5", "step0/whole", "layers.0.attention.k", "rank 2's"),
    ("tp", "scaled:0:layers.1.mlp.up.bias:0", "step0/whole", "layers.1.mlp.up", "rank 0"),
    ("megatron", "frozen:0:layers.1.mlp.down.weight", "step0/optimizer", "layers.1.mlp.down.weight", "rank 0"),
    ("2d", "scaled:2:layers.0.norm1.weight:1.5", "step0/whole", "layers.0.norm1", "rank 2"),
    ("ddp", "scaled:0:layers.0.mlp.down.weight:1.1", "step0/whole", "layers.0.mlp.down", "rank 0"),
    ("megatron", "scaled:0:layers.1.attention.o.weight:0.5", "step0/whole", "layers.1.attention.o", ""),  # columns
    ("sp", "scaled:0:layers.0.mlp.up.bias:3", "step0/whole", "layers.0.mlp.up", "rank 0"),
    ("pp", "frozen:0:layers.0.attention.v.weight", "step0/optimizer", "layers.0.attention.v.weight", "stage 0"),
    ("ep", "scaled:1:layers.0.mlp.experts.0.up.weight:0.5", "step0/whole", "layers.0.mlp.experts.2.up", "rank 1"),
    ("fsdp2+clip", "scaled:1:layers.1.mlp.down.weight:0.75", "step0/whole", "layers.1.mlp.down", "rank 1"),
    ("hsdp", "scaled:3:embedding.weight:0.5", "step0/whole", "embedding", "rank 3"),
    ("tp", "scaled:1:layers.0.attention.v.weight:0.5", "step0/whole", "layers.0.attention.v", "rank 1"),
]
RANKS = {"hsdp": 4, "hsdp+mixed": 4, "2d": 4}


def what_is_named(found: dict[str, Any], guilty: str, clue: str) -> tuple[str, str]:
    """The module that a result blames, and where it says so, the rank or the collective; nothing where it is wrong."""
    first = found["first"]
    if first is None:
        return "", ""
    path = f".{first['op']}.{first['module']}."
    module = next((name for name in guilty.split("|") if f".{name}." in path), "")
    texts = [first["op"], first["sentence"], *found["notes"]]
    exactly = re.compile(re.escape(clue) + r"(?!,? ?\d)")  # not rank 1 of "rank 1, 2"
    return module, next((text for text in texts if exactly.search(text)), "") if clue else ""


@pytest.mark.slow
@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize(("kind", "fault", "result", "guilty", "clue"), FAULTS)
def test_a_planted_fault_is_named(
    trained: Trained, kind: str, fault: str, result: str, guilty: str, clue: str, level: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    document = compared(
        trained(kind, RANKS.get(kind, 2), level, fault=fault), trained(TWINS[kind], 1, level), tmp_path, capsys
    )
    module, words = what_is_named(document["by_name"][result], guilty, clue)
    assert module
    # Only collectives that were recorded can be named, and what they were given.
    untold = clue in (SUM, "all_reduce") or fault in ("vocabulary_offset", "expert_moved", "bias_every_rank")
    assert words or not clue or (level == "L0" and untold)
