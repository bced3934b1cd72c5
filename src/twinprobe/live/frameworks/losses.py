"""The loss that stands in where none is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twinprobe.errors import BadInput


def mean_of_means(outputs: list[Any], mean: Callable[[Any], Any]) -> Any:
    """The mean of the means of all outputs that depend on something; ``mean`` answers None for the others."""
    means = [one for one in map(mean, outputs) if one is not None]
    if not means:
        raise BadInput(
            "no output of the model depends on its parameters, so there is nothing to run backward from",
            hint='give loss_fn, or diff_phase="forward"',
        )
    total = means[0]
    for one in means[1:]:
        total = total + one
    return total / len(means)
