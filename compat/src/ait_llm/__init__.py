"""The ait command, answered by TwinProbe."""

from __future__ import annotations

from msprobe import warn_of_the_real_tool
from twinprobe.cli.main import main as _main


def main() -> int:
    """The ait command."""
    warn_of_the_real_tool("ait-llm", "ait")
    return _main(prog="ait")
