"""twinprobe compare: two recorded runs in, verdicts and reports out."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe._cli.common import (
    FORMATS,
    add_engine_arguments,
    add_pair_arguments,
    engine_options,
    formats_or_dataset,
    numbers,
    pair_rule,
    path,
    positive,
    say,
    seconds,
)
from twinprobe._cli.main import BAD_INPUT, add_allow_missing, exit_code
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from twinprobe._compare.request import Request

_ELSEWHERE = {
    "consistent_check": "the comparison of training with inference",
    "backend": "the comparison of training with inference",
    "config": "post-processing of tensors",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("sides", type=path, nargs="*", metavar="TARGET GOLDEN",
        help="run under test and reference run: dump.json or a folder each, in place of -tp and -gp")  # fmt: skip
    add("-tp", "--target_path", type=path, metavar="PATH", help="run under test: dump.json or a folder")
    add("-gp", "--golden_path", type=path, metavar="PATH", help="reference run: dump.json or a folder")
    add("-o", "--output_path", type=path, nargs="?", const="./output", default="./output", metavar="DIR",
        help="folder for the results (default: ./output)")  # fmt: skip
    add("--format", type=formats_or_dataset, metavar="LIST",
        help=f"result formats: any of {','.join(FORMATS)},dataset (default: xlsx; dataset above 16 ranks)")  # fmt: skip
    add("--xlsx", action="store_true", help="same as --format xlsx")
    add("--csv", action="store_true", help="same as --format csv")
    mapping = parser.add_argument_group("how the two runs are paired (default: equal names at the same place)")
    pair = mapping.add_argument
    pair("-fm", "--fuzzy_match", action="store_true", help="pair equal names in order, whatever their call numbers")
    pair("-am", "--api_mapping", type=path, nargs="?", const=True, metavar="YAML", help="pair APIs across frameworks")
    pair("-cm", "--cell_mapping", type=path, nargs="?", const=True, metavar="YAML", help="pair modules (cells) by name")
    pair("-dm", "--data_mapping", type=path, metavar="YAML", help="pair single values")
    pair("-lm", "--layer_mapping", type=path, metavar="YAML", help="pair layers of the model code")
    add_pair_arguments(pair)
    pair("--layout", nargs="+", metavar="SIZES",
         help="how the ranks of target and golden are laid out, e.g. tp=2,pp=2 (also dp, cp, ep, vpp)")  # fmt: skip
    pair("--tokens", nargs="?", const="on", default="auto", choices=("auto", "on", "off"),
         help="compare token by token: if sequences are split differently (auto, default), always, never")  # fmt: skip
    add("-da", "--diff_analyze", action="store_true", help="find the first call that differs across all ranks")
    add("--rank", type=numbers, metavar="LIST", help="only these ranks, e.g. 0,1")
    add("--step", type=numbers, metavar="LIST", help="only these steps, e.g. 0,1")
    add("-tensor_log", "--is_print_compare_log", action="store_true", help="print one line per compared row")
    add("--rounding", type=float, metavar="N",
        help="judge by a fixed tolerance of N machine epsilons instead of the expected error")  # fmt: skip
    add("--noise", type=Path, metavar="RUN",
        help="measure noise with a third recording: the golden program on other kernels, or with perturb")  # fmt: skip
    add("--replay", type=seconds, nargs="?", const=True, default=False, metavar="SECONDS",
        help="run suspects again from their own inputs, for at most SECONDS per rank (default: 60)")  # fmt: skip
    add("--memory-mb", type=positive, metavar="N",
        help="limit on the memory for replaying one call, in MiB (default: 2048)")  # fmt: skip
    add("--each-step", action="store_true", help="for runs of many steps, print a line for each step")
    add("--fail-on", nargs="?", const="divergence", choices=("divergence", "error", "warning"),
        help="exit with code 1 if the runs differ more than noise explains (divergence, the default); with error or "
        "warning, also if any row has this verdict or worse")  # fmt: skip
    add_allow_missing(parser)
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    add("-m", "--mode", default="auto", metavar="auto", help=argparse.SUPPRESS)
    add("--consistent_check", action="store_true", help=argparse.SUPPRESS)
    add("--backend", help=argparse.SUPPRESS)
    add("--config", help=argparse.SUPPRESS)
    add_engine_arguments(parser, slices=True)


def run(args: argparse.Namespace) -> int:
    """Compare, report, and say how it went."""
    if args.mode != "auto":
        raise BadInput(f"--mode {args.mode} is not part of TwinProbe", hint="leave --mode out")
    for option, what in _ELSEWHERE.items():
        if getattr(args, option):
            raise BadInput(f"--{option}: {what} is not part of TwinProbe")
    from twinprobe._cli.common import Progress, show, show_analysis, show_steps
    from twinprobe._compare.job import analyze, run_request

    if args.target_path is None or args.golden_path is None or args.sides:
        _take_sides(args)
    if args.replay and args.rounding is not None:
        raise BadInput("--replay contradicts --rounding", hint="replayed calls are judged by what they may lose")
    request = _request(args)
    with Progress(enabled=not (args.quiet or args.json)) as progress:
        outcome = (analyze if args.diff_analyze else run_request)(request, progress.advance)
    if outcome.steps is not None and not args.quiet:
        show_steps(outcome, as_json=args.json, each_step=args.each_step)
    elif not args.quiet:
        (show_analysis if args.diff_analyze else show)(outcome, as_json=args.json)
    code = exit_code(args, outcome.summaries, outcome.failures)
    if not outcome.summaries and args.fail_on and outcome.steps is not None and outcome.steps.parting:
        code = 1
    if code != BAD_INPUT and not (args.quiet or args.json):
        sys.stdout.write(f"{args.prog} compare ends successfully.\n")
    return code


def _take_sides(args: argparse.Namespace) -> None:
    """Target and golden, from the flags or from two words: the first is the target, which is said."""
    if args.sides and (args.target_path or args.golden_path):
        raise BadInput("the paths are given twice", hint="either compare TARGET GOLDEN, or -tp TARGET -gp GOLDEN")
    if args.sides:
        if len(args.sides) != 2:
            raise BadInput(f"compare takes two paths, not {len(args.sides)}", hint="target first, then golden")
        args.target_path, args.golden_path = args.sides
        if not (args.quiet or args.json):
            say(f"comparing {args.target_path} (target) with {args.golden_path} (golden)")
    if args.target_path is None or args.golden_path is None:
        given = args.golden_path or args.target_path
        flag = "-tp" if args.target_path is None else "-gp"
        what = f"compare needs two paths, and {flag} is missing" if given else "compare needs two paths"
        raise BadInput(what, hint=f"{args.prog} compare TARGET GOLDEN")


def _request(args: argparse.Namespace) -> Request:
    from twinprobe._align.mapping import MappingOptions
    from twinprobe._compare.request import Request
    from twinprobe._judge.rules import Thresholds

    isolate = None
    if args.replay:
        from twinprobe._api import isolating

        isolate = isolating(args.replay, None if args.memory_mb is None else args.memory_mb << 20)
    chosen = list(args.format or ())
    chosen += [name for name in ("xlsx", "csv") if getattr(args, name) and name not in chosen]
    return Request(
        target=args.target_path,
        golden=args.golden_path,
        output=args.output_path,
        formats=tuple(chosen),
        # The older tool's own command keeps the row-by-row errors that it documents.
        thresholds=Thresholds(rounding=args.rounding, by_row=args.usual_pair == "numbers"),
        noise=args.noise,
        isolate=isolate,
        ranks=args.rank,
        steps=args.step,
        engine=engine_options(args),
        resume=args.resume,
        layouts=tuple(args.layout or ()),
        tokens=args.tokens,
        log_rows=args.is_print_compare_log,
        mapping=MappingOptions(
            fuzzy=args.fuzzy_match,
            api=args.api_mapping,
            cell=args.cell_mapping,
            data=args.data_mapping,
            layer=args.layer_mapping,
            pair=pair_rule(args),
            align=args.align,
            alignment=args.alignment,
        ),
    )
