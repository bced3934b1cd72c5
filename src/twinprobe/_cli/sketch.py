"""twinprobe sketch: a small file that stands for checkpoints and arrays when they are compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from twinprobe._cli.common import path, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("files", type=path, nargs="+", metavar="FILE", help="safetensors, npz, npy or pt files")
    add(
        "-o",
        "--output",
        type=path,
        metavar="FILE",
        help="the file to write, *.sketch (default: named as the first FILE)",
    )
    add("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Sketch, and say how large the result is."""
    from twinprobe._compare.weights import write_sketches
    from twinprobe._runs.sketches import SUFFIX
    from twinprobe.errors import BadInput

    output: Path = args.output or Path(args.files[0].with_suffix(SUFFIX).name)
    if output.suffix != SUFFIX:
        raise BadInput(f"the name must end in {SUFFIX}", where=output)
    if args.output is None and output.exists():  # perhaps another site's
        raise BadInput("exists already; -o names the file to write", where=output)
    count = write_sketches(args.files, output)
    if not args.quiet:
        say(f"{count} tensors, {output.stat().st_size / 1000:.1f} kB: {output}")
    return 0
