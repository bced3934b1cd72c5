"""Many ranks: 64 ranks cost at most 64 / cores times one rank, in flat memory.

python bench ranks [--ranks 64] [--calls 20000]
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from make_dumps import statistics_run
from measure_command import cost_of, own_command, table


def main(arguments: Sequence[str]) -> None:
    """Make the ranks, compare one and all of them, print the table."""
    parser = argparse.ArgumentParser(prog="bench ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--calls", type=int, default=20_000)
    options = parser.parse_args(arguments)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        for side in ("t", "g"):
            statistics_run(
                folder / side / "rank0", options.calls, shift_from=options.calls // 2 if side == "t" else None
            )
            for rank in range(1, options.ranks):
                _link(folder / side / "rank0", folder / side / f"rank{rank}")
        command = [*own_command(), "compare", "-tp", str(folder / "t"), "-gp", str(folder / "g")]
        command += ["-o", str(folder / "out"), "--format", "parquet", "--quiet"]
        one = cost_of([*command, "--rank", "0"])
        many = cost_of(command, repeat=1)
    limit = one.seconds * options.ranks / cores
    rows = [
        ["1 rank", f"{one.seconds:.2f} s", f"{one.megabytes:.0f} MB", "-"],
        [f"{options.ranks} ranks", f"{many.seconds:.2f} s", f"{many.megabytes:.0f} MB", f"{many.seconds / limit:.2f}"],
    ]
    title = f"compare, {options.calls:,} calls a rank, {cores} cores (share of the limit: ranks / cores times one rank)"
    table(title, ["work", "time", "largest process", "share of the limit"], rows)


def _link(source: Path, target: Path) -> None:
    target.mkdir()
    for path in source.iterdir():
        os.link(path, target / path.name)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
