"""A killed process leaves a readable dump; nothing that the recorder meets stops the training."""

from __future__ import annotations

from shared_survives import *  # noqa: F403
