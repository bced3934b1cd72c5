"""Messages from one process to another through a file, so that the sender never waits for the reader."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress

_LENGTH = 8


class Spool:
    """Made before a fork; afterwards one process only sends and the other only receives."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        self._heard, self._told = os.pipe()
        self._at = 0

    def sends(self) -> None:
        """This process is the sender: the reader sees the end when it closes."""
        os.close(self._heard)
        self._heard = -1

    def receives(self) -> None:
        """This process is the reader."""
        os.close(self._told)
        self._told = -1

    def send(self, *messages: bytes) -> None:
        """Send messages; one that nobody is there to read is lost."""
        for message in messages:
            self._file.write(message)
            self._file.flush()
            with suppress(BrokenPipeError):
                os.write(self._told, len(message).to_bytes(_LENGTH, "little"))

    def receive(self) -> bytes | None:
        """The next message, or None if the sender has ended."""
        head = os.read(self._heard, _LENGTH)  # a write this small arrives whole
        if not head:
            return None
        length = int.from_bytes(head, "little")
        message = os.pread(self._file.fileno(), length, self._at)
        self._at += length
        return message

    def close(self) -> None:
        """Give back what this process holds."""
        for end in (self._heard, self._told):
            if end >= 0:
                os.close(end)
        self._heard = self._told = -1
        self._file.close()
