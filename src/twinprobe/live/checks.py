"""Two recordings against each other: everything, or only the parameters, or only their gradients."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.live.comparing import compare_models
from twinprobe.live.layer_map import LayerMap
from twinprobe.live.options import BOTH, FORWARD, PHASES, Options, read_tolerance
from twinprobe.live.result import Result

_KEYS = ("atol", "rtol", "compare_mode", "equal_nan")
_PLACES = {"parameter": ("parameter",), "gradient": ("gradient",), "both": ("parameter", "gradient")}


def check_report(
    base: str | Path,
    raw: str | Path,
    cfg: Mapping[str, Any] | None = None,
    diff_phase: str = BOTH,
    *,
    quiet: bool = False,
) -> Result:
    """Compare two recordings: all steps and all ranks, forward and backward. True when they agree."""
    if diff_phase not in PHASES:
        raise BadInput(f"diff_phase is {diff_phase!r}", hint=f"allowed: {', '.join(PHASES)}")
    return _shown(_compare(base, raw, cfg, diff_phase), quiet)


def check_weights(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> Result:
    """Compare the recorded parameters."""
    return _shown(_compare(base, raw, cfg, FORWARD, _PLACES["parameter"]), quiet)


def check_grads(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> Result:
    """Compare the recorded gradients of the parameters."""
    return _shown(_compare(base, raw, cfg, BOTH, _PLACES["gradient"]), quiet)


def check_params(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None = None, *, quiet: bool = False
) -> Result:
    """Compare the recorded parameters and their gradients."""
    return _shown(_compare(base, raw, cfg, BOTH, _PLACES["both"]), quiet)


def _compare(
    base: str | Path, raw: str | Path, cfg: Mapping[str, Any] | None, phase: str, places: tuple[str, ...] = ()
) -> Result:
    for key in cfg or {}:
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            meant = f"did you mean {near[0]!r}? " if near else ""
            raise BadInput(f"unknown key {key!r} in cfg", hint=f"{meant}known: {', '.join(_KEYS)}")
    options = Options(tolerance=read_tolerance(cfg or {}), phase=phase, only=places)
    return compare_models(Path(base), Path(raw), LayerMap(), options, auto_weights=False, notes=[])


def _shown(result: Result, quiet: bool) -> Result:
    if not quiet:
        result.show()
    return result
