"""These tests run where MindSpore and PyTorch are installed; TWINPROBE_ENV=mindspore says that they have to be."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

_HERE = all(importlib.util.find_spec(name) is not None for name in ("mindspore", "torch"))
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "mindspore" else ["*.py"]
