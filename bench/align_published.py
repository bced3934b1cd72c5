"""How pairing does on published implementations of the same models, of which each was written by others.

    python bench align_published [--set tuned|held-out|later|unseen] [--only NAME] [--level L0 mix] [--faults 3]
        [--tell]

Each pair holds the same weights and gives the same outputs. Recorded with statistics, forward and backward, and
compared without a mapping file. Layers: pairs of modules that hold weights, against what was converted into what.
Calls: API calls inside paired modules; a pair is right where inputs and outputs hold the same values, a call is found
where it is paired or in a group that is equal in meaning. Clean: no first divergence is named. Faults: the
weight of one layer of the target times 1.3; located where the first divergence is in that layer. Then models that are
not related: nothing may be paired. Needs timm, torchvision, torchtune, litgpt, open_clip, diffusers and vit_pytorch;
the set "unseen" also openai-whisper, fair-esm, segmentation-models-pytorch, mlp-mixer-pytorch, mambapy,
segment-anything and curated-transformers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from twinprobe._align.calls import split
from twinprobe._align.links import Pairs
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.one import Comparison, Options, compare_runs
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.table import OUTPUT, PARAMETER, TENSOR
from twinprobe.torch import record

TUNED = (
    "resnet_transformers", "vit_transformers", "vit_torchvision", "convnext", "swin", "llama_torchtune", "llama_litgpt",
    "pythia_litgpt", "clip_text", "bert_torch",
)  # fmt: skip
HELD_OUT = (
    "resnet_torchvision", "densenet", "mobilenet", "efficientnet", "dinov2", "siglip", "clip_vision",
    "mistral_torchtune", "qwen2_torchtune", "gemma_torchtune", "llama_litgpt_torchtune",
)  # fmt: skip
LATER = ("block_diffusers", "decoder_diffusers", "vit_pytorch_timm", "phi3_torchtune", "vgg", "resnext")
UNSEEN = (
    "whisper", "esm2", "segformer", "mixer", "mamba", "sam", "t5_encoder", "flux_decoder", "beit", "pvt_v2", "focalnet",
    "levit", "inception", "mnasnet", "regnet", "albert", "mpt", "mixtral_litgpt", "gemma2_litgpt", "phi_litgpt",
    "falcon_litgpt",
)  # fmt: skip
UNRELATED = (
    ("llama_torchtune", "bert_torch"), ("vit_transformers", "llama_litgpt"), ("resnet_transformers", "clip_text"),
    ("convnext", "swin"), ("pythia_litgpt", "vit_torchvision"),
)  # fmt: skip
WRONG = 1.3


@dataclass
class Score:
    """What one comparison of a pair has found."""

    layers: list[int] = field(default_factory=lambda: [0, 0, 0])  # right, wrong, missed
    calls: list[int] = field(default_factory=lambda: [0, 0, 0])
    clean: str = ""
    located: int = 0
    faults: int = 0
    told: list[str] = field(default_factory=list)


def main(argv: list[str] | None = None) -> None:
    """Measure and print one row per pair and level, and the totals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", choices=["tuned", "held-out", "later", "unseen", "all"], default="all")
    parser.add_argument("--only", default="", help="pairs whose name contains this")
    parser.add_argument("--level", nargs="*", default=["L0", "mix"])
    parser.add_argument("--faults", type=int, default=3, help="layers of each pair that are made wrong, one at a time")
    parser.add_argument("--tell", action="store_true", help="name what is wrong, missed and not located")
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    sets = {"tuned": TUNED, "held-out": HELD_OUT, "later": LATER, "unseen": UNSEEN}
    names = sets.get(arguments.set) or sum(sets.values(), ())
    totals: dict[str, list[Score]] = defaultdict(list)
    print("| pair | level | layers right, wrong, missed | calls right, wrong, missed | clean | faults located |")
    print("| --- | --- | ---: | ---: | --- | ---: |")
    for name in names:
        for level in arguments.level if arguments.only in name else ():
            score = _measure(name, level, arguments.faults)
            totals[level].append(score)
            shown = [", ".join(map(str, numbers)) for numbers in (score.layers, score.calls)]
            row = name, level, *shown, score.clean or "yes", f"{score.located} of {score.faults}"
            print(f"| {' | '.join(row)} |", flush=True)
            if arguments.tell:
                print("".join(f"    {line}\n" for line in score.told[:30]), end="", flush=True)
    for level, scores in totals.items():
        _print_total(level, scores)
    if not arguments.only:
        _print_unrelated(arguments.level)


def _print_total(level: str, scores: list[Score]) -> None:
    layers, calls = (
        [sum(row) for row in zip(*rows, strict=True)]
        for rows in zip(*((s.layers, s.calls) for s in scores), strict=True)
    )
    clean = sum(not score.clean for score in scores)
    located, faults = sum(score.located for score in scores), sum(score.faults for score in scores)
    print(
        f"{level}: layers precision {_share(layers[0], layers[1])}, recall {_share(layers[0], layers[2])}; "
        f"calls precision {_share(calls[0], calls[1])}, recall {_share(calls[0], calls[2])}; "
        f"clean {clean} of {len(scores)}; faults located {located} of {faults}"
    )


def _share(right: int, other: int) -> str:
    return f"{right / (right + other):.3f}" if right + other else "-"


def _measure(name: str, level: str, faults: int) -> Score:
    score = Score()
    made = _build(name)
    with tempfile.TemporaryDirectory() as folder:
        target = _recorded(Path(folder) / "t", made.target, made.call_target, level)
        golden = _recorded(Path(folder) / "g", made.golden, made.call_golden, level)
        found, pairs = _compared(target, golden)
        _score_layers(score, target, golden, pairs, made.layers)
        _score_calls(score, target, golden, pairs)
        first = found.summary.first
        if first is not None:
            score.clean = f"no: {_place(target, first.op)}"
            score.told.append(f"clean: {first.op} {first.row} / {first.golden_row}: {first.sentence}")
        layers = [path for path in made.layers if _weight(made.target, path) is not None]
        for at in range(faults):
            path = layers[(2 * at + 1) * len(layers) // (2 * faults)]
            weight = _weight(made.target, path)
            assert weight is not None
            weight.data *= WRONG
            wrong = _recorded(Path(folder) / f"f{at}", made.target, made.call_target, level)
            weight.data /= WRONG
            first = _compared(wrong, golden)[0].summary.first
            score.faults += 1
            place = _place(wrong, first.op) if first is not None else "nowhere"
            around = _called_around(wrong, path)
            if not any(_called_around(golden, other) == other for other in made.layers[path]):
                around = _called_around(wrong, path.rpartition(".")[0])  # the golden run computes it inside another
            score.located += place == around or place.startswith(f"{around}.")
            if place != around and not place.startswith(f"{around}."):
                score.told.append(
                    f"fault in {path}: {place}; {first and (first.row, first.golden_row, first.sentence)}"
                )
    return score


def _called_around(run: Run, path: str) -> str:
    """The module at a path, or the nearest one around it that was called."""
    while path and not any(name.startswith(f"Module.{path}.") and ".forward." in name for name in run.ops):
        path = path.rpartition(".")[0]
    return path


def _build(name: str) -> Any:
    from published import blocks, language, unseen, vision

    torch.manual_seed(0)
    home = next(home for home in (vision, language, blocks, unseen) if name in vars(home))
    return vars(home)[name]()


def _weight(model: torch.nn.Module, path: str) -> torch.nn.Parameter | None:
    """The weight of a layer that is a module of its own."""
    own = dict(model.get_submodule(path).named_parameters(recurse=False)) if path else {}
    return next((own[name] for name in ("weight", "scale", "in_proj_weight", "gamma") if name in own), None)


def _recorded(folder: Path, model: torch.nn.Module, call: Callable[[torch.nn.Module], torch.Tensor], level: str) -> Run:
    stdout, sys.stdout = sys.stdout, sys.stderr
    try:
        with record(model, folder, level=level, task="statistics"):
            call(model).square().mean().backward()
    finally:
        sys.stdout = stdout
    model.zero_grad()
    return open_run(next(folder.rglob("dump.json")))


def _compared(target: Run, golden: Run) -> tuple[Comparison, Pairs]:
    kept: list[Pairs] = []
    match = build_matcher(MappingOptions())

    def remember(one: Run, other: Run) -> Pairs:
        kept.append(match(one, other))
        return kept[0]

    return compare_runs(target, golden, Options(remember)), kept[0]


def _place(run: Run, name: str) -> str:
    """The path of the module in which a call lies."""
    while name and not name.startswith("Module."):
        name = run.parents.get(name) or ""
    return split(name)[0].removeprefix("Module.").rpartition(".")[0]


def _together(pairs: Pairs) -> Iterator[tuple[int, int]]:
    for at, (row, other) in enumerate(zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)):
        if row >= 0 and other >= 0:
            rows, others = pairs.groups.get(at, ((row,), (other,)))
            yield from ((one, two) for one in rows for two in others)


def _score_layers(score: Score, target: Run, golden: Run, pairs: Pairs, truth: dict[str, set[str]]) -> None:
    paths = [
        [_place(run, run.ops[op]) if run.ops[op].startswith("Module.") else "" for op in run.table["op"].to_list()]
        for run in (target, golden)
    ]
    kept = PARAMETER, OUTPUT
    roles = target.table["role"].to_list(), golden.table["role"].to_list()
    met = {
        (paths[0][row], paths[1][other])
        for row, other in _together(pairs)
        if paths[0][row] and paths[1][other] and roles[0][row] in kept and roles[1][other] in kept
    }
    known = {(path, other) for path, others in truth.items() for other in others}
    sides = {path for path, _ in known}, {other for _, other in known}
    called = [
        {_place(run, name) for name in run.ops if name.startswith("Module.") and ".forward." in name}
        for run in (target, golden)
    ]
    # nn.MultiheadAttention holds the weights of layers that are modules elsewhere: it belongs to what is around those.
    holds = [{path for path in paths if any(other.startswith(f"{path}.") for other in paths)} for paths in sides]
    wanted = {(one, two) for one, two in known if one in called[0] - holds[0] and two in called[1] - holds[1]}
    found = {(one, two) for one, two in met if one in sides[0] - holds[0] and two in sides[1] - holds[1]}
    score.layers = [len(found & known), len(found - known), len(wanted - found)]
    score.told += [f"wrong layer: {one} = {other}" for one, other in sorted(found - known)]
    score.told += [f"missed layer: {one} = {other}" for one, other in sorted(wanted - found)]


def _score_calls(score: Score, target: Run, golden: Run, pairs: Pairs) -> None:
    """A pair of calls is right where its tensors hold the same, a call missed where a free one of its API is left."""
    ops = target.table["op"].to_list(), golden.table["op"].to_list()
    norms = target.table["norm"].to_list(), golden.table["norm"].to_list()
    tensors = [run.table["kind"].to_list() for run in (target, golden)]
    parts = [{op for group in pairs.call_groups for op in getattr(group, side)} for side in ("target", "golden")]
    met: dict[tuple[int, int], bool] = {}
    partner: dict[str, str] = {}
    covered: list[set[int]] = [set(parts[0]), set(parts[1])]
    fused = {row for rows, others in pairs.groups.values() for row in rows if len(rows) + len(others) > 2}
    for row, other in _together(pairs):
        one, two = ops[0][row], ops[1][other]
        names = target.ops[one], golden.ops[two]
        covered[0].add(one)
        covered[1].add(two)
        if all(name.startswith("Module.") for name in names):
            partner[names[0]] = names[1]
        plain = not any(name.startswith("Module.") or ".forward" not in name for name in names)
        if plain and one not in parts[0] and row not in fused and tensors[0][row] == tensors[1][other] == TENSOR:
            size = norms[0][row], norms[1][other]
            known = None not in size and size[0] == size[0] and size[1] == size[1]
            same = not known or size[0] == size[1] or abs(size[0] - size[1]) <= 1e-3 * abs(size[1]) + 1e-6
            met[one, two] = met.get((one, two), True) and same
    free = {
        (golden.parents.get(name), split(name)[0])
        for op, name in enumerate(golden.ops)
        if ".forward" in name and op not in covered[1]
    }
    inside = [
        op for op, name in enumerate(target.ops)
        if ".forward" in name and not name.startswith("Module.") and target.parents.get(name) in partner
    ]  # fmt: skip
    missed = [
        op for op in inside
        if op not in covered[0]
        and (partner[target.parents[target.ops[op]] or ""], split(target.ops[op])[0]) in free
    ]  # fmt: skip
    wrong = [pair for pair, same in met.items() if not same]
    score.calls = [len(covered[0] & set(inside)) - len(wrong), len(wrong), len(missed)]
    score.told += [f"wrong call: {target.ops[one]} = {golden.ops[two]}" for one, two in wrong]
    score.told += [f"missed call: {target.ops[op]} in {_place(target, target.ops[op])}" for op in missed]


def _print_unrelated(levels: list[str]) -> None:
    for level in levels:
        for one, other in UNRELATED:
            first, second = _build(one), _build(other)
            with tempfile.TemporaryDirectory() as folder:
                target = _recorded(Path(folder) / "t", first.target, first.call_target, level)
                golden = _recorded(Path(folder) / "g", second.golden, second.call_golden, level)
                pairs = build_matcher(MappingOptions())(target, golden)
            count = int(((pairs.target >= 0) & (pairs.golden >= 0)).sum())
            print(f"unrelated, {level}: {one} against {other}: {count} rows paired")


if __name__ == "__main__":
    main()
