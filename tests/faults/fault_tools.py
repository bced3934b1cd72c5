"""Victims of faults, and ways to bring them about."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

NOBODY = 65534


class Victims:
    """Runs jobs in children of ``fault_server.py``."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("fault_server.py"))]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def run(self, *jobs: dict[str, Any]) -> list[dict[str, Any]]:
        """Run jobs at the same time; each result has status, told, events, seconds and said."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(jobs) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the server of victims has gone"
        results: list[dict[str, Any]] = json.loads(line)
        return results

    def record(self, folder: Path, **options: Any) -> dict[str, Any]:
        """Record one training run into a folder."""
        return self.run({"work": "record", "folder": str(folder), **options})[0]

    def command(self, folder: Path, *words: str | Path, **options: Any) -> dict[str, Any]:
        """Run one command that writes to a folder."""
        return self.run(command_job(folder, *words, **options))[0]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(600)


def command_job(folder: Path, *words: str | Path, **options: Any) -> dict[str, Any]:
    return {"work": "command", "folder": str(folder), "words": [str(word) for word in words], **options}


def make_read_only(disk: Path) -> None:
    """Have the system refuse every change of a file system."""
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
