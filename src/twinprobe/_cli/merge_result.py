"""twinprobe merge_result: chosen calls of all ranks side by side."""

from __future__ import annotations

import argparse
import sys

from twinprobe._cli.common import add_engine_arguments, engine_options, path
from twinprobe._cli.main import add_allow_missing, exit_code


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("-i", "--input_dir", type=path, required=True, metavar="DIR", help="folder with the results of compare")
    add("-o", "--output_dir", type=path, required=True, metavar="DIR", help="folder for the merged table")
    add("-config", "--config-path", type=path, required=True, metavar="YAML", help="which calls and metrics to merge")
    add_allow_missing(parser)
    add("--quiet", action="store_true", help="print nothing but errors")
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Merge, and say what was found."""
    from twinprobe._cli.common import Progress, say, warn
    from twinprobe._compare.merge.job import merge_results

    with Progress(enabled=not args.quiet) as progress:
        outcome = merge_results(
            args.input_dir, args.output_dir, args.config_path, engine=engine_options(args), resume=args.resume,
            progress=lambda done, total: progress.advance("ranks", done, total),
        )  # fmt: skip
    if not args.quiet:
        warn(outcome.notes + outcome.failures)
        say(*map(str, outcome.disagreements), f"{len(outcome.ranks)} ranks, {outcome.rows} rows: {outcome.path}")
    code = exit_code(args, [], outcome.failures)
    if not code and not args.quiet:
        sys.stdout.write(f"{args.prog} merge_result ends successfully.\n")
    return code
