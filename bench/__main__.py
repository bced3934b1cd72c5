"""python bench NAME [options]: run one of the benchmarks in this folder."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NOT_BENCHMARKS = {"__main__", "make_dumps", "make_runs", "measure_command", "rivals"}


def main() -> None:
    """Run the named benchmark, or say which there are."""
    folder = Path(__file__).parent
    names = sorted({path.stem for path in folder.glob("*.py")} - NOT_BENCHMARKS | {"judge"})
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        sys.exit(f"usage: python bench NAME [options]\nNAME is one of: {', '.join(names)}")
    sys.path.insert(0, str(folder))
    module = f"{sys.argv[1]}.__main__" if (folder / sys.argv[1]).is_dir() else sys.argv[1]
    importlib.import_module(module).main(sys.argv[2:])


if __name__ == "__main__":
    main()
