"""The command line: one small module per command."""

from __future__ import annotations

from twinprobe._cli.main import main

__all__ = ["main"]
