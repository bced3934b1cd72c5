"""The rules behind a verdict: each is one line of this table, one bit of a row's findings."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

PASS, WARNING, ERROR = "pass", "warning", "error"
_RANK = {PASS: 0, WARNING: 1, ERROR: 2}


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
    "injected": Rule(WARNING, "the output differs while all inputs agree: injected here"),
    "injected_by_parameter": Rule(WARNING, "the output differs because a parameter differs: injected here"),
    "injected_by_input": Rule(WARNING, "the output differs because an input from outside differs: injected here"),
    "point": Rule(WARNING, "the saved value differs"),
    "gradient": Rule(WARNING, "the parameter's gradient differs"),
    "growth": Rule(WARNING, "the error grows more than tenfold within this call"),
    "cosine": Rule(WARNING, "the cosine falls by more than 0.1 within this call"),
    "far_norm": Rule(ERROR, "the output's norm is off by more than 50 % while the inputs' are within 10 %"),
    "far_ratio": Rule(ERROR, "under 60 % of the output's elements are within 0.1 % while over 90 % of the inputs' are"),
    "far_point": Rule(ERROR, "the saved value is far off"),
    "nonfinite": Rule(ERROR, "NaN or infinity stands on one side only, or with the other sign"),
    "digest": Rule(ERROR, "the checksum differs, and the difference begins here"),
    "requires_grad": Rule(ERROR, "requires_grad differs"),
    "value": Rule(ERROR, "the value differs"),
    "dtype": Rule(ERROR, "the dtype differs"),
    "shape": Rule(ERROR, "the shape differs"),
}  # fmt: skip
_BIT = {name: np.int64(1) << at for at, name in enumerate(RULES)}


class Findings:
    """Which rules hold for which rows, one bit per rule."""

    def __init__(self, rows: int) -> None:
        self.bits: NDArray[np.int64] = np.zeros(rows, dtype=np.int64)

    def mark(self, rule: str, rows: NDArray[np.bool_]) -> None:
        """Record that a rule holds for these rows."""
        self.bits[rows] |= _BIT[rule]

    def has(self, rule: str) -> NDArray[np.bool_]:
        """For which rows a rule holds."""
        held: NDArray[np.bool_] = (self.bits & _BIT[rule]) != 0
        return held

    def verdicts(self) -> tuple[list[str], list[str], list[str]]:
        """Per row: the verdict, the messages as a JSON list, the reason in words."""
        distinct, place = np.unique(self.bits, return_inverse=True)
        texts = [_describe(int(bits)) for bits in distinct]
        rows = [texts[at] for at in place.tolist()]
        return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _describe(bits: int) -> tuple[str, str, str]:
    held = [rule for name, rule in RULES.items() if bits & int(_BIT[name])]
    held.sort(key=lambda rule: -_RANK[rule.severity])
    verdict = held[0].severity if held else PASS
    messages = [f"{rule.severity}: {rule.words}" for rule in held if rule.severity != PASS]
    told = [rule.words for rule in held if verdict == PASS or rule.severity != PASS]
    return verdict, json.dumps(messages), "; ".join(told)
