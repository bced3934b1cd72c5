"""These tests run where Paddle is installed; TWINPROBE_ENV=paddle says that it has to be."""

from __future__ import annotations

import importlib.util
import os

_SPEC = importlib.util.find_spec("paddle")
_HERE = _SPEC is not None and _SPEC.origin is not None  # a folder of tests may have that name as well
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "paddle" else ["*.py"]
