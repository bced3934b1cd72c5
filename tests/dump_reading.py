"""Reading what a recorder wrote, with the standard library only, and running scripts that record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from warm_python import run_warm


class Dump:
    """One step folder."""

    def __init__(self, path: Path, step: int = 0, index: str = "dump") -> None:
        (self.folder,) = sorted((path / f"step{step}").iterdir())
        self.document: dict[str, Any] = json.loads((self.folder / f"{index}.json").read_text(encoding="utf-8"))
        self.data: dict[str, Any] = self.document["data"]

    def side(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))

    def log(self) -> str:
        path = self.folder / "dump_error_info.log"
        return path.read_text(encoding="utf-8") if path.exists() else ""


def run_script(script: str) -> subprocess.CompletedProcess[str]:
    """Run a Python text in an interpreter of its own."""
    if "import torch" in script:
        return run_warm(script)
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
