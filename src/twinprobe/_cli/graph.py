"""twinprobe graph and graph_visualize: draw the model of one run, or of two, by a compare.json or by flags."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from typing import TYPE_CHECKING, Literal

from twinprobe._cli.common import add_engine_arguments, add_pair_arguments, engine_options, pair_rule, path
from twinprobe._cli.main import add_allow_missing, exit_code

if TYPE_CHECKING:
    from pathlib import Path

    from twinprobe._graph.job import GraphRequest, Outcome

FILE_TYPES = ("vis", "db", "json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("-i", "--input_path", type=path, required=True, metavar="FILE",
        help='compare.json: {"npu_path": ..., "bench_path": ..., "is_print_compare_log": true}')  # fmt: skip
    add("-f", dest="fuzzy_match", action="store_true", help=argparse.SUPPRESS)
    add("-cs", "--complete_stack", action="store_true", help="keep every frame of a module's call stack")
    add_common_arguments(parser, default_type="vis")


def add_common_arguments(parser: argparse.ArgumentParser, *, default_type: str) -> None:
    """Declare what both graph commands share."""
    add = parser.add_argument
    add("-o", "--output_path", type=path, required=True, metavar="DIR", help="folder for the graph files")
    add("-lm", "--layer_mapping", type=path, nargs="?", const=True, metavar="YAML",
        help="layer mapping file; without a file, pair equal names regardless of the enclosing module")  # fmt: skip
    add("-fm", "--fuzzy_match", action="store_true", help="pair equal names in order, whatever their call numbers")
    add("-oc", "--overflow_check", action="store_true", help="mark where NaN, infinity or a jump in size first appears")
    add_pair_arguments(add)
    add("--file_type", choices=FILE_TYPES, default=default_type,
        help=f"vis: a .vis file per rank; db: one .vis.db; json: a merged dump (default: {default_type})")  # fmt: skip
    add("--layout", nargs="+", metavar="SIZES",
        help="how the ranks of the target, and of golden, are laid out, e.g. tp=2,pp=2 (default: as recorded, or "
        "found)")  # fmt: skip
    add("--rounding", type=float, metavar="N",
        help="judge by a fixed tolerance of N machine epsilons instead of the expected error")  # fmt: skip
    add_allow_missing(parser)
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print one JSON object instead of the summary")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Draw what the compare.json names."""
    from twinprobe._graph.compare_json import read_compare_json
    from twinprobe._layout.layout import layouts_of

    wanted = read_compare_json(args.input_path)
    target_layout, golden_layout = layouts_of(wanted.parallel_merge, golden=wanted.bench_path is not None)
    request = build_request(
        args, wanted.npu_path, wanted.bench_path, log_calls=wanted.is_print_compare_log and not args.quiet,
        complete_stack=args.complete_stack, layouts=(target_layout, golden_layout),
    )  # fmt: skip
    return draw(args, request, wanted.notes)


def build_request(
    args: argparse.Namespace,
    target: Path,
    golden: Path | None,
    *,
    log_calls: bool,
    complete_stack: bool,
    layouts: tuple[object, object],
) -> GraphRequest:
    """The request that a command's arguments make."""
    # Libraries read these when they are first loaded; what the user has set stays. Polars' allocator keeps a store of
    # free memory per thread; one is enough and saves a good tenth of all memory. No linear algebra is done here.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "narenas:1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from twinprobe._align.mapping import MappingOptions
    from twinprobe._graph.job import GraphRequest
    from twinprobe._judge.rules import Thresholds

    layer: Path | Literal[True] | None = args.layer_mapping
    mapping = MappingOptions(
        fuzzy=args.fuzzy_match,
        layer=None if layer is True else layer,
        pair=pair_rule(args),
        align=args.align,
        alignment=args.alignment,
    )
    return GraphRequest(
        target=target,
        golden=golden,
        output=args.output_path,
        form=args.file_type,
        mapping=mapping,
        same_ancestors=not args.fuzzy_match and layer is None,
        overflow_check=args.overflow_check,
        log_calls=log_calls,
        complete_stack=complete_stack,
        thresholds=Thresholds(rounding=args.rounding),
        engine=engine_options(args),
        layouts=layouts,  # type: ignore[arg-type]
        sizes=tuple(args.layout or ()),
        resume=args.resume,
    )


def draw(args: argparse.Namespace, request: GraphRequest, notes: list[str]) -> int:
    """Carry out a request and say how it went."""
    from twinprobe._cli.common import Progress, facts_of, print_json
    from twinprobe._graph.job import run_request

    gc.disable()  # nothing here makes circles of objects, and looking for them costs a twentieth of the time
    try:
        with Progress(enabled=not (args.quiet or args.json)) as progress:
            outcome = run_request(request, progress.advance)
    finally:
        gc.enable()
    outcome.notes[:0] = notes
    if args.json:
        print_json({"files": [str(file) for file in outcome.files], **facts_of(outcome)})
    elif not args.quiet:
        _print_lines(outcome)
    code = exit_code(args, outcome.summaries, outcome.failures)
    if not code and not (args.quiet or args.json):
        sys.stdout.write(f"{args.prog} graph ends successfully.\n")
    return code


def _print_lines(outcome: Outcome) -> None:
    from twinprobe._cli.common import say, warn
    from twinprobe._judge.summary import unread_rows

    warn(outcome.notes + outcome.failures)
    for summary in outcome.summaries:
        counts = ", ".join(f"{count} {verdict}" for verdict, count in summary.verdicts.items())
        first = "no divergence"
        if summary.unread:
            first = f"no divergence seen, but {unread_rows(summary.unread)}"
        if summary.first is not None:
            op, sentence = summary.first.op, summary.first.sentence
            first = f"first divergence: {op}: {sentence.removeprefix(op + ': ')}"
        say(f"{f'{summary.rank}: ' if summary.rank else ''}{counts}; {first}")
    say(*(f"graph saved: {file}" for file in outcome.files))


def add_folder_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of graph_visualize: the same graphs from flags, all steps and ranks in one file."""
    add = parser.add_argument
    add("-tp", "--target_path", type=path, required=True, metavar="DIR",
        help="run under test: the folder of one rank, of several ranks or of several steps")  # fmt: skip
    add("-gp", "--golden_path", type=path, metavar="DIR", help="reference run; without it, draw a single graph")
    add_common_arguments(parser, default_type="db")
    add("-tensor_log", "--is_print_compare_log", action="store_true", help="print one line per compared call")
    add("-progress_log", "--is_print_progress_log", action="store_true", help="has no effect: progress is always shown")
    merge = parser.add_argument_group(
        "merging the ranks of a parallel layout", "one value for a single graph; two values (target, golden) to compare"
    )
    for option, words in (
        ("rank_size", "number of ranks"), ("tp", "tensor parallel size"), ("pp", "pipeline parallel size"),
        ("vpp", "virtual pipeline stages (default: 1)"), ("cp", "context parallel size (default: 1)"),
        ("ep", "expert parallel size (default: 1)"),
    ):  # fmt: skip
        merge.add_argument(f"--{option}", type=int, nargs="+", metavar="N", help=words)
    merge.add_argument("--order", nargs="+", metavar="ORDER", help="order of the dimensions (default: tp-cp-ep-dp-pp)")


def run_folders(args: argparse.Namespace) -> int:
    """Draw what the flags of graph_visualize name."""
    from twinprobe._layout.layout import layouts_of_flags

    flags = {name: getattr(args, name) for name in ("rank_size", "tp", "pp", "vpp", "cp", "ep", "order")}
    request = build_request(
        args, args.target_path, args.golden_path, log_calls=args.is_print_compare_log, complete_stack=True,
        layouts=layouts_of_flags(flags, golden=args.golden_path is not None),
    )  # fmt: skip
    return draw(args, request, [])
