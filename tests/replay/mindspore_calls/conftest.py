"""These tests run where MindSpore is installed; TWINPROBE_ENV=mindspore says that it has to be."""

from __future__ import annotations

import importlib.util
import os

_HERE = importlib.util.find_spec("mindspore") is not None
collect_ignore_glob = [] if _HERE or os.environ.get("TWINPROBE_ENV") == "mindspore" else ["*.py"]
