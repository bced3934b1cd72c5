"""twinprobe replay and reproduce: one recorded call run again, and a folder that shows its fault to others."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from twinprobe._cli.common import local_path, path, positive
from twinprobe.errors import BadInput


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of replay, which reproduce has too."""
    add = parser.add_argument
    add("sides", type=path, nargs="+", metavar="RUN",
        help="target and golden, recorded with tensors; or the json result of compare that names them")  # fmt: skip
    add("--call", required=True, metavar="NAME",
        help="the call, as compare names it: Functional.gelu.1.forward, or the path of a module")  # fmt: skip
    add("--golden-call", metavar="NAME",
        help="its counterpart in golden (default: the call that compare pairs with it)")  # fmt: skip
    add("--memory-mb", type=positive, metavar="N",
        help="limit on the memory for replaying one call, in MiB (default: 2048)")  # fmt: skip
    if parser.prog.endswith("reproduce"):
        add("-o", "--output_path", type=local_path, default="./reproducer", metavar="DIR",
            help="folder for inputs, script and README.md (default: ./reproducer)")  # fmt: skip
        add("--shrink", action="store_true",
            help="cut the inputs down to the smallest slice that still shows the fault")  # fmt: skip
    else:
        add("--fail-on", action="store_true", help="exit with code 1 if a side is wrong by itself")
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print one JSON object instead of the summary")


def run(args: argparse.Namespace) -> int:
    """Replay a call, or write its reproducer."""
    from twinprobe._api import replay, reproduce

    if len(args.sides) > 2:
        raise BadInput(f"takes two paths at most, not {len(args.sides)}", hint="target first, then golden")
    room = None if args.memory_mb is None else args.memory_mb << 20
    options: dict[str, Any] = {"call": args.call, "golden_call": args.golden_call, "room": room}
    if "shrink" in args:
        written = reproduce(*args.sides, **options, output_path=args.output_path, shrink=args.shrink)
        _show(args, written.to_dict(), written.summary)
        return 0
    replayed = replay(*args.sides, **options)
    if not replayed.values:
        raise BadInput(replayed.sentence)
    _show(args, replayed.to_dict(), replayed.summary)
    return int(args.fail_on and replayed.off != "neither")


def _show(args: argparse.Namespace, document: dict[str, Any], summary: str) -> None:
    from twinprobe._cli.common import print_json
    from twinprobe._report.console import visible

    if args.json:
        print_json(document)
    elif not args.quiet:
        sys.stdout.write(visible(summary, keep_newlines=True) + "\n")
