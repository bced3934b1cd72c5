"""level="watch": each step is there, nothing changes, and runs are compared with PyTorch's too."""

from __future__ import annotations

from shared_watch import *  # noqa: F403
