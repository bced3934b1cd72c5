"""Observing changes nothing."""

from __future__ import annotations

from shared_nothing_changes import *  # noqa: F403
