"""The tools that TwinProbe replaces, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ENVIRONMENTS = Path(__file__).resolve().parents[1] / ".bench-env"
# What the tool imports without declaring it is named too.
REQUIREMENTS = {
    "msprobe": ["mindstudio-probe==26.2.0", "torch==2.13.0", "protobuf", "tensorboard", "pandas", "openpyxl"],
    # Both models live in one process, so TwinProbe is measured in the same environment: what it needs is named too.
    "padiff": ["padiff==0.2.0", "paddlepaddle==3.3.1", "torch==2.13.0", "msgspec", "numba", "polars", "pyyaml", "rich"],
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
