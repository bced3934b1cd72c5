"""Rows of the pair table whose two sides lay out the same tensor differently: they are compared after turning."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from twinprobe.align.shapes import Shape, dims
from twinprobe.align.turns import IN_OUT, VIEW, Axes, Candidate, find_turns
from twinprobe.compare.pair_table import ALIGNED
from twinprobe.runs.leaf import TENSOR
from twinprobe.runs.table import GRADIENT, PARAMETER

if TYPE_CHECKING:
    import polars as pl

_WEIGHTS = (PARAMETER, GRADIENT)
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def with_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill the column ``turn``: the order of the target's axes, as text, where it must be turned; the rule tells.

    A recorder's mark on one side, or an alignment that pairs tensors of other shapes, gives the reason to look.
    """
    import polars as pl

    turns = find_turns(_candidates(frame))
    turns |= _hidden(frame, turns)
    texts: list[str | None] = [None] * frame.height
    rules = frame["rule"].to_list() if turns else []
    for place, ways in turns.items():
        texts[place] = as_text(ways)
        rules[place] = f"{rules[place]}, {_told(ways)}"
    columns = [pl.Series("turn", texts, dtype=pl.String)]
    if turns:
        columns.append(pl.Series("rule", rules, dtype=pl.String))
    return frame.with_columns(columns)


def _told(ways: list[Axes]) -> str:
    if len(ways) > 1:
        return "axes turned"
    return f"axes {' '.join(map(str, ways[0]))}" if ways[0] != VIEW else "viewed in other axes"


def as_text(ways: list[Axes]) -> str:
    """Orders of axes as the table keeps them."""
    return "|".join(",".join(map(str, axes)) for axes in ways)


def from_text(text: str) -> list[Axes]:
    """The orders of axes that a text of the table means."""
    return [tuple(int(axis) for axis in way.split(",") if axis) for way in text.split("|")]


def _candidates(frame: pl.DataFrame) -> list[Candidate]:
    tensors = (frame["t_kind"] == TENSOR) & (frame["g_kind"] == TENSOR)
    layouts = [(frame[f"{side}_layout"] == IN_OUT).fill_null(value=False) for side in "tg"]
    marked = layouts[0] != layouts[1]
    aligned = frame["rule"].str.starts_with(ALIGNED)
    weights = frame["t_role"].is_in(_WEIGHTS)
    chosen = tensors & (marked | (aligned & (weights | (frame["t_shape"] != frame["g_shape"]))))
    found = []
    for place in np.flatnonzero(chosen.fill_null(value=False).to_numpy()).tolist():
        mine, theirs = dims(frame["t_shape"][place]), dims(frame["g_shape"][place])
        if mine is None or theirs is None or not mine or not theirs:
            continue
        is_weight = bool(marked[place]) or frame["t_role"][place] in _WEIGHTS
        sort = _sort(frame, place) if is_weight else len(mine)
        found.append(Candidate(place, mine, theirs, is_weight, bool(marked[place]), sort))
    return found


def _hidden(frame: pl.DataFrame, turns: dict[int, list[Axes]]) -> dict[int, list[Axes]]:
    """Tensors of equal shape among turned ones, whose turn no shape shows: as many channels as rows, say.

    Only where the tensors were kept, so that their values tell whether they are turned.
    """
    import polars as pl

    seen = {axes for ways in turns.values() for axes in ways if axes != tuple(range(len(axes)))}
    if not seen or frame["t_file"].null_count() == frame.height:
        return {}
    same = frame["rule"].str.starts_with(ALIGNED) & (frame["t_shape"] == frame["g_shape"]) & ~frame["joined"]
    same &= frame["t_file"].is_not_null() & frame["g_file"].is_not_null() & ~frame["t_role"].is_in(_WEIGHTS)
    kept: dict[str, list[Axes]] = {}
    for text in frame["t_shape"].filter(same.fill_null(value=False)).unique().to_list():
        shape = dims(text) or ()
        ways = [axes for axes in sorted(seen) if len(axes) == len(shape) and _unchanged(shape, axes)]
        if ways:
            kept[text] = [tuple(range(len(shape))), *ways]
    places = frame.select(pl.arg_where(same & frame["t_shape"].is_in(list(kept)))).to_series().to_list()
    return {place: kept[frame["t_shape"][place]] for place in places if place not in turns}


def _unchanged(shape: Shape, axes: Axes) -> bool:
    return tuple(shape[axis] for axis in axes) == shape


def _sort(frame: pl.DataFrame, place: int) -> tuple[str, str]:
    """Equal for the same weight of layers of one class: names without what is before the class, and without numbers."""
    return _plain(frame["t_name"][place]), _plain(frame["g_name"][place])


def _plain(name: str) -> str:
    whole, _, tail = name.partition(".forward.") if ".forward." in name else name.partition(".parameters_grad.")
    return f"{whole.rpartition('.')[2]} {tail.rpartition('.')[2]}" if tail else _NUMBER.sub("", name)
