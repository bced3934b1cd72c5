"""twinprobe align: pair two models without a mapping file."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from twinprobe._cli.common import path
from twinprobe.errors import NothingToCompare

if TYPE_CHECKING:
    from twinprobe._align.auto.alignment import Alignment
    from twinprobe._runs.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("target", type=path, metavar="A", help="run under test: dump.json or its folder")
    add("golden", type=path, metavar="B", help="reference run: dump.json or its folder")
    add("-o", "--output_path", type=path, default="./output", metavar="DIR",
        help="folder for alignment.json, the mapping files and alignment.html (default: ./output)")  # fmt: skip
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print one JSON object instead of the summary")


def run(args: argparse.Namespace) -> int:
    """Align, write the files, and say how the two fit."""
    from twinprobe._align.auto.alignment import to_document
    from twinprobe._api import align
    from twinprobe._cli.common import print_json, warn
    from twinprobe._report.console import visible

    aligned = align(args.target, args.golden)
    _refuse_nothing(aligned.alignment, aligned.target, aligned.golden)
    files = aligned.save(args.output_path)
    if args.quiet:
        return 0
    warn([*aligned.target.notes, *aligned.golden.notes, *aligned.alignment.notes])
    if args.json:
        print_json({**to_document(aligned.alignment), "files": [str(file) for file in files]})
        return 0
    sys.stdout.write(aligned.summary + "\n")
    for file in files:
        sys.stdout.write(f"saved: {visible(str(file))}\n")
    sys.stdout.write(f"{args.prog} align ends successfully.\n")
    return 0


def _refuse_nothing(alignment: Alignment, target: Run, golden: Run) -> None:
    if alignment.relations:
        return
    score = f"best score {alignment.best_score:.1f}" if alignment.best_score > -1e6 else "no two layers are alike"
    modules = alignment.modules[0]
    what = f"0 of {modules} modules" if modules else f"0 of {len(target.ops)} calls"
    raise NothingToCompare(
        f"{what} could be aligned with {golden.path}; {score}", where=target.path,
        hint="are these two runs of the same model?",
    )  # fmt: skip
