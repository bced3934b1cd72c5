"""What start() is given, checked."""

from __future__ import annotations

from typing import Any

from twinprobe.errors import BadInput


def check_models(model: Any, level: str, kind: Any, called: str) -> list[Any]:
    """The modules to watch; refuses what is none."""
    models = list(model) if isinstance(model, list | tuple) else [] if model is None else [model]
    for one in models:
        if not isinstance(one, kind):
            raise BadInput(f"start(model=...) got {type(one).__name__}, which is no {called}")
    if not models and level in {"L0", "mix"}:
        raise BadInput(f"level {level} records {called} calls: call start(model=...)")
    return models


def check_token_range(token_range: Any) -> None:
    """A pair of counts from 0 on, first not after last."""
    if token_range is None:
        return
    ok = isinstance(token_range, list | tuple) and len(token_range) == 2
    if not ok or not all(isinstance(one, int) and one >= 0 for one in token_range) or token_range[0] > token_range[1]:
        raise BadInput(f"token_range is {token_range!r}", hint="two numbers from 0 on, first and last token")
