"""Options: every one known by name, every value checked before a model runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe._measure.tolerance import MODES, STRICT, Tolerance
from twinprobe.errors import BadInput, did_you_mean

BOTH, FORWARD, BACKWARD = "both", "forward", "backward"
PHASES = (BOTH, FORWARD, BACKWARD)
RANDOM = ("auto", "seed", "masks", "eval", "off")
FORMATS = ("csv", "json", "html", "xlsx", "parquet")
# Old names that mean nothing here, or the same as a newer one.
_SILENT = {"cmd", "debug", "use_cuda"}
_OPTIONS = (
    "atol", "rtol", "compare_mode", "equal_nan", "diff_phase", "single_step", "steps", "random", "seed", "apis",
    "quiet", "report", "formats",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """How two models are run and compared."""

    tolerance: Tolerance = field(default_factory=Tolerance)
    phase: str = BOTH
    single_step: bool = False
    steps: int = 1
    random: str = "auto"
    seed: int = 1234
    apis: bool = True
    quiet: bool = False
    report: Path | None = None
    formats: tuple[str, ...] = ("csv", "json", "html")
    only: tuple[str, ...] = ()  # places; empty for all

    @property
    def default_tolerance(self) -> bool:
        """Whether the user named no bounds, and elements are compared."""
        return (self.tolerance.atol, self.tolerance.rtol, self.tolerance.mode) == (None, None, STRICT)

    @property
    def backward(self) -> bool:
        """Whether gradients are wanted."""
        return self.phase != FORWARD


def read_options(given: Mapping[str, Any]) -> Options:
    """Check the user's options; unknown names are refused with the nearest known one."""
    for name in given:
        if name not in _OPTIONS and name not in _SILENT:
            hint = f"{did_you_mean(name, (*_OPTIONS, *KEYWORDS))}known: {', '.join(_OPTIONS)}"
            raise BadInput(f"unknown option {name!r}", where="auto_diff", hint=hint)
    tolerance = read_tolerance(given)
    steps = given.get("steps", 1)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise BadInput(f"steps is {steps!r}", where="auto_diff", hint="a whole number from 1 up")
    seed = given.get("seed", 1234)
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise BadInput(f"seed is {seed!r}", hint="a whole number")
    report = given.get("report")
    formats = given.get("formats", Options.formats)
    formats = (formats,) if isinstance(formats, str) else tuple(formats)
    for name in formats:
        if name not in FORMATS:
            raise BadInput(f"formats holds {name!r}", where="auto_diff", hint=f"known: {', '.join(FORMATS)}")
    return Options(
        tolerance=tolerance,
        phase=_choice(given, "diff_phase", PHASES, BOTH),
        single_step=_flag(given, "single_step", False),
        steps=steps,
        random=_choice(given, "random", RANDOM, "auto"),
        seed=seed,
        apis=_flag(given, "apis", True),
        quiet=_flag(given, "quiet", False),
        report=Path(report) if report is not None else None,
        formats=formats,
    )


def read_tolerance(given: Mapping[str, Any]) -> Tolerance:
    """atol, rtol, compare_mode and equal_nan."""
    bounds = {}
    for name in ("atol", "rtol"):
        value = given.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
                raise BadInput(f"{name} is {value!r}", hint="a number from 0 up")
            bounds[name] = float(value)
    mode = _choice(given, "compare_mode", MODES, STRICT)
    return Tolerance(bounds.get("atol"), bounds.get("rtol"), mode, _flag(given, "equal_nan", False))


KEYWORDS = ("auto_weights", "layer_map", "loss_fns", "optimizers")
# Until 0.1.0 these made the second model the reference, which is the one that keeps its weights.
_OLDER_FORM = {
    "options": "give its entries as keywords", "loss_fn": "it is called loss_fns",
    "optimizer": "it is called optimizers", "reference": "the reference is first",
}  # fmt: skip


def refuse_older_form(positional: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """An older call would overwrite the other model's weights now: it is refused, with what to write instead."""
    older = [f"{name}= ({now})" for name, now in _OLDER_FORM.items() if name in named]
    if positional:
        older.insert(0, "more than three arguments by position")
    if older:
        raise BadInput(
            f"auto_diff no longer takes {', '.join(older)}: since 0.2.0 the first model is always the reference and "
            "the second gets its weights",
            hint="write auto_diff(base, raw, (inputs of base, inputs of raw), ...); a script written for PaDiff keeps "
            "its calls with `from padiff import auto_diff` (twinprobe-compat)",
        )


def _choice(given: Mapping[str, Any], name: str, allowed: tuple[str, ...], default: str) -> str:
    value = given.get(name, default)
    if value not in allowed:
        raise BadInput(f"{name} is {value!r}", hint=f"allowed: {', '.join(allowed)}")
    return str(value)


def _flag(given: Mapping[str, Any], name: str, default: bool) -> bool:
    value = given.get(name, default)
    if not isinstance(value, bool):
        raise BadInput(f"{name} is {value!r}", hint="True or False")
    return value
