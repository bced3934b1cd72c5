"""Where a command's work runs: the same arguments for every command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinprobe.scale.engine import EngineOptions

ENGINES = ("auto", "inline", "process", "ray")


def add_engine_arguments(parser: argparse.ArgumentParser, *, resume: bool = False, slices: bool = False) -> None:
    """Declare the engine's arguments; ``resume`` and ``slices`` where the command knows them."""
    add = parser.add_argument_group("where the work runs").add_argument
    add("--engine", choices=ENGINES, default="auto",
        help="this process, worker processes or a Ray cluster; auto: processes where they pay")  # fmt: skip
    add("--workers", type=_positive, metavar="N", help="worker processes, or pieces at a time on a cluster "
        "(default: all cores)")  # fmt: skip
    add("--ray-address", metavar="ADDRESS",
        help="a running Ray cluster, HOST:PORT or auto (default: RAY_ADDRESS, else one started here)")  # fmt: skip
    if slices:
        add("--slice-mb", type=_positive, metavar="N",
            help="tensors of a rank are cut into slices of so many MiB (default: 1024, or 8192 where every worker "
            "has at least 4 ranks)")  # fmt: skip
    if resume:
        add("--resume", action="store_true", help="go on with the same command where it was interrupted")


def engine_options(args: argparse.Namespace) -> EngineOptions:
    """The engine that the arguments ask for."""
    from twinprobe.scale.engine import EngineOptions

    slice_mb = getattr(args, "slice_mb", None)
    return EngineOptions(args.engine, args.workers, args.ray_address, slice_mb and slice_mb << 20)


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)
