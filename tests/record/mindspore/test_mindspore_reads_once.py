"""A tensor is read once per step, and again after something may have written to it."""

from __future__ import annotations

from shared_reads_once import *  # noqa: F403
