"""Entry point: choose the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from twinprobe import __version__
from twinprobe.cli.ending import BAD_INPUT, Terminated, complain, tidy_on_signals
from twinprobe.errors import TwinProbeError

INTERRUPTED, TERMINATED = 130, 143

# Each command is a module of this package with add_arguments(parser) and run(args) -> exit code.
COMMANDS = {
    "compare": "compare two recorded runs and say where they part",
    "align": "show how two models fit together, with no mapping file",
    "graph": "draw the model of one run, or of two compared, as told by a compare.json",
    "graph_visualize": "draw the model of one run, or of two compared, from their folders",
    "view": "open the graphs of a folder in the browser, or export one page",
    "merge_result": "gather chosen calls of all ranks from compare's results",
    "run": "record a script that was not written for it",
    "llm": "record and compare the inference of large models",
}
FRAMEWORKS = ("pytorch", "mindspore")
# Commands of the tools that TwinProbe replaces which it does not take over.
FOREIGN = frozenset({
    "acc_check", "multi_acc_check", "api_precision_compare", "overflow_check", "config_check", "data2db", "parse",
    "offline_dump", "install_deps", "run_ut", "multi_run_ut", "parallel_run_ut", "run_overflow_check", "nan_analyze",
    "code_mapping", "op_generate", "debug", "benchmark", "analyze", "transformer", "profile", "convert", "surgeon",
    "tensor-view", "errcheck", "opcheck", "transform",
})  # fmt: skip


def main(argv: Sequence[str] | None = None, *, prog: str = "twinprobe", allow_missing: bool = False) -> int:
    """Run a command; the exit code is 0, 1 (divergence, with --fail-on) or 2 (bad input, or an incomplete result).

    ``allow_missing`` stands in for the option of that name where the user gives none.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        args = _parse(words, prog)
        if getattr(args, "allow_missing", False) is None:
            args.allow_missing = allow_missing
        with tidy_on_signals(_without_framework(words, prog)[0]):
            return int(args.run(args))
    except TwinProbeError as error:
        complain(prog, str(error))
        return BAD_INPUT
    except Terminated:
        complain(prog, "terminated; finished results are kept")
        return TERMINATED
    except KeyboardInterrupt:
        complain(prog, "interrupted; finished results are kept")
        return INTERRUPTED
    except BrokenPipeError:
        return 0


def _parse(words: list[str], prog: str) -> argparse.Namespace:
    words = _without_framework(words, prog)
    parser = _parser(prog)
    if words and words[0] in FOREIGN:
        parser.error(f"'{words[0]}' is not part of TwinProbe; its commands are: {', '.join(COMMANDS)}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary.capitalize() + ".", allow_abbrev=False,
            formatter_class=_formatter(),
        )  # fmt: skip
        if words[:1] == [name]:
            module = import_module(f"twinprobe.cli.{name.replace('-', '_')}")
            module.add_arguments(command)
            command.set_defaults(run=module.run, prog=prog)
    return parser.parse_args(words)


def _without_framework(words: list[str], prog: str) -> list[str]:
    """Older tools wanted ``-f pytorch`` before the command; it is accepted and not needed."""
    if not words or words[0] not in ("-f", "--framework"):
        return words
    if len(words) < 2 or words[1] not in FRAMEWORKS:
        _parser(prog).error(f"argument -f/--framework: choose from {', '.join(FRAMEWORKS)}")
    return words[2:]


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Two runs of the same neural network give different numbers: where do they part, and why?",
        epilog=f"'{prog} COMMAND --help' explains a command.",
        allow_abbrev=False,
        formatter_class=_formatter(),
    )
    parser.add_argument("--version", action="version", version=f"twinprobe {__version__}")
    return parser


def _formatter() -> type[argparse.HelpFormatter]:
    if not sys.stdout.isatty():
        return argparse.HelpFormatter
    from rich_argparse import RichHelpFormatter

    return RichHelpFormatter
