"""What kind of difference is it? Answered from arguments, statistics and sketches, where no tensor was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Kind:
    """One answer, stated only where it holds."""

    name: str
    """argument, parameter, input, function, extra, missing, order, random, nan, uninitialised, dtype, factor, offset,
    sign, permutation, shift, transposition, part, saturation, padding, shard, update or noise."""
    sentence: str
    confidence: float
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Side:
    """What one run recorded of a value. None where it did not."""

    dtype: str = ""
    shape: tuple[int, ...] = ()
    max: float | None = None
    min: float | None = None
    mean: float | None = None
    norm: float | None = None
    value: str | None = None
    """The text of a plain argument: a number, a flag, a string, None."""
    sketch: NDArray[Any] | None = None
    """64 signed sums."""
    l1: float | None = None
    zeros: int | None = None
    """How many elements are zero."""
    not_finite: int | None = None
    """How many elements are NaN or infinite."""


INPUT, PARAMETER, OUTPUT, GRADIENT = "input", "parameter", "output", "gradient"


@dataclass(frozen=True, slots=True)
class Row:
    """A value of the call in both runs."""

    name: str
    """As a user knows it: ``scale``, ``input.0``, ``weight``."""
    role: str
    """INPUT, PARAMETER, OUTPUT or GRADIENT (of a parameter, or what a backward call hands on)."""
    target: Side | None
    golden: Side | None
    expected: float = 0.0
    """The relative error that noise explains."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """The call at which the runs part, with all that is known of it."""

    name: str
    """The call's full name, as in the dump."""
    rows: Sequence[Row]
    presence: str = "both"
    """both, target (an extra call) or golden (a missing one)."""
    parameters: Sequence[tuple[str, Side]] = ()
    """All parameters of the golden run with their full names, to find one that was exchanged."""
    tensors: Sequence[tuple[str, Side]] = ()
    """Tensors of the golden run with sketches that the difference may turn out to be: residuals, biases, inputs."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers that a factor may come from: ``{"world size": 8, "micro batches": 4}``."""
    neighbours: Sequence[str] = ()
    """Calls of the golden run around this one, by name: where an extra or missing call is an exchange of two."""
    from_outside: bool = False
    """Whether the inputs that differ come from no recorded call: the batch, a mask, a state."""


def statistic_kinds(suspect: Suspect) -> list[Kind]:
    """All kinds that hold, best first."""
    del suspect
    return []
