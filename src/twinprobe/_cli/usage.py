"""What helps somebody at the prompt: the jobs that bare ``twinprobe`` shows, suggestions, shell completion."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator

# The five jobs, each with something that can be typed as it stands.
_JOBS = (
    ("record a run", "{prog} run train.py", "or, in the program: with twinprobe.record(model, 'run_a'): ..."),
    ("find where two runs part", "{prog} compare run_b run_a",
     "target (under test) first, then golden (the reference); checkpoints and folders of arrays work too"),
    ("pair models whose names differ", "{prog} align run_b run_a", "writes a mapping that compare can use"),
    ("see both models side by side", "{prog} graph_visualize -tp run_b -gp run_a -o out", "then: {prog} view out"),
    ("compare two live models, layer by layer", "python: twinprobe.auto_diff(base, raw, inputs)",
     "base is the reference, raw the model under test"),
)  # fmt: skip
SHELLS = ("bash", "zsh", "fish")


def overview(prog: str, commands: Iterable[str]) -> str:
    """What bare ``twinprobe`` prints."""
    lines = ["Two runs of the same neural network give different numbers: where do they diverge, and why?", ""]
    for title, example, remark in _JOBS:
        lines += [f"  {title}", f"      {example.format(prog=prog)}", f"          {remark.format(prog=prog)}"]
    lines += ["", f"Commands: {', '.join(commands)}.", f"'{prog} COMMAND --help' explains a command."]
    return "\n".join(lines) + "\n"


def completion(shell: str, prog: str, parsers: dict[str, argparse.ArgumentParser]) -> str:
    """A script that teaches a shell the commands, their flags, and the values of flags that have few."""
    name = re.sub(r"\W", "_", prog)
    writer = {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]
    return "\n".join(writer(prog, name, parsers)) + "\n"


def _flags(parser: argparse.ArgumentParser) -> Iterator[tuple[list[str], list[str], str]]:
    """Each flag's spellings, the values it may have, and its help."""
    for action in parser._actions:
        if action.option_strings and action.help is not argparse.SUPPRESS:
            yield list(action.option_strings), [str(one) for one in action.choices or ()], action.help or ""


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
