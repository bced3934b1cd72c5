"""The rules behind a verdict, each a line of one table, and every limit that they depend on."""

from __future__ import annotations

from dataclasses import dataclass

PASS, WARNING, ERROR = SEVERITIES = "pass", "warning", "error"


@dataclass(frozen=True, slots=True)
class Rule:
    """A finding: how grave it is and what it means in words."""

    severity: str
    words: str


RULES: dict[str, Rule] = {
    "identical": Rule(PASS, "identical"),
    "rounding": Rule(PASS, "equal within rounding"),
    "turned": Rule(PASS, "compared in the golden run's layout"),
    "device": Rule(PASS, "the device differs, as it may"),
    "uninitialised": Rule(PASS, "not judged: the values of this call are not defined"),
    "masked": Rule(PASS, "not judged: fill values of a mask"),
    "flip": Rule(PASS, "a choice flipped within the noise of its inputs"),
    "same_results": Rule(PASS, "the value differs, the outputs agree"),
    "other_dtype": Rule(PASS, "another dtype"),
    "other_requires_grad": Rule(PASS, "another requires_grad"),
    "communication": Rule(PASS, "communication, which only one of the layouts needs"),
    "other_arguments": Rule(PASS, "not judged: only one layout gives this call all its arguments at once"),
    "not_clipped": Rule(PASS, "not judged: only one run has measured the norm of all gradients"),
    "only_means": Rule(PASS, "not judged: sums of ranks on both sides, of which statistics tell only the mean"),
    "target_only": Rule(WARNING, "no counterpart in the golden run"),
    "golden_only": Rule(WARNING, "no counterpart in the target run"),
    "unreadable": Rule(WARNING, "the tensor could not be read"),
    "by_statistics": Rule(WARNING, "the recorded statistics are compared instead"),
    "unknown": Rule(WARNING, "nothing that could be compared was recorded"),
    "mixed": Rule(WARNING, "one side recorded a tensor, the other a plain value or None"),
    "input": Rule(WARNING, "this input already differs"),
    "parameter": Rule(WARNING, "this parameter differs"),
    "outside": Rule(WARNING, "this input comes from outside the recorded calls and already differs"),
    "inherited": Rule(WARNING, "the output differs, and so do the inputs: inherited"),
    "received": Rule(WARNING, "the output of a collective differs: it may have begun on another rank"),
    "without_effect": Rule(WARNING, "differs more than noise explains, without effect on any result"),
    "injected": Rule(WARNING, "the output differs while all inputs agree: injected here"),
    "injected_beyond": Rule(WARNING, "the output differs more than its inputs explain: injected here"),
    "injected_unpaired": Rule(WARNING, "the output differs, and not every input has a counterpart: injected here"),
    "isolated": Rule(WARNING, "from its own inputs the target's call gives other values: injected here"),
    "isolated_golden": Rule(WARNING, "from its own inputs golden's call gives other values: injected here"),
    "injected_by_argument": Rule(WARNING, "the output differs because an argument differs: injected here"),
    "injected_by_parameter": Rule(WARNING, "the output differs because a parameter differs: injected here"),
    "injected_by_input": Rule(WARNING, "the output differs because an input from outside differs: it comes in here"),
    "injected_inside": Rule(WARNING, "the difference begins in this module's own code: injected here"),
    "extra": Rule(WARNING, "only the target run makes this call, and what follows differs: injected here"),
    "missing": Rule(WARNING, "only the golden run makes the call that gives this input: injected here"),
    "random": Rule(WARNING, "random numbers differ: injected here"),
    "point": Rule(WARNING, "the saved value differs"),
    "gradient": Rule(WARNING, "the parameter's gradient differs"),
    "growth": Rule(WARNING, "the error grows more than tenfold within this call"),
    "cosine": Rule(WARNING, "the cosine falls by more than 0.1 within this call"),
    "other_shape": Rule(WARNING, "another shape"),
    "far_norm": Rule(ERROR, "the output's norm is off by more than 50 % while the inputs' are within 10 %"),
    "far_sketch": Rule(ERROR, "the output is off by more than 50 % by its sketch while the inputs are within 10 %"),
    "far_ratio": Rule(ERROR, "under 60 % of the output's elements are within 0.1 % while over 90 % of the inputs' are"),
    "far_point": Rule(ERROR, "the saved value is far off"),
    "nonfinite": Rule(ERROR, "NaN or infinity stands on one side only, or with the other sign"),
    "digest": Rule(ERROR, "the checksum differs, and the difference begins here"),
    "requires_grad": Rule(ERROR, "requires_grad differs"),
    "value": Rule(ERROR, "the value differs"),
    "dtype": Rule(ERROR, "the dtype differs"),
    "shape": Rule(ERROR, "the shape differs"),
}  # fmt: skip


# An error this many times as large as rounding and the inputs' errors explain begins here.
SUSPICIOUS = 4.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Every limit that a verdict depends on; docs/metrics.md explains each."""

    rounding: float | None = None
    """Given by hand, in place of the expected error: what is rounding, in machine epsilons of the coarser dtype."""
    suspicious: float = SUSPICIOUS
    estimated: float = 6.0
    """The same where only max, min, mean and norm were recorded, which see a part of a difference."""
    aligned: float = 2.0
    """The same where the whole error is one factor: rounding errors point anywhere, and leave the norm as it is."""
    replaced: float = 1.5
    """The same where another activation stands in its place and its inputs are equal to the last bit."""
    by_row: bool = False
    """Judge dtype and requires_grad row by row, as the older tool documents it."""
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


# The tolerance of inference reports, which have no inputs to weigh an error against.
EPSILONS = 64.0
