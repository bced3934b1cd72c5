"""twinprobe align: pair two models without a mapping file."""

from __future__ import annotations

import argparse
import sys

from twinprobe._cli.common import path
from twinprobe.errors import NothingToCompare


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
    from twinprobe._cli.common import print_json, say, warn

    aligned = align(args.target, args.golden)
    found, target = aligned.alignment, aligned.target
    if not found.relations:
        score = f"best score {found.best_score:.1f}" if found.best_score > -1e6 else "no two layers are alike"
        what = f"0 of {found.modules[0]} modules" if found.modules[0] else f"0 of {len(target.ops)} calls"
        raise NothingToCompare(
            f"{what} could be aligned with {aligned.golden.path}; {score}", where=target.path,
            hint="are these two runs of the same model?",
        )  # fmt: skip
    files = aligned.save(args.output_path)
    if args.quiet:
        return 0
    warn([*aligned.target.notes, *aligned.golden.notes, *aligned.alignment.notes])
    if args.json:
        print_json({**to_document(aligned.alignment), "files": [str(file) for file in files]})
        return 0
    sys.stdout.write(aligned.summary + "\n")
    say(*(f"saved: {file}" for file in files))
    sys.stdout.write(f"{args.prog} align ends successfully.\n")
    return 0
