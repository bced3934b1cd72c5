"""Large graphs by two processes: a forked one reads and renders the trusted run, and writes the file.

They exchange the trusted run's table and tree one way, as soon as they are there; the other way the tree of the run
under test and the links, then its values. Whatever fails over there is done here instead, so that its error is raised
here.
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

import msgspec

from twinprobe._graph.communication import Communication, read_communication
from twinprobe._graph.compare_json import nested
from twinprobe._graph.picture import GOLDEN, DrawnRun, Picture, drawn_run, node_extras, summary_rows
from twinprobe._graph.values import DB, CallTexts
from twinprobe._graph.vis_files import GraphDb, node_indices, tensor_folder
from twinprobe._runs.run import Run, hand_over, open_run, take_over
from twinprobe._scale.process import Forked

_LENGTH = 8


class Spool:
    """Messages from one process to another through a file, so that the sender never waits for the reader.

    Made before a fork; afterwards one process only sends and the other only receives.
    """

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._reading, self._writing = os.pipe()
        self._at = 0

    def sends(self) -> None:
        """This process is the sender: the reader sees the end when it closes."""
        os.close(self._reading)
        self._reading = -1

    def receives(self) -> None:
        """This process is the reader."""
        os.close(self._writing)
        self._writing = -1

    def send(self, *messages: bytes) -> None:
        """Send messages; one that nobody is there to read is lost."""
        for message in messages:
            self._file.write(message)
            self._file.flush()
            with suppress(BrokenPipeError):
                os.write(self._writing, len(message).to_bytes(_LENGTH, "little"))

    def receive(self) -> bytes | None:
        """The next message, or None if the sender has ended."""
        head = os.read(self._reading, _LENGTH)  # a write this small arrives whole
        if not head:
            return None
        length = int.from_bytes(head, "little")
        message = os.pread(self._file.fileno(), length, self._at)
        self._at += length
        return message

    def close(self) -> None:
        """Give back what this process holds."""
        for end in (self._reading, self._writing):
            if end >= 0:
                os.close(end)
        self._reading = self._writing = -1
        self._file.close()


_PIECES_AHEAD = 12  # rendered while the runs are matched; about 1 MB each


class GoldenProcess(AbstractContextManager["GoldenProcess"]):
    """A process that writes the rows of both runs into ``part``, which it creates."""

    def __init__(self, golden: Path, part: Path, step: int, rank: int, *, overflow_check: bool) -> None:
        self._part = part
        self._place = step, rank
        self._to_other, self._from_other = Spool(), Spool()
        self._run_file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__

        def work() -> None:
            self._to_other.receives()
            self._from_other.sends()
            self._work(golden, overflow_check)

        self._process = Forked(work)
        self._to_other.sends()
        self._from_other.receives()

    def _work(self, golden: Path, overflow_check: bool) -> None:
        run = nested(open_run(golden))
        _ = run.stacks  # for its notes
        hand_over(run, self._run_file)
        self._run_file.flush()
        self._from_other.send(b"")
        side = drawn_run(GOLDEN, run, overflow_check=overflow_check)
        self._from_other.send(pickle.dumps(_bare(side)))
        texts = side.texts(DB)
        rendered = list(islice(texts, _PIECES_AHEAD))
        target, side.link = pickle.loads(self._next())
        db = GraphDb(self._part, nodes=len(side.tree) + len(target.tree))
        folder = tensor_folder(run)
        db.add_side(side, target, *self._place, chain(_emptied(rendered), texts), folder=folder)
        values, summary, folder = pickle.loads(self._next())
        picture = Picture(*self._place, target, side, None, values)
        db.add_extras(node_extras(picture), summary)
        db.add_side(target, side, *self._place, self._pieces(), node_indices(picture, DB), folder)
        db.close()

    def _pieces(self) -> Iterator[CallTexts]:
        decode = msgspec.msgpack.Decoder(CallTexts).decode
        while piece := self._next():
            yield decode(piece)

    def _next(self) -> bytes:
        message = self._to_other.receive()
        if message is None:
            raise EOFError  # the other process has ended: so does this one
        return message

    def run(self) -> Run | None:
        """The trusted run, or None where reading it failed."""
        if self._from_other.receive() is None:
            return None
        self._run_file.seek(0)
        return take_over(self._run_file)

    def side(self, run: Run) -> DrawnRun | None:
        """The trusted run's tree; None where the other process has given up."""
        packed = self._from_other.receive()
        if packed is None:
            return None
        side: DrawnRun = pickle.loads(packed)
        side.run, side.communication = run, read_communication(run)
        return side

    def linked(self, target: DrawnRun, golden: DrawnRun) -> None:
        """Let the other process write the trusted run's rows: both sides are matched."""
        self._to_other.send(pickle.dumps((_bare(target), golden.link)))

    def write(self, picture: Picture) -> bool:
        """Have the rows of the run under test written; False where all has to be drawn anew, here."""
        side = picture.target
        self._to_other.send(pickle.dumps((picture.values, list(summary_rows(picture)), tensor_folder(side.run))))
        encode = msgspec.msgpack.Encoder().encode
        for piece in picture.texts(side, DB):
            self._to_other.send(encode(piece))
        self._to_other.send(b"")
        written = self._process.succeeds()
        if not written:
            self._part.unlink(missing_ok=True)
        return written

    def __exit__(self, *_problem: object) -> None:
        self._process.stop()
        self._to_other.close()
        self._from_other.close()
        self._run_file.close()


def _bare(side: DrawnRun) -> DrawnRun:
    """A drawn run for the other process: without its values and what it communicates."""
    run = side.run
    return replace(side, run=Run(run.path, "", "", "", [], run.table.clear(), []), communication=Communication())


def _emptied(items: list[CallTexts]) -> Iterator[CallTexts]:
    """The items of a list, each forgotten when the next is taken."""
    items.reverse()
    while items:
        yield items.pop()
