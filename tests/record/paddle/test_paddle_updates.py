"""What an optimizer of Paddle saw and did."""

from __future__ import annotations

from shared_updates import *  # noqa: F403
