"""Temporary names say whose they are, so that a later command can tell what a killed one has left."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

OWNER = r"(?P<machine>[0-9a-f]{8})-(?P<pid>\d{1,10})-[0-9a-f]{8}"  # as owner() writes it
_LONGEST_NAME = 180


def temporary_name(name: str) -> str:
    """A hidden name for what will be ``name``, of this process and no other."""
    short = name.encode("utf-8", "surrogateescape")[:_LONGEST_NAME].decode("utf-8", "ignore")
    return f".{short}.{owner()}.part"


def owner() -> str:
    """This process, as temporary names and claims tell of it, with a number that no other name has."""
    return f"{machine()}-{os.getpid()}-{secrets.token_hex(4)}"


@lru_cache(maxsize=1)
def machine() -> str:
    """Where process numbers mean what they mean here: this host since its start, and this container's own numbers."""
    parts = [os.fsencode(socket.gethostname())]
    with suppress(OSError):  # where there is no /proc, the name of the host has to do
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_bytes())
        parts.append(bytes(Path("/proc/self/ns/pid").readlink()))
    return sha256(b"\0".join(parts)).hexdigest()[:8]
