"""What drawing two compared runs costs: time, memory, size of the file, and how they grow.

    python bench graph [--nodes 5000 23455 100000] [--reference ../shared/reference]

The runs are a real small transformer recorded twice, one side disturbed, repeated in blocks until the graph has at
least so many nodes a side. The mark is what msprobe 26.2.0 graph_visualize took for 23,455 nodes a side.
"""

from __future__ import annotations

import argparse
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from make_runs import repeat_dump
from measure_command import cost_of, own_command, table

MARK_NODES, MARK_SECONDS, MARK_MEGABYTES, MARK_FILE = 23_455, 29.2, 800.0, 140.6
NODES_PER_ENTRY = 1.0095


def main(argv: Sequence[str] | None = None) -> None:
    """Draw graphs of several sizes and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[5_000, MARK_NODES, 100_000])
    parser.add_argument("--form", choices=("db", "vis"), default="db")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--reference", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "reference")
    arguments = parser.parse_args(argv)
    rows = [_measure(count, arguments) for count in arguments.nodes]
    head = [
        "nodes a side",
        "seconds",
        "MB, larger process",
        "MB file",
        "us a node",
        "bytes a node",
        "times faster than the mark",
    ]
    table("graph_visualize, two runs compared", head, rows)
    print(f"\nmark: {MARK_NODES} nodes, {MARK_SECONDS} s, {MARK_MEGABYTES:.0f} MB, {MARK_FILE} MB file")


def _measure(nodes: int, arguments: argparse.Namespace) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for side, source in (("target", "pert_statistics"), ("golden", "base_statistics")):
            dump = next((arguments.reference / "graph" / "dumps" / source).rglob("dump.json")).parent
            repeat_dump(dump, work / side, int(nodes / NODES_PER_ENTRY) + 1)
        command = [
            *own_command(), "graph_visualize", "-tp", str(work / "target"), "-gp", str(work / "golden"),
            "-o", str(work / "out"), "--quiet", "--file_type", arguments.form,
        ]  # fmt: skip
        cost = cost_of(command, repeat=arguments.repeat)
        file = next((work / "out").iterdir())
        megabytes = file.stat().st_size / 1e6
        drawn = _nodes(file) if arguments.form == "db" else nodes
    faster = MARK_SECONDS * drawn / MARK_NODES / cost.seconds
    return [
        str(drawn), f"{cost.seconds:.2f}", f"{cost.megabytes:.0f}", f"{megabytes:.1f}",
        f"{cost.seconds / drawn * 1e6:.0f}", f"{megabytes * 1e6 / drawn / 2:.0f}", f"{faster:.1f}",
    ]  # fmt: skip


def _nodes(file: Path) -> int:
    with closing(sqlite3.connect(file)) as connection:
        (count,) = connection.execute("SELECT count(*) FROM tb_nodes WHERE data_source = 'NPU'").fetchone()
    return int(count)


if __name__ == "__main__":
    main()
