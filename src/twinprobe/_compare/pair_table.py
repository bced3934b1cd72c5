"""The pair table: both runs side by side, one row per pair of recorded values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from twinprobe._align.calls import IN_OUT, Shape, dims
from twinprobe._align.links import MEANING, MERGED, Groups, Pairs
from twinprobe._align.turns import REORDERED, VIEW, Axes, Candidate, find_turns
from twinprobe._judge.deviation import bools
from twinprobe._measure.elements import ANY_ORDER
from twinprobe._runs.names import MATMUL_FACTOR, NAMED_MOMENTUM, OF_ATTENTION
from twinprobe._runs.run import WHOLE, Run
from twinprobe._runs.table import ABSENT, FLOAT, GRADIENT, PARAMETER, STATS, TENSOR

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray

    from twinprobe._runs.tensors.elements import HostTensor
    from twinprobe._runs.tensors.tensor_files import Loader

ALIGNED = "auto:"  # how the rules of an alignment begin


def pair_table(target: Run, golden: Run, pairs: Pairs) -> pl.DataFrame:
    """Gather both tables by the pairs' row numbers; columns are prefixed t_ and g_."""
    import polars as pl

    frame = pl.DataFrame([
        *_gather(target.table, pairs.target, "t_"),
        *_gather(golden.table, pairs.golden, "g_"),
        pl.Series("rule", pairs.rule, dtype=pl.String),
    ]).with_columns(joined=pl.lit(value=False), turn=pl.lit(None, dtype=pl.String))  # fmt: skip
    frame = _with_momentum(frame, target.framework, golden.framework)
    if pairs.groups:
        frame = with_merged(frame, target, golden, pairs.groups)
    marked = frame["t_layout"].null_count() + frame["g_layout"].null_count() < 2 * frame.height
    if marked or pairs.call_groups or frame["rule"].str.starts_with(ALIGNED).any() or _factors(frame).any():
        frame = with_turns(frame)
    return with_call_groups(frame, pairs) if pairs.call_groups else frame


def _with_momentum(frame: pl.DataFrame, *frameworks: str) -> pl.DataFrame:
    """Paddle's momentum of running statistics says what is kept; against another framework, what is taken in."""
    if frameworks[0] == frameworks[1] or "paddle" not in frameworks:
        return frame
    side = "tg"[frameworks.index("paddle")]
    rows = frame[f"{side}_name"].str.contains(NAMED_MOMENTUM).fill_null(value=False).arg_true().to_list()
    taken = {row: round(1 - kept, 12) for row in rows if (kept := frame[f"{side}_max"][row]) is not None}
    none = dict.fromkeys(taken)
    changes = {f"{side}_{stat}": taken for stat in STATS} | {"t_value_digest": none, "g_value_digest": none}
    return with_values(frame, changes) if taken else frame


def with_call_groups(frame: pl.DataFrame, pairs: Pairs) -> pl.DataFrame:
    """The column ``group``: the number of the group of calls, equal in meaning, that a row belongs to."""
    import polars as pl

    target = {op: number for number, group in enumerate(pairs.call_groups) for op in group.target}
    golden = {op: number for number, group in enumerate(pairs.call_groups) for op in group.golden}
    ops = frame.select("t_op", "g_op").iter_rows()
    groups = [target.get(op) if op is not None else golden.get(other) for op, other in ops]
    return frame.with_columns(pl.Series("group", groups, dtype=pl.Int32))


def _gather(table: pl.DataFrame, rows: NDArray[np.int32], prefix: str) -> list[pl.Series]:
    import polars as pl

    index = pl.Series("row", rows, dtype=pl.Int32)
    index = index.set(index < 0, None)
    table = table.select(pl.exclude("type"))  # shown, never compared
    if not np.array_equal(rows, np.arange(table.height)):  # else the table itself will do, and no copy is needed
        table = table.select(pl.all().gather(index))
    return [index.alias(prefix + "row"), *table.rename(lambda name: prefix + name).get_columns()]


# Rows of the pair table that stand for several recorded values of one side: fused against split layers.
#
# Their statistics are those of the concatenation, which follow from the parts' own; no order of the parts is assumed,
# so a projection that interleaves its heads compares like one that does not. Where tensors were kept, they are
# concatenated.

CONCATENATED = "concatenated"
_MOST_NAMES = 4  # in full; a stack of experts has hundreds


def with_merged(frame: pl.DataFrame, target: Run, golden: Run, groups: Groups) -> pl.DataFrame:
    """The pair table with the rows at these places merged on the side that has several.

    Where all their tensors were kept, ``joined`` is set, and the files of a side stand in one text, as its names do.
    """
    changes: dict[str, dict[int, Any]] = {}
    for place, sides in groups.items():
        for prefix, run, rows in zip(("t_", "g_"), (target, golden), sides, strict=True):
            if len(rows) > 1:
                other = (golden if prefix == "t_" else target).table["shape"][sides[prefix == "t_"][0]]
                for column, value in _merged_row(run.table, list(rows), dims(other)).items():
                    changes.setdefault(prefix + column, {})[place] = value
    frame = with_values(frame, changes)
    kept = [place for place in groups if None not in (frame["t_file"][place], frame["g_file"][place])]
    rules = frame["rule"].to_list()
    told = {place: rules[place].replace(MERGED, CONCATENATED) for place in kept}
    return with_values(frame, {"joined": dict.fromkeys(kept, True), "rule": told})


def with_values(frame: pl.DataFrame, changes: Mapping[str, Mapping[int, Any]]) -> pl.DataFrame:
    """The table with other values at some places of these columns."""
    import polars as pl

    columns = []
    for name, values in changes.items():
        whole = frame[name].to_list()
        for place, value in values.items():
            whole[place] = value
        columns.append(pl.Series(name, whole, dtype=frame[name].dtype))
    return frame.with_columns(columns)


def _merged_row(table: pl.DataFrame, rows: list[int], whole: Shape | None) -> dict[str, Any]:
    part = table[rows]
    shapes = [dims(text) for text in part["shape"].to_list()]
    names = part["name"].to_list()
    if len(names) > _MOST_NAMES:
        names = [names[0], f"... {len(names)} in all", names[-1]]
    row: dict[str, Any] = {
        "name": ";".join(names), "shape": _joined_shape(shapes, whole), "digest": None,
        "file": ";".join(part["file"].to_list()) if part["file"].null_count() == 0 else None,
    }  # fmt: skip
    known = all((part[f"{stat}_kind"] == FLOAT).all() for stat in STATS) and None not in shapes
    values = (None,) * len(STATS)
    if known:
        from twinprobe._align.auto.fingerprints import merged

        sizes = np.array([np.prod(shape, dtype=np.float64) for shape in shapes if shape is not None])
        values = merged(part.select(STATS).to_numpy(), sizes)  # type: ignore[assignment]
    for stat, value in zip(STATS, values, strict=True):
        row |= {stat: value, f"{stat}_kind": FLOAT if known else ABSENT, f"{stat}_text": None}
    return row


def _joined_shape(shapes: list[Shape | None], whole: Shape | None) -> str | None:
    """The shape of the concatenation: that of the whole where some dimension and layout give it, else a guess.

    A guess is along the dimension in which the parts differ, else along the first or last.
    """
    known = [shape for shape in shapes if shape is not None]
    stacks = whole is not None and len(known) == len(shapes) and {len(shape) + 1 for shape in known} == {len(whole)}
    if stacks and whole and prod(known[0][:-1]) != prod(whole[:-1]) and sum(map(prod, known)) == prod(whole):
        return str(list(whole))
    if len(known) < len(shapes) or len({len(shape) for shape in known}) != 1 or not known[0]:
        return None
    for axis in range(len(known[0])):
        widths = [shape[axis] for shape in known]
        others = {shape[:axis] + shape[axis + 1 :] for shape in known}
        if whole is not None and len(others) == 1 and sorted((*others.pop(), sum(widths))) == sorted(whole):
            return str(list(whole))
    differing = [axis for axis in range(len(known[0])) if len({shape[axis] for shape in known}) > 1]
    if len(differing) > 1:
        return None
    # Parameters are stored [out, in]; activations have their features last.
    axis = differing[0] if differing else (0 if len(known[0]) <= 2 else len(known[0]) - 1)
    joined = list(known[0])
    joined[axis] = sum(shape[axis] for shape in known)
    return str(joined)


# Rows of the pair table whose two sides lay out the same tensor differently: they are compared after turning.

_WEIGHTS = (PARAMETER, GRADIENT)
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def with_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """Fill the column ``turn``: the order of the target's axes, as text, where it must be turned; the rule tells.

    A recorder's mark on one side, or an alignment that pairs tensors of other shapes, gives the reason to look.
    """
    import polars as pl

    turns = find_turns(_candidates(frame))
    turns |= _hidden(frame, turns)
    ours = (frame[f"{side}_dtype"].str.starts_with("paddle.").any() for side in "tg")
    if len({*ours}) > 1:
        turns |= _heads_first(frame)
    texts: list[str | None] = [None] * frame.height
    rules = frame["rule"].to_list() if turns else []
    for place, ways in turns.items():
        texts[place] = as_text(ways)
        told = "viewed in other axes" if ways[0] == VIEW else f"axes {' '.join(map(str, ways[0]))}"
        rules[place] = f"{rules[place]}, {told if len(ways) == 1 else 'axes turned'}"
    for place in np.flatnonzero(bools(frame["rule"].str.ends_with(REORDERED))).tolist():
        texts[place] = as_text([ANY_ORDER])
    columns = [pl.Series("turn", texts, dtype=pl.String)]
    if turns:
        columns.append(pl.Series("rule", rules, dtype=pl.String))
    return frame.with_columns(columns)


def as_text(ways: list[Axes]) -> str:
    """Orders of axes as the table keeps them."""
    return "|".join(",".join(map(str, axes)) for axes in ways)


def from_text(text: str) -> list[Axes]:
    """The orders of axes that a text of the table means."""
    return [tuple(int(axis) for axis in way.split(",") if axis) for way in text.split("|")]


def _candidates(frame: pl.DataFrame) -> list[Candidate]:
    tensors = (frame["t_kind"] == TENSOR) & (frame["g_kind"] == TENSOR)
    layouts = [(frame[f"{side}_layout"] == IN_OUT).fill_null(value=False) for side in "tg"]
    marked = (layouts[0] != layouts[1]) | _factors(frame)
    aligned = frame["rule"].str.starts_with(ALIGNED) | frame["rule"].str.contains(MEANING, literal=True)
    weights = frame["t_role"].is_in(_WEIGHTS)
    chosen = tensors & (marked | (aligned & (weights | (frame["t_shape"] != frame["g_shape"]))))
    found = []
    for place in np.flatnonzero(bools(chosen)).tolist():
        target, golden = dims(frame["t_shape"][place]), dims(frame["g_shape"][place])
        if not target or not golden:
            continue
        is_weight = bool(marked[place]) or frame["t_role"][place] in _WEIGHTS
        # Equal for the same weight of layers of one class: names without what is before the class, and numbers.
        names = _plain(frame["t_name"][place]), _plain(frame["g_name"][place])
        sort = names if is_weight else len(target)
        found.append(Candidate(place, target, golden, is_weight, bool(marked[place]), sort))
    return found


_SWAPPED: Axes = (0, 2, 1, 3)


def _heads_first(frame: pl.DataFrame) -> dict[int, list[Axes]]:
    """What the attention of Paddle takes and gives, [batch, words, heads, size], against [batch, heads, words,
    size]. Where there are as many heads as words, no shape shows it."""
    chosen = (frame["t_kind"] == TENSOR) & (frame["g_kind"] == TENSOR)
    for side in "tg":
        chosen &= frame[f"{side}_name"].str.contains(OF_ATTENTION)
    found: dict[int, list[Axes]] = {}
    for place in chosen.fill_null(value=False).arg_true().to_list():
        target, golden = dims(frame["t_shape"][place]) or (), dims(frame["g_shape"][place]) or ()
        if len(target) == len(golden) == len(_SWAPPED) and tuple(target[axis] for axis in _SWAPPED) == golden:
            found[place] = [_SWAPPED]
    return found


def _factors(frame: pl.DataFrame) -> pl.Series:
    """Factors of a matrix product that one run transposes by a flag of it (``transpose_y``), the other beforehand."""
    other = (frame["t_shape"] != frame["g_shape"]).fill_null(value=False)
    if not other.any():
        return other
    for side in "tg":
        other &= frame[f"{side}_name"].str.contains(MATMUL_FACTOR).fill_null(value=False)
    for place in other.arg_true().to_list():
        target, golden = dims(frame["t_shape"][place]) or (), dims(frame["g_shape"][place]) or ()
        other[place] = len(target) > 1 and golden == (*target[:-2], target[-1], target[-2])
    return other


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
        ways = [
            axes for axes in sorted(seen) if len(axes) == len(shape) and tuple(shape[axis] for axis in axes) == shape
        ]
        if ways:
            kept[text] = [tuple(range(len(shape))), *ways]
    places = frame.select(pl.arg_where(same & frame["t_shape"].is_in(list(kept)))).to_series().to_list()
    return {place: kept[frame["t_shape"][place]] for place in places if place not in turns}


def _plain(name: str) -> str:
    whole, _, tail = name.partition(".forward.") if ".forward." in name else name.partition(".parameters_grad.")
    return f"{whole.rpartition('.')[2]} {tail.rpartition('.')[2]}" if tail else _NUMBER.sub("", name)


# Loading pairs whose sides are laid out differently: tensors to turn, and several that are one on the other side.

SEPARATOR = ";"
_Side = tuple[Path, list[str]]  # folder, and the file (or files) of each row


def laid_out_jobs(
    sides: tuple[_Side, _Side], rows: Sequence[int], turns: list[str | None], joined: list[bool]
) -> Iterator[tuple[Loader, Loader]]:
    """Two loaders for each of these rows, the second of which must be called after the first."""

    def names(at: int, files: list[str]) -> list[str]:
        return files[at].split(SEPARATOR) if joined[at] else [files[at]]

    needed = ((folder, name) for at in rows for folder, files in sides for name in names(at, files))
    loaders: Iterator[Loader]
    if any(files[at].startswith(WHOLE) for at in rows for _, files in sides):
        from twinprobe._layout.pieces import load_whole

        loaders = (partial(load_whole, folder, name) for folder, name in needed)
    else:
        from twinprobe._runs.tensors.tensor_files import tensor_loaders

        loaders = tensor_loaders(needed)
    for at in rows:
        target, golden = (list(islice(loaders, len(names(at, files)))) for _, files in sides)
        turn = turns[at]
        if turn is None and not joined[at]:
            yield target[0], golden[0]
        else:
            both = _Together(target, golden, [] if turn is None else from_text(turn))
            yield both.target, both.golden


class _Together:
    """Tensors that are laid out like the other side's: both sides are loaded at once."""

    def __init__(self, targets: list[Loader], goldens: list[Loader], ways: list[Axes]) -> None:
        self._targets, self._goldens, self._ways = targets, goldens, ways
        self._golden: HostTensor | None = None

    def target(self) -> HostTensor:
        """Load both sides; the target's tensor, turned, or put together if it has several."""
        from twinprobe._measure.elements import joined, turned

        targets, goldens = [load() for load in self._targets], [load() for load in self._goldens]
        whole = targets[0] if len(targets) == 1 else joined(targets, goldens[0])
        self._golden = goldens[0] if len(goldens) == 1 else joined(goldens, whole)
        return turned(whole, self._ways, self._golden) if self._ways else whole

    def golden(self) -> HostTensor:
        """The golden tensor, loaded with the target's."""
        golden, self._golden = self._golden, None
        assert golden is not None
        return golden
