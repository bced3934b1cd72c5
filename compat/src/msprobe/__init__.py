"""The msprobe command and imports, answered by TwinProbe."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

from twinprobe._cli.main import main as _main


def warn_of_the_real_tool(distribution: str, command: str) -> None:
    """Say so when the tool whose name this is stands in the same environment."""
    try:
        found = version(distribution)
    except PackageNotFoundError:
        return
    sys.stderr.write(
        f"{command}: {distribution} {found} is installed too, but this is TwinProbe's {command}"
        " (pip uninstall twinprobe-compat gives it back)\n"
    )


def main() -> int:
    """The msprobe command."""
    warn_of_the_real_tool("mindstudio-probe", "msprobe")
    # As the tool itself: a lost rank is a warning, and equal numbers belong together.
    return _main(prog="msprobe", allow_missing=True, pair="numbers")
