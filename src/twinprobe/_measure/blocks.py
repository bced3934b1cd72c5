"""What is inside a pair of tensors, small enough for a screen: blocks over two axes, histograms, the worst elements."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._runs.dtypes import COMPLEX
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import BadInput

Floats = NDArray[np.float64]
STRIP = 1 << 17
# Of more elements than this, strips at even distances are read: a screen shows no more, and zooming in reads all.
_MOST_READ = 1 << 22
# Exponents of two from the smallest float64 that is not denormal to the largest: one bin each.
_LOWEST, _HIGHEST = -1075, 1025
_WORST = 12
_SAMPLE = 1 << 16
_SHOWN_POINTS = 240
QUANTILES = (0.0, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0)


@dataclass(frozen=True)
class TensorSlice:
    """Which part of a tensor: two axes to look along, and for every axis a range (one index fixes an axis)."""

    rows: int
    columns: int
    ranges: tuple[tuple[int, int], ...]


@dataclass
class _Totals:
    """What is gathered over all strips."""

    blocks: int
    count: Floats = field(init=False)
    largest: Floats = field(init=False)
    squares: Floats = field(init=False)
    target: Floats = field(init=False)
    golden: Floats = field(init=False)
    histograms: NDArray[np.int64] = field(init=False)
    zeros: NDArray[np.int64] = field(init=False)
    odd: NDArray[np.int64] = field(init=False)
    worst: list[tuple[float, int, float, float]] = field(default_factory=list)
    sample: list[NDArray[np.float64]] = field(default_factory=list)
    products: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.count, self.largest, self.squares, self.target, self.golden = (np.zeros(self.blocks) for _ in range(5))
        self.histograms = np.zeros((3, _HIGHEST - _LOWEST), dtype=np.int64)
        self.zeros, self.odd = np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)
        self.products = np.zeros(3)


def usual_cut(shape: Sequence[int]) -> TensorSlice:
    """The last two axes that are longer than one, over all of the others."""
    long = [axis for axis, size in enumerate(shape) if size > 1] or list(range(len(shape)))
    columns = long[-1] if long else 0
    rows = long[-2] if len(long) > 1 else -1
    return TensorSlice(rows, columns, tuple((0, size) for size in shape))


def checked_cut(shape: Sequence[int], rows: int, columns: int, ranges: Sequence[tuple[int, int]]) -> TensorSlice:
    """A cut that a request asks for; BadInput where the tensor has no such part."""
    axes = range(len(shape))
    whole = [(0, size) for size in shape]
    for axis, span in enumerate(ranges[: len(whole)]):
        whole[axis] = span
    inside = all(0 <= start < end <= size for (start, end), size in zip(whole, shape, strict=True))
    if columns not in axes or (rows not in axes and rows != -1) or rows == columns or not inside:
        raise BadInput(f"a tensor of shape {list(shape)} has no such part")
    return TensorSlice(rows, columns, tuple(whole))


def block_summary(target: HostTensor, golden: HostTensor, cut: TensorSlice, *, most: tuple[int, int]) -> dict[str, Any]:
    """All about a part of a pair that fits a screen, as plain lists and numbers; the files are read in strips."""
    if target.shape != golden.shape:
        raise BadInput(f"the shapes differ: {list(target.shape)} against {list(golden.shape)}")
    if target.dtype in COMPLEX or golden.dtype in COMPLEX or not prod(target.shape):
        raise BadInput("complex and empty tensors are not drawn")
    shape = target.shape or (1,)
    spans = [cut.ranges[axis] if cut.ranges else (0, 1) for axis in (cut.rows, cut.columns)]
    sizes = [spans[0][1] - spans[0][0] if cut.rows >= 0 else 1, spans[1][1] - spans[1][0]]
    high, wide = (min(size, limit) for size, limit in zip(sizes, most, strict=True))
    totals = _Totals(high * wide)
    elements = prod(end - start for start, end in cut.ranges) if cut.ranges else 1
    for start, places in _strips(shape, cut, -(-elements // _MOST_READ)):
        stop = start + len(places)
        flat = np.arange(start, stop)[places]
        if not len(flat):
            continue
        pair = [numbers(side.dtype, side.data[start:stop], FLOAT64)[places] for side in (target, golden)]
        blocks = _place(flat, shape, cut.columns, spans[1], wide)
        if cut.rows >= 0:
            blocks += wide * _place(flat, shape, cut.rows, spans[0], high)
        _add(totals, flat, blocks, pair[0], pair[1], max(1, elements // _SAMPLE))
    return _summarised(totals, target, golden, cut, (high, wide), elements, shape)


# Of one tensor alone: half a screen of blocks, about 4 kB as text.
_ALONE = (16, 24)


def one_summary(tensor: HostTensor) -> dict[str, Any]:
    """What is inside one tensor, for runs that keep none: the difference from zero is the tensor itself."""
    nothing = HostTensor("float32", tensor.shape, np.broadcast_to(np.float32(0), prod(tensor.shape)))
    found = block_summary(tensor, nothing, usual_cut(tensor.shape), most=_ALONE)
    histogram, quantiles = found["histogram"], found["quantiles"]
    return {
        "shape": found["shape"], "dtype": tensor.dtype, "rows": found["rows"], "columns": found["columns"],
        "size": found["size"], "read": found["read"],
        "max": found["max"], "rms": found["rms"], "mean": found["target"],
        "histogram": {"from": histogram["from"], "counts": histogram["counts"][0], "zeros": histogram["zeros"][0],
                      "odd": histogram["odd"][0]},
        "quantiles": {"exact": quantiles["exact"], "values": quantiles["values"][0]},
        "largest": [[index, value] for index, value, _, _ in found["worst"]],
    }  # fmt: skip


def _strips(shape: Sequence[int], cut: TensorSlice, every: int) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    """Pieces of the flat tensor that hold elements of the cut, one of so many, and which of theirs belong to it.

    Axes before the first one that is not fixed are jumped over, so that a slice of a large file reads little of it.
    """
    ranges = cut.ranges or ((0, 1),)
    strides = [prod(shape[axis + 1 :]) for axis in range(len(shape))]
    first = next((axis for axis, (start, end) in enumerate(ranges) if end - start > 1), len(ranges) - 1)
    base = sum(ranges[axis][0] * strides[axis] for axis in range(first))
    begin, end = (base + at * strides[first] for at in ranges[first])
    narrow = [axis for axis in range(first + 1, len(shape)) if ranges[axis] != (0, shape[axis])]
    for start in range(begin, end, STRIP * every):
        stop = min(start + STRIP, end)
        keep = np.ones(stop - start, dtype=bool)
        if narrow:
            flat = np.arange(start, stop)
            for axis in narrow:
                at = flat // strides[axis] % shape[axis]
                keep &= (at >= ranges[axis][0]) & (at < ranges[axis][1])
        yield start, keep


def _place(
    flat: NDArray[np.int64], shape: Sequence[int], axis: int, span: tuple[int, int], blocks: int
) -> NDArray[Any]:
    """In which of so many blocks along an axis each element lies."""
    at = flat // prod(shape[axis + 1 :]) % shape[axis] - span[0]
    return at * blocks // (span[1] - span[0])


def _add(totals: _Totals, flat: NDArray[Any], blocks: NDArray[Any], target: Floats, golden: Floats, every: int) -> None:
    with np.errstate(all="ignore"):
        off = np.abs(target - golden)
        # Two infinities of one sign, or two that are no number, are no difference.
        off[(target == golden) | (np.isnan(target) & np.isnan(golden))] = 0.0
        off[np.isnan(off)] = np.inf
    sound = np.isfinite(target) & np.isfinite(golden)
    clean = [np.where(sound, values, 0.0) for values in (target, golden, off)]
    # Blocks are runs of neighbours: sums over runs are cheap, and there are few runs.
    edges = np.concatenate(([0], np.flatnonzero(np.diff(blocks)) + 1))
    at = blocks[edges]
    np.maximum.at(totals.largest, at, np.maximum.reduceat(off, edges))
    np.add.at(totals.count, at, np.diff(np.append(edges, len(blocks))))
    with np.errstate(over="ignore"):
        sums = (totals.squares, clean[2] * clean[2]), (totals.target, clean[0]), (totals.golden, clean[1])
        for total, values in sums:
            np.add.at(total, at, np.add.reduceat(values, edges))
        totals.products += [clean[0] @ clean[0], clean[1] @ clean[1], clean[0] @ clean[1]]
    for side, values in enumerate((target, golden, off)):
        finite = np.isfinite(values)
        zero = values == 0
        totals.odd[side] += int((~finite).sum())
        totals.zeros[side] += int(zero.sum())
        exponents = np.frexp(values[finite & ~zero])[1].astype(np.int64)
        totals.histograms[side] += np.bincount(exponents - _LOWEST, minlength=_HIGHEST - _LOWEST)
    far = np.argpartition(-off, min(_WORST, len(off) - 1))[:_WORST] if len(off) > _WORST else np.arange(len(off))
    found = zip(off[far].tolist(), flat[far].tolist(), target[far].tolist(), golden[far].tolist(), strict=True)
    totals.worst = sorted([*totals.worst, *found], key=lambda one: (-one[0], one[1]))[:_WORST]
    chosen = np.flatnonzero(flat % every == 0) if every > 1 else slice(None)
    totals.sample.append(np.stack([target[chosen], golden[chosen], off[chosen]]))


def _summarised(
    totals: _Totals, target: HostTensor, golden: HostTensor, cut: TensorSlice, size: tuple[int, int], elements: int,
    shape: Sequence[int],
) -> dict[str, Any]:  # fmt: skip
    count = np.maximum(totals.count, 1)
    both = np.abs(np.concatenate([totals.target / count, totals.golden / count]))
    scale = float(both.max(initial=0.0))
    used = np.flatnonzero(totals.histograms.any(axis=0))
    span = slice(int(used[0]), int(used[-1]) + 1) if len(used) else slice(0, 0)
    sample = np.concatenate(totals.sample, axis=1)
    finite = sample[:, np.isfinite(sample).all(axis=0)]
    quantiles = [[_short(x) for x in np.quantile(row, QUANTILES)] if row.size else [] for row in finite]
    points = finite[:, :: max(1, finite.shape[1] // _SHOWN_POINTS)][:2]
    tt, gg, tg = totals.products.tolist()
    slope = tg / gg if gg > 0 else None
    left = max(tt - (tg * tg / gg if gg > 0 else 0.0), 0.0)
    error = max(tt - 2 * tg + gg, 0.0)
    return {
        "shape": list(shape), "dtypes": [target.dtype, golden.dtype], "rows": cut.rows, "columns": cut.columns,
        "ranges": [list(span) for span in cut.ranges], "size": list(size), "elements": elements,
        "read": int(totals.count.sum()),
        "max": _packed(totals.largest), "rms": _packed(np.sqrt(totals.squares / count)),
        "target": _packed(totals.target / count, scale), "golden": _packed(totals.golden / count, scale),
        "histogram": {"from": _LOWEST + span.start, "counts": totals.histograms[:, span].tolist(),
                      "zeros": totals.zeros.tolist(), "odd": totals.odd.tolist()},
        "quantiles": {"at": list(QUANTILES), "exact": elements <= _SAMPLE,
                      "values": quantiles},
        "worst": [[[int(at) for at in np.unravel_index(place, shape)], _short(t), _short(g), _short(off)]
                  for off, place, t, g in totals.worst if off > 0],
        "points": [[_short(x) for x in side] for side in points],
        # A factor is drawn where it explains nine tenths of the difference.
        "slope": _short(slope) if slope is not None and error > 0 and left < 0.01 * error else None,
    }  # fmt: skip


def _short(value: float) -> float | str:
    """A number of six digits; JSON has no infinity, which is written as text."""
    return float(f"{value:.6g}") if np.isfinite(value) else repr(float(value))


def _packed(values: Floats, scale: float | None = None) -> dict[str, Any]:
    """Shares of the largest number as half floats: two bytes each; infinity stays infinity."""
    finite = np.abs(values[np.isfinite(values)])
    top = float(finite.max(initial=0.0)) if scale is None else scale
    with np.errstate(over="ignore", invalid="ignore"):
        shares = (values / top if top > 0 else values).astype("<f2")
    return {"scale": _short(top), "f16": base64.b64encode(shares.tobytes()).decode()}
