"""twinprobe graph_visualize: the same graphs from flags, all steps and ranks in one file."""

from __future__ import annotations

import argparse

from twinprobe._cli.graph import add_common_arguments, build_request, draw
from twinprobe._cli.options import path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add(
        "-tp",
        "--target_path",
        type=path,
        required=True,
        metavar="DIR",
        help="run under test: the folder of one rank, of several ranks or of several steps",
    )
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


def run(args: argparse.Namespace) -> int:
    """Draw what the flags name."""
    from twinprobe._layout.layout import layouts_of_flags

    flags = {name: getattr(args, name) for name in ("rank_size", "tp", "pp", "vpp", "cp", "ep", "order")}
    request = build_request(
        args, args.target_path, args.golden_path, log_calls=args.is_print_compare_log, complete_stack=True,
        layouts=layouts_of_flags(flags, golden=args.golden_path is not None),
    )  # fmt: skip
    return draw(args, request, [])
