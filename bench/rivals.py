"""The tools that TwinProbe replaces, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parents[1] / ".bench-env"
# What the tool imports without declaring it is named too.
REQUIREMENTS = {
    "msprobe": ["mindstudio-probe==26.2.0", "torch==2.13.0", "protobuf", "tensorboard", "pandas", "openpyxl"],
}


def rival(name: str) -> Path:
    """The folder of a rival's environment, built on first use."""
    folder = ENVIRONMENTS / name
    stamp = folder / "requirements.txt"
    wanted = "\n".join(REQUIREMENTS[name])
    if not stamp.is_file() or stamp.read_text() != wanted:
        print(f"installing {name} into {folder} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(folder / "bin/pip"), "install", "-q", *REQUIREMENTS[name]], check=True)
        stamp.write_text(wanted)
    return folder
