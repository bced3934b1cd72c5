"""python bench NAME [options]: run one of the benchmarks in this folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NOT_BENCHMARKS = {"__main__", "make_dumps", "make_runs", "measure_command", "rivals"}


def main() -> None:
    """Run the named benchmark, or say which there are."""
    folder = Path(__file__).parent
    names = sorted(path.stem for path in folder.glob("*.py") if path.stem not in NOT_BENCHMARKS)
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python bench NAME [options]\nNAME is one of: {', '.join(names)}")
    sys.path.insert(0, str(folder))
    importlib.import_module(sys.argv[1]).main(sys.argv[2:])


if __name__ == "__main__":
    main()
