"""Argument types shared by the commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from twinprobe._runs.places import place, remote
from twinprobe.errors import BadInput

if TYPE_CHECKING:
    from twinprobe._scale.engine import EngineOptions

path = place  # a path or URL as the user typed it
FORMATS = ("xlsx", "csv", "parquet", "json", "html")


def local_path(text: str) -> Path:
    """A path that must be on this machine."""
    found = path(text)
    if remote(found) is not None:
        raise BadInput("is a URL, but this must be a path on this machine", where=text)
    return found


def formats(text: str) -> tuple[str, ...]:
    """A comma list of result formats."""
    return _chosen(text, FORMATS)


def formats_or_dataset(text: str) -> tuple[str, ...]:
    """A comma list of result formats; ``dataset`` is all ranks in one, cut by step and rank."""
    return _chosen(text, (*FORMATS, "dataset"))


def _chosen(text: str, known: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(name.strip().lower() for name in text.split(",") if name.strip())
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise argparse.ArgumentTypeError(f"{', '.join(wrong) or 'nothing'}: choose from {', '.join(known)}")
    return tuple(dict.fromkeys(names))


def numbers(text: str) -> frozenset[int]:
    """A comma list of rank or step numbers; ranges such as 4-6 are understood."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 0,1 or 0-3")
        found.update(range(int(first), int(last if dash else first) + 1))
    return frozenset(found)


def seconds(text: str) -> float:
    """A time in seconds."""
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return found


# How calls of two runs are paired: the same arguments for compare and graph.


def add_pair_arguments(add: Callable[..., object]) -> None:
    """Declare what governs the pairing by names."""
    add("--pair", choices=("place", "numbers"),
        help="calls of equal name: by their place in the model (default), or by their call number")  # fmt: skip
    add("--align", choices=("auto", "names", "none"), default="auto",
        help="what names leave unpaired: align where names do not meet (auto), nothing (names), or use mapping files "
        "alone (none)")  # fmt: skip
    add("--alignment", type=path, metavar="JSON", help="by an alignment.json of twinprobe align, edited or not")


def pair_rule(args: argparse.Namespace) -> Literal["place", "numbers"]:
    """The rule for equal names; BadInput where options contradict each other."""
    from twinprobe.errors import BadInput

    instead = {
        "-fm": args.fuzzy_match,
        "--alignment": args.alignment is not None,
        "--align none": args.align == "none",
        "-lm without a file": args.layer_mapping is True,
    }
    asked = [flag for flag, is_given in instead.items() if is_given]
    if args.pair is not None and asked:
        raise BadInput(f"--pair {args.pair} contradicts {asked[0]}", hint=f"leave out --pair or {asked[0]}")
    if args.fuzzy_match and len(asked) > 1 and asked[1] != "-lm without a file":
        raise BadInput(f"-fm contradicts {asked[1]}", hint=f"leave out -fm or {asked[1]}")
    if args.layer_mapping is True:
        return "numbers"
    rule: Literal["place", "numbers"] = args.pair or args.usual_pair
    return rule


# Where a command's work runs: the same arguments for every command.

ENGINES = ("auto", "inline", "process", "ray")


def add_engine_arguments(parser: argparse.ArgumentParser, *, resume: bool = False, slices: bool = False) -> None:
    """Declare the engine's arguments; ``resume`` and ``slices`` where the command knows them."""
    add = parser.add_argument_group("where the work runs").add_argument
    add("--engine", choices=ENGINES, default="auto",
        help="where to run: in this process, in worker processes or on a Ray cluster (default: auto)")  # fmt: skip
    add("--workers", type=positive, metavar="N", help="worker processes, or concurrent tasks on a cluster "
        "(default: all cores)")  # fmt: skip
    add("--ray-address", metavar="ADDRESS",
        help="a running Ray cluster, HOST:PORT or auto (default: RAY_ADDRESS, else one started here)")  # fmt: skip
    if slices:
        add("--slice-mb", type=positive, metavar="N",
            help="split the tensors of a rank into slices of N MiB (default: 1024, or 8192 if every worker "
            "has at least 4 ranks)")  # fmt: skip
    if resume:
        add("--resume", action="store_true", help="resume an interrupted run of the same command")


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The engine that the arguments ask for."""
    from twinprobe._scale.engine import EngineOptions

    slice_mb = getattr(args, "slice_mb", None)
    return EngineOptions(args.engine, args.workers, args.ray_address, slice_mb and slice_mb << 20)


def positive(text: str) -> int:
    """A whole number from 1 up."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)
