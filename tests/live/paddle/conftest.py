"""These tests run where Paddle and PyTorch are installed; TWINPROBE_ENV=paddle says that they have to be."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

_HERE = all(importlib.util.find_spec(name) is not None for name in ("paddle", "torch"))
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "paddle" else ["*.py"]
