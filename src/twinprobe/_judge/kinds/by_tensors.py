"""What kind of difference is it? Answered from the two tensors.

Each rule says how golden would have to be changed to become target, and holds where that leaves a small part of the
difference. These are shapes of the difference: a cause, such as an argument that differs, goes before them, so that no
shape has more confidence than SHAPE. Tensors of more than a few million elements are looked at in evenly spaced slices,
so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise, permutations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import INPUT, Kind
from twinprobe._judge.operations import factor_name, percent, shown

Array = NDArray[Any]

_MOST = 1 << 22  # elements that are looked at
_COLUMNS = 256  # of a slice, when slices are matched
_SLICES = 2048  # that are matched with each other
_EXPLAINED = 0.9  # of the squared difference: what a rule must leave no more than the rest of
_FEWEST = 16  # elements, below which only an exact rule is believed
SHAPE = 0.9
_GROSS = 0.05  # a part that differs does so by more: a few elements of noise are none
_FILL = 1e37  # values beyond are no results: masks are filled with them


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two tensors made ready: float64, axes of one element left out, what is not finite or a fill value set to 0."""

    target: Array
    golden: Array
    difference: Array
    axes: tuple[int, ...]
    """The original number of each axis that is left."""
    steps: tuple[int, ...]
    """Every how manieth index of that axis is looked at."""
    eps: float
    """Of the coarsest type whose numbers all values are."""
    gate: float
    """The relative error that may be noise."""
    norm: float
    """Of golden."""
    error: float
    """The norm of the difference, relative to golden's."""

    def explained(self, model: Array, parameters: int = 1) -> float:
        """The share of the squared difference, or of target where that is less, that goes away when golden is replaced
        by ``model``."""
        total = min(float(np.sum(np.square(self.difference))), float(np.sum(np.square(self.target))))
        left = float(np.sum(np.square(self.target - model)))
        free = self.golden.size - parameters
        return 1 - (left / free) / (total / self.golden.size) if total and free > 0 else 0.0

    def slices(self, axis: int, columns: int = _COLUMNS) -> tuple[Array, Array]:
        """Both tensors as one row for each index of an axis; of long rows, evenly spaced elements."""
        sides = []
        for side in (self.target, self.golden):
            rows = np.moveaxis(side, axis, 0).reshape(side.shape[axis], -1)
            step = max(1, -(-rows.shape[1] // columns))
            sides.append(rows[:, :: step if step == 1 or step % 2 else step + 1])
        return sides[0], sides[1]


def tensor_kinds(
    target: Array, golden: Array, *, expected: float = 0.0, others: Mapping[str, Array] | None = None
) -> list[Kind]:
    """All kinds that hold, best first. ``noise`` alone where the difference is small and has no structure; nothing
    where there is no difference, or none of the rules explains it.

    ``expected`` is the relative error that noise explains; ``others`` are tensors of the golden run that the difference
    may turn out to be, by name: the inputs of the call.
    """
    target, golden = np.asarray(target), np.asarray(golden)
    if not target.size or target.dtype.kind not in "fiub" or golden.dtype.kind not in "fiub":
        return []
    if target.shape != golden.shape:
        return [kind for kind in (_other_shape(target, golden),) if kind is not None]
    sampled, steps = _sampled(target.shape)
    target, golden = target[sampled], golden[sampled]
    answers = [_not_finite(target, golden)]
    pair = _prepared(target, golden, steps, expected)
    if pair.error:
        answers += [rule(pair) for rule in _RULES]
        answers += [_summand(pair, others, sampled)] if others else []
    kinds = [kind for kind in answers if kind is not None]
    if not kinds and 0 < pair.error < pair.gate:
        sentence = f"no structure: off by {percent(pair.error)}, {pair.error / pair.eps:.2g} eps"
        kinds.append(Kind("noise", sentence, 0.8, {"error": pair.error, "eps": pair.eps}))
    shapes = [replace(kind, confidence=min(kind.confidence, 1.0) * SHAPE) for kind in kinds]
    return sorted(shapes, key=lambda kind: -kind.confidence)


def tensor_cause(
    name: str, role: str, target: Array, golden: Array, *, expected: float = 0.0,
    from_outside: bool = True, others: Mapping[str, Array] | None = None,
) -> Kind | None:  # fmt: skip
    """An input or parameter of a call differs, and how; None where it does not, or by no more than noise. An input that
    does not come ``from_outside`` was changed between two recorded calls: then only the shape can be named."""
    kinds = tensor_kinds(target, golden, expected=expected, others=others)
    if role == INPUT and not from_outside and target.dtype.kind not in "iub":  # integers are ids and masks
        found = next((kind for kind in kinds if kind.name != "noise"), None)
        if found is None:
            return None
        # What comes out follows from it: no shape there may go before this one.
        return replace(found, sentence=f"{name}: {found.sentence}", confidence=max(found.confidence, SHAPE + 0.005))
    if target.shape != golden.shape:
        sentence = f"{name} differs: shape {list(target.shape)} against {list(golden.shape)}"
        return Kind(role, sentence, 0.95, {role: name})
    if kinds and kinds[0].name != "noise":
        evidence = {role: name, "kind": kinds[0].name, **kinds[0].evidence}
        return Kind(role, f"{name} differs: {kinds[0].sentence}", 0.95, evidence)
    if kinds or np.array_equal(target, golden, equal_nan=target.dtype.kind == "f"):
        return None
    share = float(np.mean(target != golden))
    return Kind(role, f"{name} differs in {percent(share)} of its elements", 0.95, {role: name})


# Making ready


def _sampled(shape: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[int, ...]]:
    """Which elements are looked at: of the first axes, every so manieth index."""
    steps = [1] * len(shape)
    count = int(np.prod(shape, dtype=np.int64))
    for axis, size in enumerate(shape):
        while count > _MOST and size // (steps[axis] * 2) >= 8:
            steps[axis] *= 2
            count //= 2
    return tuple(slice(None, None, step) for step in steps), tuple(steps)


def _prepared(target: Array, golden: Array, steps: tuple[int, ...], expected: float) -> _Pair:
    eps = max(_resolution(target), _resolution(golden))
    first, second = target.astype(np.float64), golden.astype(np.float64)
    with np.errstate(invalid="ignore"):
        usable = (np.abs(first) < _FILL) & (np.abs(second) < _FILL)  # False for NaN
    if not usable.all():
        first, second = np.where(usable, first, 0), np.where(usable, second, 0)
    axes = tuple(axis for axis, size in enumerate(first.shape) if size > 1)
    shape = tuple(first.shape[axis] for axis in axes) or (1,)
    first, second = first.reshape(shape), second.reshape(shape)
    difference = first - second
    norm, off = float(np.linalg.norm(second)), float(np.linalg.norm(difference))
    gate = max(4 * expected, 2 * eps if eps > 1e-4 else 16 * eps)
    error = off / norm if norm else float(off > 0)
    return _Pair(
        first, second, difference, axes, tuple(steps[axis] for axis in axes) or (1,), eps, gate, norm, error
    )  # fmt: skip


def _resolution(values: Array) -> float:
    """The epsilon of the coarsest type that holds all of these values."""
    if values.dtype.kind != "f":
        return float(np.finfo(np.float32).eps)
    if values.dtype != np.float32:
        return float(np.finfo(values.dtype).eps)
    bits = np.ascontiguousarray(values).view(np.uint32)
    if not (bits & 0xFFFF).any() and bits.any():
        return 2.0**-7
    if not (bits & 0x1FFF).any() and bits.any():
        return 2.0**-10
    return float(np.finfo(np.float32).eps)


def _indices(pair: _Pair, axis: int, chosen: Array) -> str:
    """Indices of an axis in words, as ranges: ``16-31 of axis 2 (64 long)``."""
    step, size = pair.steps[axis], pair.golden.shape[axis]
    places = (np.flatnonzero(chosen) if chosen.dtype == bool else np.sort(chosen)) * step
    cuts = np.flatnonzero(np.diff(places) > step) + 1
    ranges = [(int(part[0]), int(part[-1])) for part in np.split(places, cuts)]
    words = [f"{low}-{high}" if high > low else str(low) for low, high in ranges[:4]]
    more = f" and {len(places)} in all" if len(ranges) > 4 else ""
    number = pair.axes[axis] if pair.axes else 0
    return f"{', '.join(words)}{more} of axis {number} ({size * step} long)"


# The rules


def _not_finite(target: Array, golden: Array) -> Kind | None:
    """NaN or infinity on one side only."""
    if target.dtype.kind != "f" or golden.dtype.kind != "f":
        return None
    finite = np.isfinite(target), np.isfinite(golden)
    side = "target" if (finite[1] & ~finite[0]).any() else "golden"
    values, usable, usable_there = (target, *finite) if side == "target" else (golden, *finite[::-1])
    only = usable_there & ~usable
    if not only.any():
        return None
    nan = bool(np.isnan(values[only]).any())
    if not usable_there.all() and not nan:
        return None  # infinities in both runs, in other places: a mask
    place = tuple(int(index) for index in np.argwhere(only)[0])
    count = int(only.sum())
    word = "NaN" if nan else "infinite"
    evidence = {"side": side, "count": count, "first": place}
    if side == "target" and not nan:
        least = float(np.abs(golden[only].astype(np.float64)).min())
        rest = np.abs(golden[usable & usable_there].astype(np.float64))
        if not rest.size or least >= rest.max():
            sentence = f"overflow: {count} values are infinite, all of which are at least {shown(least)} in golden"
            return Kind("saturation", sentence, 0.99, evidence)
    return Kind("nan", f"{count} values are {word} in {side} only, the first at {list(place)}", 1.0, evidence)


def _dtype(pair: _Pair) -> Kind | None:
    """Every value is golden's, rounded to a coarser type; or all values are numbers of a coarser type."""
    if pair.golden.size < _FEWEST:
        return None
    step = max(1, pair.golden.size >> 12)
    for side, coarse, fine in (("target", pair.target, pair.golden), ("golden", pair.golden, pair.target)):
        few, same = coarse.reshape(-1)[::step], fine.reshape(-1)[::step]
        for name, bits, eps in (("bf16", 8, 2.0**-7), ("fp16", 11, 2.0**-10), ("tf32", 11, 2.0**-10)):
            if float(np.mean(_rounded(same, bits) == few)) < 0.9 and np.any(_rounded(few, bits) != few):
                continue
            rounded = _rounded(fine, bits)
            if name == "fp16" and float(np.abs(fine).max()) > 65504:
                continue
            if float(np.mean(rounded != fine)) < 0.25:
                break  # most of it is that coarse already
            if float(np.mean(rounded == coarse)) >= 0.999:
                sentence = f"every value of {side} is that of the other run, rounded to {name}"
                return Kind("dtype", sentence, 0.98, {"side": side, "dtype": name})
            if name != "tf32" and pair.error < eps and np.array_equal(_rounded(coarse, bits), coarse):
                sentence = f"all values of {side} are {name} numbers, those of the other run are not"
                return Kind("dtype", sentence, 0.75, {"side": side, "dtype": name})
    return None


def _rounded(values: Array, bits: int) -> Array:
    """Rounded to so many bits of mantissa, ties to even."""
    mantissa, exponent = np.frexp(values)
    rounded: Array = np.ldexp(np.rint(mantissa * (1 << bits)) / (1 << bits), exponent)
    return rounded


def _factor(pair: _Pair) -> Kind | None:
    """Golden times a constant; the sign, where it is -1."""
    square = float(np.sum(np.square(pair.golden)))
    if not square or pair.error < pair.gate:
        return None
    if not pair.target.any():
        return Kind("factor", "target is all zeros", 0.7, {"factor": 0.0})
    factor = float(np.sum(pair.target * pair.golden)) / square
    model = factor * pair.golden
    left = float(np.linalg.norm(pair.target - model)) / pair.norm
    nonzero = int(np.count_nonzero(pair.golden))
    if nonzero < _FEWEST:  # few values may be in proportion by chance
        name = factor_name(factor, pair.golden.shape, max(1e-6, pair.eps))
        if not name or left > max(4 * pair.eps, 1e-6) * max(1.0, abs(factor)):
            return None
        confidence = 0.4 if nonzero == 1 else 0.7
    else:
        confidence = pair.explained(model)
        name = factor_name(factor, pair.golden.shape, max(1e-5, pair.eps / 4, 3 * left / np.sqrt(nonzero)))
        small = 0.15 * min(abs(factor), abs(factor - 1))
        if confidence < _EXPLAINED or left > max(small, 0.5 * pair.eps * abs(factor)):
            return None
    evidence = {"factor": factor, "residual": left}
    if abs(factor + 1) < max(1e-3, pair.eps):
        return Kind("sign", f"target = -golden (residual {percent(left)})", confidence, evidence)
    meaning = f" = {name}" if name and name != shown(factor) else ""
    sentence = f"target = {shown(factor)}{meaning} x golden (residual {percent(left)})"
    return Kind("factor", sentence, confidence, evidence)


def _offset(pair: _Pair) -> Kind | None:
    """Golden plus something that is constant along axes: one number, or a bias."""
    if pair.error < pair.gate or pair.golden.size < _FEWEST:
        return None
    count = pair.golden.ndim
    whole = tuple(range(count))
    groups = [whole, *(tuple(one for one in whole if one != axis) for axis in whole), *((axis,) for axis in whole)]
    best: tuple[float, tuple[int, ...], Array] | None = None
    for along in dict.fromkeys(group for group in groups if group):
        repeats = int(np.prod([pair.golden.shape[axis] for axis in along]))
        if repeats < 2 or (repeats < 4 and pair.golden.size < 256):
            continue
        mean = pair.difference.mean(axis=along, keepdims=True)
        explained = pair.explained(pair.golden + mean, mean.size)
        if explained < (0.98 if repeats >= 4 else 0.995) or (best is not None and explained < best[0] + 0.01):
            continue
        # Where golden itself is the same along these axes, every difference is.
        spread = float(np.sum(np.square(pair.golden - pair.golden.mean(axis=along, keepdims=True))))
        if spread < (0.05 if along != whole else 1e-8) * pair.norm**2:
            continue
        best = (explained, along, mean)
    if best is None:
        return None
    explained, along, mean = best
    if along == whole:
        value = float(mean.reshape(-1)[0])
        sentence = f"target = golden {'+' if value >= 0 else '-'} {shown(abs(value))}"
        return Kind("offset", sentence, explained, {"offset": value})
    left = [pair.axes[axis] for axis in whole if axis not in along]
    sizes = " x ".join(str(mean.shape[axis] * pair.steps[axis]) for axis in whole if axis not in along)
    places = ", ".join(str(pair.axes[axis]) for axis in along)
    sentence = (
        f"the difference is the same everywhere along axis {places}: {sizes} numbers along axis "
        f"{', '.join(map(str, left))} (a bias or an embedding), norm {shown(float(np.linalg.norm(mean)))}"
    )
    return Kind("offset", sentence, explained - 0.02, {"constant along": [pair.axes[axis] for axis in along]})


def _saturation(pair: _Pair) -> Kind | None:
    """One side is the other, cut off at a bound."""
    for side, cut, whole in (("target", pair.target, pair.golden), ("golden", pair.golden, pair.target)):
        low, high = float(cut.min()), float(cut.max())
        tolerance = max(pair.gate, 4 * pair.eps) * np.abs(whole) + 1e-12 * abs(high - low)
        other = np.abs(pair.difference) > tolerance
        above, below = other & (cut == high) & (whole > high), other & (cut == low) & (whole < low)
        count = int(above.sum() + below.sum())
        if count < 4 or count != int(other.sum()) or low == high or count > 0.95 * cut.size:
            continue
        bounds = [shown(one) for one, hit in ((low, below.any()), (high, above.any())) if hit]
        sentence = f"{side} is cut off at {' and '.join(bounds)}: {count} of {cut.size} values"
        return Kind("saturation", sentence, 0.95, {"side": side, "bounds": bounds, "count": count})
    return None


def _random(pair: _Pair) -> Kind | None:
    """Other elements are zero, and the rest is in proportion: another mask of a dropout."""
    zero, also = pair.target == 0, pair.golden == 0
    both, differ = ~zero & ~also, int((zero ^ also).sum())
    shares = float(zero.mean()), float(also.mean())
    few = pair.golden.size < 64 or max(shares) < 0.01 or both.sum() < _FEWEST
    if few or not differ or differ < 0.2 * min(zero.sum(), also.sum()):
        return None
    golden, target = pair.golden[both], pair.target[both]
    square = float(golden @ golden)
    factor = float(target @ golden) / square
    left = float(np.linalg.norm(target - factor * golden)) / np.sqrt(square)
    if left > max(pair.gate, 1e-5) or not 0.2 < factor < 5:
        return None
    if min(shares) > 0.01:
        sentence = f"another mask: {differ} other elements are zero, the rest is golden's times {shown(factor)}"
        return Kind("random", sentence, 0.95, {"factor": factor, "zeros": shares})
    rate = max(shares)
    side, scale = ("target", factor) if shares[0] > shares[1] else ("golden", 1 / factor)
    if abs(scale * (1 - rate) - 1) > max(0.01, 3 * np.sqrt(rate * (1 - rate) / pair.golden.size)):
        return None
    sentence = f"a share of {rate:.3g} of {side}'s values is zero, the rest is the other run's times {shown(scale)}"
    return Kind("random", sentence, 0.9, {"rate": rate, "factor": scale})


def _order(pair: _Pair) -> Kind | None:
    """The same values in another order: axes exchanged, an axis shifted, its slices exchanged."""
    distinct = len(np.unique(pair.golden.reshape(-1)[: 1 << 14]))
    if (
        pair.error < max(0.02, pair.gate)
        or distinct < min(_FEWEST, pair.golden.size // 4)
        or pair.golden.size < _FEWEST
    ):
        return None  # in a mask, or ones and zeros, an order does not show
    for rule in (_transposed, _shifted, _exchanged):
        found = rule(pair)
        if found is not None:
            return found
    tolerance = max(0.02 * pair.error, 2 * pair.eps)
    if abs(float(np.linalg.norm(pair.target)) / pair.norm - 1) > tolerance or pair.golden.size < 64 or pair.error < 0.2:
        return None
    first, second = np.sort(pair.target, axis=None), np.sort(pair.golden, axis=None)
    left = float(np.linalg.norm(first - second)) / pair.norm
    if left > tolerance:
        return None
    sentence = f"the same values in another order, not an exchange along one axis (residual {percent(left)})"
    return Kind("permutation", sentence, 0.7, {"residual": left})


def _transposed(pair: _Pair) -> Kind | None:
    shape = pair.golden.shape
    if not 2 <= len(shape) <= 4 or any(step > 1 for step in pair.steps):
        return None
    for order in permutations(range(len(shape))):
        if order == tuple(range(len(shape))):
            continue
        turned = pair.golden.transpose(order)
        fits = turned.shape == shape
        explained = pair.explained(turned.reshape(shape))
        if explained >= _EXPLAINED:
            axes = [pair.axes[axis] for axis in order]
            how = "" if fits else ", then read in its old shape"
            sentence = f"target is golden with its axes in the order {axes}{how}"
            return Kind("transposition", sentence, explained, {"order": axes, "reshaped": not fits})
    return None


def _shifted(pair: _Pair) -> Kind | None:
    best: Kind | None = None
    for axis, size in enumerate(pair.golden.shape):
        if size < 4 or pair.steps[axis] > 1:
            continue
        target, golden = pair.slices(axis)
        length = 2 * size
        product = np.fft.rfft(target, length, axis=0) * np.conj(np.fft.rfft(golden, length, axis=0))
        correlation = np.fft.irfft(product, length, axis=0).sum(axis=1)
        by = int(np.argmax(correlation))
        by = by - length if by >= size else by
        kept = size - abs(by)
        if by == 0 or kept < max(3, size // 2):
            continue
        ahead = np.moveaxis(pair.target, axis, 0)[max(by, 0) : size + min(by, 0)]
        before = np.moveaxis(pair.golden, axis, 0)[max(-by, 0) : size - max(by, 0)]
        inside = np.moveaxis(pair.difference, axis, 0)[max(by, 0) : size + min(by, 0)]
        total = float(np.sum(np.square(inside)))
        explained = 1 - float(np.sum(np.square(ahead - before))) / total if total else 0.0
        if ahead.size < _FEWEST or explained < _EXPLAINED or (best is not None and explained <= best.confidence):
            continue
        edge, source = np.moveaxis(pair.target, axis, 0), np.moveaxis(pair.golden, axis, 0)
        rolled = np.allclose(*((edge[:by], source[-by:]) if by > 0 else (edge[by:], source[:-by])), rtol=1e-2)
        sentence = f"target is golden moved by {by} along axis {pair.axes[axis]}{', round the end' if rolled else ''}"
        name = "shift"
        if rolled and abs(by) >= max(4, size // 8):  # as when two tensors are joined the other way round
            first = by % size
            sentence = f"the first {size - first} and the last {first} indices of axis {pair.axes[axis]} changed places"
            name = "permutation"
        best = Kind(name, sentence, explained, {"axis": pair.axes[axis], "by": by, "rolled": rolled})
    return best


def _exchanged(pair: _Pair) -> Kind | None:
    best: Kind | None = None
    for axis, size in enumerate(pair.golden.shape):
        if size > _SLICES or pair.steps[axis] > 1 or size < 2:
            continue
        target, golden = pair.slices(axis)
        if target.shape[1] < 4:
            continue
        # The nearest slice of golden for each of target's; what is as near as its own stays where it is.
        weight, own = np.sum(np.square(golden), axis=1), np.arange(size)
        near = weight[None] - 2 * (target @ golden.T)
        source = np.argmin(near, axis=1)
        source = np.where(weight[source] < 0.01 * weight.mean(), own, source)  # rows of zeros are no slices
        tolerance = 1e-9 * float(np.abs(near).max())
        stays = near[own, own] <= near[own, source] + tolerance
        source = np.where(stays, own, source)
        free = set(own[~stays])  # of slices that are alike, each is taken once
        for place in own[~stays]:
            alike = free.intersection(np.flatnonzero(near[place] <= near[place, source[place]] + tolerance))
            source[place] = min(alike, default=source[place])
            free.discard(source[place])
        moved = source != own
        if not moved.any():
            continue
        explained = pair.explained(np.take(pair.golden, source, axis=axis))
        one_to_one = len(np.unique(source)) == size
        enough = _EXPLAINED if one_to_one else 0.98
        if explained < enough or (best is not None and explained <= best.confidence):
            continue
        how = _order_name(source) if one_to_one else "some indices stand in several places"
        sentence = f"golden's slices in another order along axis {pair.axes[axis]}: {how}"
        confidence = explained if one_to_one else 0.85 * explained
        order = source.tolist() if size <= 256 else []
        best = Kind("permutation", sentence, confidence, {"axis": pair.axes[axis], "order": order})
    return best


def _order_name(source: Array) -> str:
    """An order of indices in words."""
    size, own = len(source), np.arange(len(source))
    if np.array_equal(source, own[::-1]):
        return "reversed"
    for block in (one for one in range(8, size + 1, 2) if size % one == 0):  # of a head, or the whole axis
        halves = np.arange(block).reshape(2, -1).T.reshape(-1)
        for order, words in ((halves, "halves interleaved"), (np.argsort(halves), "pairs put into halves")):
            if np.array_equal(source, (own.reshape(-1, block)[:, order]).reshape(-1)):
                inside = f" in blocks of {block}" if block < size else ""
                return f"{words}{inside}, as between the two rotary layouts"
    cuts = np.concatenate([[0], np.flatnonzero(np.diff(source) != 1) + 1, [size]])
    runs = [(int(source[low]), int(source[high - 1])) for low, high in pairwise(cuts)]
    words_of = [f"{low}-{high}" if high > low else str(low) for low, high in runs]
    if len(runs) <= 8:
        return f"indices {', '.join(words_of)}"
    return f"{int((source != own).sum())} of {size} indices have moved"


def _part(pair: _Pair) -> Kind | None:
    """Only some indices of an axis differ; or only some rows, and those are padding."""
    root = float(np.sqrt(np.mean(np.square(pair.golden)))) or 1.0
    gate = max(pair.gate, _GROSS)
    best: tuple[float, int, Array] | None = None
    for axis, size in enumerate(pair.golden.shape):
        others = tuple(one for one in range(pair.golden.ndim) if one != axis)
        if size < (3 if others else 16):  # of a few numbers, some are closer than others by chance
            continue
        off = np.sqrt(np.mean(np.square(pair.difference), axis=others)) / root
        chosen = _outliers(off, off + np.any(pair.golden, axis=others) > 0, gate)
        if chosen is None or (not others and chosen.sum() < 2):
            continue
        share = float(chosen.mean())
        if best is None or share < best[0]:
            best = (share, axis, chosen)
    padding = _padding(pair, root)
    if padding is not None and (best is None or best[1] == pair.golden.ndim - 2):
        return padding
    if best is None:
        return None
    share, axis, chosen = best
    sentence = f"only indices {_indices(pair, axis, chosen)} differ"
    evidence = {"axis": pair.axes[axis], "indices": (np.flatnonzero(chosen) * pair.steps[axis])[:256].tolist()}
    return Kind("part", sentence, 0.97, evidence)


def _outliers(off: Array, used: Array, gate: float) -> Array | None:
    """Which of these errors stand apart from the rest: no more than half of those used, and 8 times as large."""
    order = np.argsort(np.where(used, off, -1.0))[int((~used).sum()) :]
    values = off[order]
    half = len(values) - len(values) // 2
    best, cut = 8.0, -1
    for place in range(half, len(values)):
        below, above = float(values[place - 1]), float(values[place])
        if above >= gate and above >= best * max(below, 1e-300):
            best, cut = above / max(below, 1e-300), place
    if cut < 0:
        return None
    chosen = np.zeros(len(off), bool)
    chosen[order[cut:]] = True
    return chosen


def _padding(pair: _Pair, root: float) -> Kind | None:
    """Only rows differ that are all alike on one side: zeros, or what comes of padding."""
    if pair.golden.ndim < 2:
        return None
    rows = pair.difference.reshape(-1, pair.golden.shape[-1])
    off = np.sqrt(np.mean(np.square(rows), axis=1)) / root
    chosen = _outliers(off, np.ones(len(rows), bool), max(pair.gate, _GROSS))
    if chosen is None or chosen.sum() < 2:
        return None
    for side, values in (("target", pair.target), ("golden", pair.golden)):
        places = values.reshape(rows.shape)
        alike = np.all(places[chosen] == places[chosen][0], axis=1)
        rest = places[~chosen]
        if alike.all() and not np.all(rest == rest[0], axis=1).all():
            count = int(chosen.sum())
            sentence = f"only {count} of {len(rows)} rows differ, and those are all alike in {side}: padding"
            return Kind("padding", sentence, 0.99, {"rows": np.flatnonzero(chosen)[:256].tolist(), "side": side})
    return None


def _summand(pair: _Pair, others: Mapping[str, Array], sampled: tuple[slice, ...]) -> Kind | None:
    """The difference is another tensor: a summand that is missing, or there twice."""
    if pair.error < pair.gate or pair.golden.size < _FEWEST:
        return None
    size = float(np.linalg.norm(pair.difference))
    for name, other in others.items():
        if len(other.shape) != len(sampled):
            continue
        part = other[sampled].astype(np.float64)
        if part.size != pair.golden.size:
            continue
        part = part.reshape(pair.golden.shape)
        norm = float(np.linalg.norm(part))
        if not np.isfinite(norm) or float(np.ptp(part)) == 0:
            continue
        along = float(np.sum(part * pair.difference)) / (norm * size)
        if abs(along) < 0.98 or abs(float(np.sum(part * pair.golden))) > 0.98 * norm * pair.norm:
            continue  # in proportion to golden itself, it would be a factor
        factor = along * size / norm
        lacks = factor < 0
        times = "" if abs(abs(factor) - 1) < 0.02 else f"{shown(abs(factor))} x "
        sentence = f"target = golden {'-' if lacks else '+'} {times}{name}"
        return Kind(
            "missing" if lacks else "extra", sentence, min(along * along, 1.0), {"tensor": name, "factor": factor}
        )
    return None


def _other_shape(target: Array, golden: Array) -> Kind | None:
    """Shapes differ: the same values with axes exchanged?"""
    if target.size != golden.size or not 1 < target.ndim <= 4 or target.ndim != golden.ndim or target.size > _MOST:
        return None
    target, golden = target.astype(np.float64), golden.astype(np.float64)
    for order in permutations(range(target.ndim)):
        turned = golden.transpose(order)
        if turned.shape == target.shape and np.allclose(target, turned, rtol=2.0**-7, equal_nan=True):
            sentence = f"target is golden with its axes in the order {list(order)}"
            return Kind("transposition", sentence, SHAPE, {"order": list(order), "reshaped": False})
    return None


_RULES: tuple[Callable[[_Pair], Kind | None], ...] = (_dtype, _factor, _offset, _saturation, _random, _order, _part)
