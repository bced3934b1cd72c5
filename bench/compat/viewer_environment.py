"""The viewer that our files must open in, installed into an environment of its own."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

VIEWER = "tb-graph-ascend"


def install_viewer(folder: Path, version: str) -> Path:
    """Make the environment if it is not there yet; return its tensorboard command."""
    command = folder / "bin" / "tensorboard"
    marker = folder / f"{VIEWER}-{version}"
    if not marker.exists():
        venv.create(folder, with_pip=True, clear=folder.exists())
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", f"{VIEWER}=={version}"]
        # Older viewers import pkg_resources, which setuptools has dropped since.
        done = subprocess.run([*pip, "setuptools<81"], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{VIEWER} {version} could not be installed:\n{done.stderr[-2000:]}")
        marker.touch()
    return command
