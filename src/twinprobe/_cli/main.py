"""Entry point: choose the command, run it, turn errors into one line and an exit code."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from twinprobe import __version__
from twinprobe._scale import engine as interrupts
from twinprobe.errors import TwinProbeError, did_you_mean

if TYPE_CHECKING:
    from twinprobe._judge.summary import Summary

# How a command ends: its exit code, and SIGTERM, after which as after Ctrl-C only what is finished stays.

BAD_INPUT = 2

# Commands that share a module with another one.
_HOMES = {
    "reproduce": ("replay", "add_arguments", "run"),
    "graph_visualize": ("graph", "add_folder_arguments", "run_folders"),
}
# The others run somebody else's program, whose signals are its own, or a server with nothing to clean up.
_TIDY = frozenset({
    "compare", "find", "align", "graph", "graph_visualize", "merge_result", "sketch", "replay", "reproduce",
})  # fmt: skip


# Commands that write a folder of results, and the argument that names it.
_RESULTS = {
    "compare": "output_path", "find": "output_path", "align": "output_path", "graph": "output_path",
    "graph_visualize": "output_path", "merge_result": "output_dir",
}  # fmt: skip


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


@contextmanager
def tidy_on_signals(command: str) -> Iterator[None]:
    """Raise Terminated where SIGTERM would end the process on the spot; see that no Ctrl-C gets lost."""
    ours = command in _TIDY and threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in _HANDLERS} if ours else {}
    taken = [number for number, handler in before.items() if handler is _DEFAULTS[number]]
    for number in taken:
        signal.signal(number, _HANDLERS[number])
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, before[number])
        interrupts.forget()


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise interrupts.note(KeyboardInterrupt())


def _terminate(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough
    if "multiprocessing.process" in sys.modules:
        from multiprocessing import active_children

        for child in active_children():  # waiting for them could take longer than a job has before it is killed
            child.terminate()
    raise interrupts.note(Terminated())


_HANDLERS = {signal.SIGTERM: _terminate, signal.SIGINT: _interrupt}
_DEFAULTS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}


def add_allow_missing(parser: argparse.ArgumentParser) -> None:
    """Declare the option that accepts an incomplete result."""
    parser.add_argument(
        "--allow-missing", action=argparse.BooleanOptionalAction, default=None,
        help="exit with code 0 even if the result lacks something you asked for",
    )  # fmt: skip


def exit_code(args: argparse.Namespace, summaries: Sequence[Summary], lost: Sequence[str]) -> int:
    """2 where the result lacks something (``lost`` says what), 1 where --fail-on found such a verdict, else 0."""
    problem = ""
    if lost and not args.allow_missing:
        more = f" (and {len(lost) - 1} more)" if len(lost) > 1 else ""
        problem = f"the result is incomplete: {lost[0]}{more}"
    elif fail_on := getattr(args, "fail_on", None):
        bad = {"divergence": (), "error": ("error",), "warning": ("error", "warning")}[fail_on]
        if any(summary.first is not None or any(summary.verdicts[name] for name in bad) for summary in summaries):
            return 1
        unread = sum(summary.unread for summary in summaries)
        if unread and not args.allow_missing:
            tensors = "1 tensor" if unread == 1 else f"{unread:,} tensors"
            problem = f"--fail-on {fail_on}: {tensors} could not be read, so whether the runs agree is unknown"
    if not problem:
        return 0
    complain(args.prog, f"{problem}; --allow-missing accepts that")
    return BAD_INPUT


def complain(prog: str, text: str) -> None:
    """Write an error to standard error, in one line."""
    from twinprobe._report.console import visible

    sys.stderr.write(f"{prog}: error: {visible(text, keep_newlines=True)}\n")


INTERRUPTED, TERMINATED = 130, 143

# Each command is a module of this package with add_arguments(parser) and run(args) -> exit code.
COMMANDS = {
    "compare": "compare two recorded runs and find where they diverge",
    "find": "run two programs and find the first step and the call where they diverge",
    "align": "pair two models without a mapping file and show how they match",
    "graph": "draw the model of one run, or of two compared runs, from a compare.json",
    "graph_visualize": "draw the model of one run, or of two compared runs, from their folders",
    "view": "open the graphs of a folder in the browser, or export them as one page",
    "merge_result": "collect selected calls of all ranks from the results of compare",
    "replay": "run one recorded call again and show which side is wrong by itself",
    "reproduce": "write a folder with one call's inputs and a short script that shows its fault",
    "sketch": "reduce checkpoints and arrays to a small file that can still be compared",
    "run": "record an unmodified script",
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

# Words of the Python side that people try as commands.
_INSTEAD = {
    "record": "record a script with 'run', or call twinprobe.record in your program; ",
    "auto_diff": "auto_diff is a Python function, twinprobe.auto_diff(base, raw, inputs); ",
}

_INVALID = re.compile(r"^argument (?P<what>[^:]+): invalid choice: '?(?P<word>[^' ]*)'? \(choose from (?P<known>.*)\)$")


class Parser(argparse.ArgumentParser):
    """Says what was probably meant where a flag, a command or a choice does not exist."""

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Name the words that no argument of this command takes."""
        known = [flag for action in self._actions for flag in action.option_strings]
        flag = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
        self.error(f"unrecognized arguments: {' '.join(unknown)}; {did_you_mean(flag, known) if flag else ''}")

    def error(self, message: str) -> NoReturn:
        """One line, without the whole usage; exit code 2."""
        invalid = _INVALID.match(message)
        if invalid:
            near = did_you_mean(invalid["word"], re.findall(r"[\w.-]+", invalid["known"]))
            message += f"; {near}" if near else ""
        self.exit(2, f"{self.prog}: error: {message.rstrip('; ')}\n{self.prog} --help lists the options\n")


def main(
    argv: Sequence[str] | None = None, *, prog: str = "twinprobe", allow_missing: bool = False, pair: str = "place"
) -> int:
    """Run a command; the exit code is 0, 1 (divergence, with --fail-on) or 2 (bad input, or an incomplete result).

    ``allow_missing`` and ``pair`` stand in for the options of these names where the user gives none.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        sys.stdout.write(overview(prog))
        return 0
    try:
        args = _parse(words, prog)
        if getattr(args, "allow_missing", False) is None:
            args.allow_missing = allow_missing
        args.usual_pair = pair
        with tidy_on_signals(_without_framework(words, prog)[0]):
            code = int(args.run(args))
            if args.results is not None:
                from twinprobe._report.reports import write_index

                with suppress(TwinProbeError, OSError):  # the results are there without it
                    write_index(getattr(args, args.results))
            return code
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
    first = words[0] if words else ""
    if first in FOREIGN:
        parser.error(f"'{first}' is not part of TwinProbe; the commands are: {', '.join(COMMANDS)}")
    if first and not first.startswith("-") and first not in COMMANDS:
        near = _INSTEAD.get(first) or did_you_mean(first, COMMANDS)
        parser.error(f"there is no command {first!r}; {near}the commands are: {', '.join(COMMANDS)}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(
            name, help=summary, description=summary.capitalize() + ".", allow_abbrev=False,
            formatter_class=_formatter(),
        )  # fmt: skip
        command.set_defaults(prog=prog, parser=command, results=_RESULTS.get(name))
        if first in (name, "--completion"):  # each is a module to import
            home, declare, run = _HOMES.get(name, (name, "add_arguments", "run"))
            module = import_module(f"twinprobe._cli.{home}")
            getattr(module, declare)(command)
            command.set_defaults(run=getattr(module, run))
    if first == "--completion":
        commands_known = {"commands": commands.choices, "results": None}
        return argparse.Namespace(run=_complete, shell=words[1:], prog=prog, parser=parser, **commands_known)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        args.parser.refuse(unknown)
    return args


def _complete(args: argparse.Namespace) -> int:
    """Print a script that teaches a shell the commands, their flags, and the values of flags that have few."""
    if len(args.shell) != 1 or args.shell[0] not in SHELLS:
        args.parser.error(f"argument --completion: choose from {', '.join(SHELLS)}")
    name = re.sub(r"\W", "_", args.prog)
    writer = {"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell[0]]
    sys.stdout.write("\n".join(writer(args.prog, name, args.commands)) + "\n")
    return 0


def _without_framework(words: list[str], prog: str) -> list[str]:
    """Older tools wanted ``-f pytorch`` before the command; it is accepted and not needed."""
    if not words or words[0] not in ("-f", "--framework"):
        return words
    if len(words) < 2 or words[1] not in FRAMEWORKS:
        _parser(prog).error(f"argument -f/--framework: choose from {', '.join(FRAMEWORKS)}")
    return words[2:]


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=prog,
        description="Two runs of the same neural network give different numbers: where do they diverge, and why?",
        epilog=f"'{prog} COMMAND --help' explains a command.",
        allow_abbrev=False,
        formatter_class=_formatter(),
    )
    parser.add_argument("--completion", metavar="SHELL", help="print a completion script for bash, zsh or fish")
    parser.add_argument("--version", action="version", version=f"twinprobe {__version__}")
    return parser


def _formatter() -> type[argparse.HelpFormatter]:
    if not sys.stdout.isatty():
        return argparse.HelpFormatter
    from rich_argparse import RichHelpFormatter

    return RichHelpFormatter


# What helps somebody at the prompt: the jobs that bare ``twinprobe`` shows, suggestions, shell completion.

# The jobs, each with something that can be typed as it stands.
_JOBS = (
    ("run two programs and find where they diverge", '{prog} find "python b.py" "python a.py" -o out',
     "the program under test first, then the reference; neither needs a change"),
    ("record a run", "{prog} run --config config.json train.py",
     "or, in the program: with twinprobe.record(model, 'run_a'): ..."),
    ("compare two runs and find where they diverge", "{prog} compare run_b run_a",
     "target (under test) first, then golden (the reference); checkpoints and folders of arrays work too"),
    ("see both models side by side", "{prog} graph_visualize -tp run_b -gp run_a -o out", "then: {prog} view out"),
    ("compare two live models, layer by layer", "python: twinprobe.auto_diff(base, raw, inputs)",
     "base is the reference, raw the model under test"),
)  # fmt: skip
SHELLS = ("bash", "zsh", "fish")


def overview(prog: str) -> str:
    """What bare ``twinprobe`` prints."""
    lines = ["Two runs of the same neural network give different numbers: where do they diverge, and why?", ""]
    for title, example, remark in _JOBS:
        lines += [f"  {title}", f"      {example.format(prog=prog)}", f"          {remark.format(prog=prog)}"]
    lines += ["", f"Commands: {', '.join(COMMANDS)}.", f"'{prog} COMMAND --help' explains a command."]
    return "\n".join(lines) + "\n"


def _flags(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], list[str], str]]:
    """Each flag's spellings, the values it may have, and its help."""
    for action in parser._actions:
        if action.option_strings and action.help is not argparse.SUPPRESS:
            yield list(action.option_strings), [str(value) for value in action.choices or ()], action.help or ""


def _bash(prog: str, name: str, parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    yield f"# {prog} for bash: source <({prog} --completion bash)"
    yield f"_{name}() {{"
    yield '  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} words=""'
    yield '  case "${COMP_WORDS[1]} $before" in'
    for command, parser in parsers.items():
        for flags, values, _ in _flags(parser):
            for flag in flags if values else ():
                yield f'    "{command} {flag}") COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$current")); return;;'
    yield "  esac"
    yield '  if [ "$COMP_CWORD" = 1 ]; then'
    yield f'    words="{" ".join(parsers)} --help --version --completion"'
    yield '  elif [[ $current == -* ]]; then case "${COMP_WORDS[1]}" in'
    for command, parser in parsers.items():
        yield f'    {command}) words="{" ".join(flag for flags, _, _ in _flags(parser) for flag in flags)}";;'
    yield f'    --completion) words="{" ".join(SHELLS)}";;'
    yield "  esac; fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield f"complete -o default -F _{name} {prog}"


def _zsh(prog: str, name: str, parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    def quoted(text: str) -> str:
        return re.sub(r"['\[\]:]", "", text)

    yield f"#compdef {prog}"
    yield f"# {prog} for zsh: source <({prog} --completion zsh), after compinit"
    yield f"_{name}() {{"
    yield f"  if (( CURRENT == 2 )); then compadd {' '.join(parsers)}; return; fi"
    yield "  case $words[2] in"
    for command, parser in parsers.items():
        listed = []
        for flags, values, words in _flags(parser):
            given = f":value:({' '.join(values)})" if values else ""
            listed += [f"'{flag}[{quoted(words)}]{given}'" for flag in flags]
        yield f"    {command}) _arguments {' '.join(listed)} '*:file:_files';;"
    yield "  esac"
    yield "}"
    yield f"compdef _{name} {prog}"


def _fish(prog: str, _name: str, parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    def quoted(text: str) -> str:
        return text.replace("\\", "\\\\").replace("'", "\\'")

    yield f"# {prog} for fish: {prog} --completion fish | source"
    for command, parser in parsers.items():
        text = quoted(parser.description or "")
        yield f"complete -c {prog} -n __fish_use_subcommand -f -a {command} -d '{text}'"
        for flags, values, words in _flags(parser):
            spelled = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-{'s' if len(flag) == 2 else 'o'} {flag[1:]}"
                for flag in flags
            )
            given = f" -x -a '{' '.join(values)}'" if values else ""
            yield (
                f"complete -c {prog} -n '__fish_seen_subcommand_from {command}' {spelled}{given} -d '{quoted(words)}'"
            )
