"""The ait command, answered by TwinProbe."""

from __future__ import annotations

from typing import Any

from msprobe import warn_of_the_real_tool
from twinprobe._cli.main import main as _main

__all__ = ["DumpConfig", "dump_data", "main", "register_hook"]


def __getattr__(name: str) -> Any:
    """The recorder is imported on first use: the command alone needs no torch."""
    if name in ("DumpConfig", "dump_data", "register_hook"):
        import twinprobe.llm

        return getattr(twinprobe.llm, name)
    raise AttributeError(name)


def main() -> int:
    """The ait command."""
    warn_of_the_real_tool("ait-llm", "ait")
    return _main(prog="ait", allow_missing=True)  # as the tool itself: a lost rank is a warning
