"""What to say when a weight cannot be copied."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from twinprobe.errors import BadInput
from twinprobe.live.weights.attention import PROJECTIONS
from twinprobe.live.weights.layers import Held, Layer, Slot

_SHOWN = 5
_JOINED = re.compile("qkv|query_key_value|c_attn|in_proj|w_?pack")  # what layers are called that hold q, k and v


@dataclass(frozen=True)
class Problem:
    """One weight of one side that finds no place on the other."""

    target: Layer | None  # None where no layer is aligned with the other one
    source: Layer | None
    wanted: Slot | None  # of the target
    offered: Slot | None  # of the source
    why: str


def refuse(problems: Sequence[Problem], targets: Sequence[Slot], sources: Sequence[Slot]) -> BadInput:
    """The error for all of them, with the nearest partner of each."""
    lines = [_line(problem, targets, sources) for problem in problems[:_SHOWN]]
    if len(problems) > _SHOWN:
        lines.append(f"and {len(problems) - _SHOWN} more")
    names = [layer.kind if layer else "OtherClass" for layer in (problems[0].target, problems[0].source)]
    return BadInput(
        "weights cannot be copied; nothing was changed:\n  " + "\n  ".join(lines),
        hint=f"align other layers with LayerMap, leave these out with LayerMap.ignore, or copy them with"
        f" add_special_init({', '.join(names)}, function)",
    )


def _line(problem: Problem, targets: Sequence[Slot], sources: Sequence[Slot]) -> str:
    target = _side("target", problem.target, problem.wanted)
    source = _side("source", problem.source, problem.offered)
    if problem.wanted is not None:
        near = nearest(problem.wanted, sources, taken=problem.offered)
        side = "source"
    else:
        assert problem.offered is not None
        near, side = nearest(problem.offered, targets), "target"
    both = ", ".join(filter(None, (target, source)))
    return f"{both}: {problem.why}; {_advice(near, side)}"


def _side(which: str, layer: Layer | None, slot: Slot | None) -> str:
    if layer is None:
        return ""
    if slot is not None:
        turned = ", transposed" if slot.view.transposed else ""
        return f"{which} {slot.held.name} {list(slot.held.shape)} ({layer.kind}{turned})"
    held = [str(one.held) for one in layer.weights]
    return f"{which} {layer.path or 'model'} ({layer.kind}) with {', '.join(held) or 'no weights'}"


def _advice(near: tuple[Held, bool, bool] | None, side: str) -> str:
    if near is None:
        return f"the {side} has no weight to offer"
    held, joined, fits = near
    if joined:
        return (
            f"nearest partner in the {side}: {held}; LayerMap.group([the one], [q, k, v]) copies one that holds three"
        )
    return f"nearest fitting partner in the {side}: {held}" if fits else f"none fits, nearest by name: {held}"


def nearest(slot: Slot, others: Sequence[Slot], taken: Slot | None = None) -> tuple[Held, bool, bool] | None:
    """The weight of the other model that fits best: as one projection in a joined one, by shape, then by name; with
    whether it is such a one, and whether its shape fits at all."""

    def rank(other: Slot) -> tuple[bool, bool, float]:
        alike = difflib.SequenceMatcher(None, slot.held.name, other.held.name).ratio()
        return _is_third(slot, other) or _is_third(other, slot), other.shape == slot.shape, alike

    free = [other for other in others if taken is None or other.held.key != taken.held.key]
    if not free:
        return None
    best = max(free, key=rank)
    return best.held, *rank(best)[:2]


def _is_third(part: Slot, whole: Slot) -> bool:
    """Whether one may be the projection of q, k or v in a layer that has all three."""
    if part.name != whole.name or not part.shape or (3 * part.shape[0], *part.shape[1:]) != whole.shape:
        return False
    part_of, whole_of = (one.held.name.split(".")[-2:-1] for one in (part, whole))
    return bool(part_of and whole_of) and part_of[0] in PROJECTIONS and bool(_JOINED.search(whole_of[0].lower()))
