"""twinprobe find: two programs in, the first call that differs out."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from twinprobe._cli.common import path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    add("target", metavar="TARGET",
        help='the command under test, in quotes: "python train.py --backend b"; or a recording')  # fmt: skip
    add("golden", metavar="GOLDEN",
        help="the reference command, or a recording; the same command twice checks if it is deterministic")  # fmt: skip
    add("-o", "--output_path", type=path, default="./output", metavar="DIR",
        help="folder for the recordings and the page (default: ./output)")  # fmt: skip
    add("--steps", type=_count, metavar="N", help="watch only the first N steps")
    add("--from-step", type=_count, default=0, metavar="N",
        help="the number of the first step, for commands that start from your own checkpoint")  # fmt: skip
    add("--seed", type=_count, default=None, metavar="N", help="the seed for programs that set none (default: 1234)")
    add("--keep-seeds", action="store_true", help="set no seeds at all")
    add("--exact", action="store_true", help="every bit counts, as it does for one program run twice")
    add("--confirm", action="store_true",
        help="run the target again with golden's values where the difference starts: does it disappear?")  # fmt: skip
    add("--resume", action="store_true", help="resume an interrupted search")
    add("--fail-on", nargs="?", const="divergence", choices=("divergence",), help="exit with code 1 if the runs differ")
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print one JSON object instead of the summary")


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 up")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Search, and say what was found."""
    from twinprobe._cli.common import print_json, say
    from twinprobe._find.search import PAGE, SEED, Request, search

    def tell(line: str) -> None:
        if not (args.quiet or args.json):
            say(line)
            sys.stdout.flush()

    seed = None if args.keep_seeds else SEED if args.seed is None else args.seed
    request = Request(
        args.target, args.golden, args.output_path, seed=seed, from_step=args.from_step, steps=args.steps,
        exact=args.exact, resume=args.resume, confirm=args.confirm,
    )  # fmt: skip
    result = search(request, tell)
    if args.json and not args.quiet:
        print_json(asdict(result))
    tell(f"written to {args.output_path / PAGE}")
    return 1 if args.fail_on and not result.agrees else 0
