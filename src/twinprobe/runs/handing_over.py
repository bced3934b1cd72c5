"""A run that another process of ours has read, handed over without reading it again."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import msgspec

from twinprobe.runs.run import Run


class _Head(msgspec.Struct):
    path: str
    task: str
    level: str
    framework: str
    ops: list[str]
    notes: list[str]


def hand_over(run: Run, file: IO[bytes]) -> None:
    """Write a run for ``take_over``; the file lives no longer than the two processes."""
    head = _Head(str(run.path), run.task, run.level, run.framework, run.ops, run.notes)
    blob = msgspec.msgpack.encode(head)
    file.write(len(blob).to_bytes(8, "little") + blob)
    run.table.write_ipc(file, compression="uncompressed")


def take_over(file: IO[bytes]) -> Run:
    """The run that ``hand_over`` wrote."""
    import polars as pl

    head = msgspec.msgpack.decode(file.read(int.from_bytes(file.read(8), "little")), type=_Head)
    table = pl.read_ipc(file.read())
    return Run(Path(head.path), head.task, head.level, head.framework, head.ops, table, head.notes)
