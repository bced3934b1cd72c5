"""The numbers behind the verdicts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every limit that a verdict depends on; docs/metrics.md explains each."""

    rounding: float = 64.0
    """A relative error below this many machine epsilons of the coarser dtype is rounding."""
    small_input: float = 0.1
    """Inputs whose norms are this close count as close when an output is far off."""
    large_output: float = 0.5
    """An output norm this far off, from close inputs, is an error."""
    growth: float = 10.0
    """An error that grows this much within one call is worth a word."""
    close_ratio: float = 0.9
    """Inputs count as close when this share of their elements is within one thousandth."""
    far_ratio: float = 0.6
    """An output with a smaller share, from close inputs, is an error."""
    cosine_drop: float = 0.1
    """A cosine that falls this much within one call is worth a word."""
