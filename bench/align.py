"""How good and how fast automatic alignment is.

    python bench/align.py [--held-out [first|second]] [--only NAME] [--level mix|L0] [--speed 22 110]
        [--place 20000 200000] [--reference DIR]

Accuracy: small models, published and written again with other names, nesting and fusing (tests/models), each clean and
disturbed in four ways, against what is known by hand to be right; and the reference dumps. With --held-out, the pairs
that no rule was tuned on, and what is wrong or missed by name. Speed: the same two Llamas
with ever more layers. Place: two runs of so many calls, of which one makes a call more in every tenth layer, so that
the numbers of all calls behind it are shifted. Times are processor time of the pairing alone, without reading dumps.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from models.disturbed import with_other_values, without_layer, without_statistics
from models.framework_truth import FRAMEWORK_PAIRS
from models.held_out_truth import HELD_OUT_RECORDED
from models.reference_truth import REFERENCE_PAIRS
from models.score import Score, score
from support import forward, tensor, write_dump
from twinprobe._align.auto.aligner import align_runs
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._runs.run import Run, open_run

GOALS = {"clean": (0.995, 0.98), "disturbed": (0.99, 0.95)}


def main(argv: list[str] | None = None) -> None:
    """Measure what is asked for and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="pairs whose name contains this")
    parser.add_argument(
        "--held-out", nargs="?", const="first", default="", choices=["first", "second"],
        help="a set of pairs that no rule was tuned on (default: first)",
    )  # fmt: skip
    parser.add_argument("--level", default="mix", help="recording level of the models (default: mix)")
    parser.add_argument("--speed", type=int, nargs="*", metavar="LAYERS", help="measure speed with so many layers")
    parser.add_argument("--place", type=int, nargs="*", metavar="CALLS", help="measure pairing by place, calls a side")
    parser.add_argument("--reference", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "reference")
    arguments = parser.parse_args(argv)
    warnings.filterwarnings("ignore")
    if arguments.speed is not None:
        measure_speed(arguments.speed or [22, 110, 440])
        return
    if arguments.place is not None:
        measure_place(arguments.place or [20_000, 200_000])
        return
    measure_accuracy(arguments.only, arguments.level, arguments.reference, held_out=arguments.held_out)


def measure_accuracy(only: str, level: str, reference: Path, *, held_out: str) -> None:
    """One row per pair and disturbance, and the totals against the goals."""
    import transformers

    from models.catalogue import CLEAN, DISTURBANCES, PAIRS, record_pair
    from models.held_out import HELD_OUT
    from models.held_out_second import HELD_OUT_SECOND

    transformers.logging.set_verbosity_error()
    print("| pair | disturbance | modules | found | wrong | missed | precision | recall | seconds |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    totals: dict[str, list[Score]] = defaultdict(list)
    recorded = {"": lambda: _recorded_pairs(reference), "first": _held_out_recorded, "second": list}[held_out]()
    for name, target, golden, truth, layer in recorded:
        if only not in name:
            continue
        for disturbance, run in _disturbed(target, layer).items():
            kind = "clean" if disturbance == "clean" else "disturbed"
            totals[kind].append(_row(name, disturbance, run, golden, truth))
    for pair in {"": PAIRS, "first": HELD_OUT, "second": HELD_OUT_SECOND}[held_out]:
        for disturbance in DISTURBANCES if only in pair.name else ():
            with tempfile.TemporaryDirectory() as folder:
                made = record_pair(pair, disturbance, Path(folder), level=level)
                kind = "clean" if disturbance == CLEAN else "disturbed"
                totals[kind].append(
                    _row(pair.name, disturbance, made.target, made.golden, made.truth, tells=bool(held_out))
                )
    if not held_out:
        totals["disturbed"] += _published_rows(only, level)
    _print_totals(totals)


def _published_rows(only: str, level: str) -> list[Score]:
    import torch

    from models.catalogue import record_run
    from models.published import PUBLISHED

    found = []
    for pair in PUBLISHED:
        if only in pair.name:
            with tempfile.TemporaryDirectory() as folder:
                runs = [
                    record_run(make(), torch.randint(0, 64, (2, 8)), Path(folder, side), level=level)
                    for side, make in (("target", pair.target), ("golden", pair.golden))
                ]
                found.append(_row(pair.name, "unrelated weights", runs[0], runs[1], pair.correct()))
    return found


def _print_totals(totals: dict[str, list[Score]]) -> None:
    print()
    for kind, scores in totals.items():
        right = sum(one.right for one in scores)
        wrong, missed = (sum(len(getattr(one, what)) for one in scores) for what in ("wrong", "missed"))
        precision, recall = right / max(1, right + wrong), right / max(1, right + missed)
        print(f"{kind}: {len(scores)} pairs, precision {precision:.4f}, recall {recall:.4f} (goals {GOALS[kind]})")


def _recorded_pairs(reference: Path) -> list[tuple[str, Run, Run, set[tuple[str, str]], str]]:
    """Pairs that lie here as dumps: name, target, golden, truth, and a layer of the target that can be left out."""
    frameworks = Path(__file__).resolve().parents[1] / "tests" / "data" / "frameworks"
    found = []
    for name, target, golden, truth in FRAMEWORK_PAIRS:
        runs = open_run(frameworks / target), open_run(frameworks / golden)
        found.append((name, *runs, truth, "blocks.2" if target == "mindspore" else "layers.2"))
    for name, target, golden, truth in REFERENCE_PAIRS if reference.is_dir() else ():
        runs = tuple(open_run(next((reference / where).rglob("dump.json"))) for where in (target, golden))
        found.append((name, runs[0], runs[1], truth, "layers.1"))
    return found


def _held_out_recorded() -> list[tuple[str, Run, Run, set[tuple[str, str]], str]]:
    folder = Path(__file__).resolve().parents[1] / "tests" / "data" / "held_out"
    return [
        (name, open_run(folder / target), open_run(folder / golden), truth, "layers.1")
        for name, target, golden, truth in HELD_OUT_RECORDED
    ]


def _disturbed(target: Run, layer: str) -> dict[str, Run]:
    return {
        "clean": target,
        "no statistics": without_statistics(target),
        "unrelated values": with_other_values(target),
        "one layer missing": without_layer(target, layer),
    }


def _row(
    name: str, disturbance: str, target: Run, golden: Run, truth: set[tuple[str, str]], *, tells: bool = False
) -> Score:
    began = time.process_time()
    alignment = align_runs(target, golden)
    took = time.process_time() - began
    found = score(alignment, target, golden, truth)
    modules = f"{alignment.modules[0]} / {alignment.modules[1]}"
    print(
        f"| {name} | {disturbance} | {modules} | {found.right} | {len(found.wrong)} | {len(found.missed)} "
        f"| {found.precision:.3f} | {found.recall:.3f} | {took:.2f} |",
        flush=True,
    )
    for what in ("wrong", "missed") if tells else ():
        for one, other in getattr(found, what):
            print(f"    {what}: {one} / {other}", file=sys.stderr)
    return found


def measure_speed(depths: list[int]) -> None:
    """Ever deeper Llamas: nodes a side against seconds."""
    import torch
    import transformers

    from models import llama_megatron
    from models.catalogue import record_run

    print("| layers | nodes | modules aligned | seconds | microseconds per node |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    for depth in depths:
        config = transformers.LlamaConfig(
            hidden_size=8, intermediate_size=16, num_hidden_layers=depth, num_attention_heads=2, num_key_value_heads=1,
            vocab_size=16, max_position_embeddings=8,
        )  # fmt: skip
        torch.manual_seed(0)
        published = transformers.LlamaForCausalLM(config).eval()
        own = llama_megatron.LlamaMegatron(config, depth).eval()
        own.copy_from(published, list(range(depth)))
        with tempfile.TemporaryDirectory() as folder:
            tokens = torch.randint(0, 16, (1, 4))
            golden = record_run(published, tokens, Path(folder, "golden"), backward=False)
            target = record_run(own, tokens, Path(folder, "target"), backward=False)
            began = time.process_time()
            alignment = align_runs(target, golden)
            took = time.process_time() - began
        nodes = len(target.ops), len(golden.ops)
        print(
            f"| {depth} | {nodes[0]} / {nodes[1]} | {alignment.matched_modules[1]} of {alignment.modules[1]} "
            f"| {took:.2f} | {1e6 * took / max(nodes):.0f} |",
            flush=True,
        )


_LAYER_CALLS = ("linear", "__mul__", "view", "transpose", "matmul", "softmax", "matmul", "reshape", "linear", "__add__")


def measure_place(sizes: list[int]) -> None:
    """Ever longer runs that are paired by place: calls a side against seconds."""
    print("| calls a side | rows paired | seconds | microseconds per call |")
    print("| ---: | ---: | ---: | ---: |")
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            runs = [_layered(Path(folder, name), size, extra=name == "target") for name in ("target", "golden")]
            began = time.process_time()
            pairs = build_matcher(MappingOptions())(*runs)
            took = time.process_time() - began
        paired = int(((pairs.target >= 0) & (pairs.golden >= 0)).sum())
        print(
            f"| {size:,} | {paired:,} of {runs[1].table.height:,} | {took:.2f} | {1e6 * took / size:.0f} |", flush=True
        )


def _layered(folder: Path, size: int, *, extra: bool) -> Run:
    """A dump of layers in which every tensor has statistics of its own."""
    data: dict[str, Any] = {}
    parents: dict[str, str | None] = {}
    numbers: Counter[str] = Counter()

    def value(seed: float) -> dict[str, Any]:
        return tensor(Max=3 + seed, Min=-3 - seed, Mean=seed / 7, Norm=40 + seed)

    layers = size // (len(_LAYER_CALLS) + 1)
    for layer in range(layers):
        module = f"Module.layers.{layer}.Block.forward.0"
        calls = _LAYER_CALLS if not extra or layer % 10 else (*_LAYER_CALLS[:3], "__add__", *_LAYER_CALLS[3:])
        for at, api in enumerate(calls):
            name = f"Tensor.{api}.{numbers[api]}.forward"
            numbers[api] += 1
            seed = layer + 0.05 * (at - (len(calls) > len(_LAYER_CALLS) and at > 2))
            data[name] = forward([value(seed)], [value(seed + 0.05)])
            parents[name] = module
        data[module] = forward([value(layer)], [value(layer + 0.5)])
        parents[module] = None
    write_dump(folder, data, parents=parents, stacks={})
    return open_run(next(folder.rglob("dump.json")))


if __name__ == "__main__":
    main()
