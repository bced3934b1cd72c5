"""These tests run where Paddle is installed; TWINPROBE_ENV=paddle says that it has to be."""

from __future__ import annotations

import importlib.util
import os

_HERE = importlib.util.find_spec("paddle") is not None
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "paddle" else ["*.py"]
