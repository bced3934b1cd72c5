"""twinprobe run: record an unmodified script."""

from __future__ import annotations

import argparse
import os


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--config", metavar="JSON", help="what to record (default: the file named by TWINPROBE_CONFIG)")
    parser.add_argument("-m", dest="as_module", action="store_true", help="SCRIPT is the name of a module")
    parser.add_argument("script", metavar="SCRIPT", nargs="?", help="the program to run")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="its arguments")


def run(args: argparse.Namespace) -> int:
    """Run the script under the recorder; its exit code is ours."""
    from twinprobe._record.run_script import CONFIG_VARIABLE, run_script

    if args.config:
        os.environ[CONFIG_VARIABLE] = args.config  # for processes that the script starts as well
    script = [args.script] if args.script else []
    return run_script([*(["-m"] if args.as_module else []), *script, *args.arguments])
