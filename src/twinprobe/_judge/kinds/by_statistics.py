"""What kind of difference is it? Answered from arguments, statistics and sketches, where no tensor was kept."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._judge.deviation import GRADIENT, INPUT, OUTPUT, PARAMETER, Kind, Row, Side, Suspect
from twinprobe._judge.operations import factor_name, shown


def statistic_kinds(suspect: Suspect) -> list[Kind]:
    """All kinds that hold, best first: causes, which name something that differs, before shapes of the difference."""
    found = (kind for rule in _RULES for kind in (rule(suspect),) if kind is not None)
    return sorted(found, key=lambda kind: -kind.confidence)


# What two sides say

_USUAL = {"None", "True", "False", "0", "0.0", "1", "1.0", "-1", "mean", ""}  # values that are often a default
_EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float64": 2.0**-52, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 0.25}


def _eps(side: Side) -> float:
    return _EPS.get(side.dtype.rpartition(".")[2].lower(), 2.0**-23)


def _is_float(side: Side) -> bool:
    return "float" in side.dtype.lower()


def _numbers(side: Side) -> list[float] | None:
    """Max, min, mean and norm, where all are there, finite, and small enough to be squared."""
    found = [one for one in (side.max, side.min, side.mean, side.norm) if one is not None and abs(one) < 1e100]
    return found if len(found) == 4 else None


def _tolerance(row: Row) -> float:
    """How far two numbers of a row may be apart, relative to the largest value."""
    return max(4 * row.expected, *(2 * _eps(side) for side in (row.target, row.golden) if side is not None))


def _differs(row: Row) -> bool:
    """Whether a tensor of the two runs is not the same within noise, as far as statistics and sketches tell."""
    target, golden = row.target, row.golden
    if target is None or golden is None or target.value is not None or golden.value is not None:
        return False
    if target.shape != golden.shape:
        return True
    tolerance = exact = _tolerance(row)
    if row.role == PARAMETER and target.dtype == golden.dtype:  # nothing has been computed there
        exact = max(4 * row.expected, 1e-6)
    if target.sketch is not None and golden.sketch is not None:
        return _distance(target.sketch, golden.sketch) > exact
    first, second = _numbers(target), _numbers(golden)
    if first is None or second is None:
        return False
    off = max(abs(first[at] - second[at]) for at in (0, 1)) / max(abs(second[0]), abs(second[1]), 1e-300)
    return off > exact or abs(first[3] - second[3]) > tolerance * max(second[3], 1e-300)


def _distance(target: NDArray[Any], golden: NDArray[Any]) -> float:
    """The norm of the difference, relative to golden's, by sketches."""
    norm = float(np.linalg.norm(golden))
    return float(np.linalg.norm(target - golden)) / norm if norm else float(np.any(target))


def cosine(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Of the angle between two sketches: 1 where the tensors are in proportion, under 0.64 where they are unrelated."""
    sizes = float(np.linalg.norm(first)) * float(np.linalg.norm(second))
    return float(first @ second) / sizes if sizes else 0.0


def _same_numbers(first: Side, second: Side) -> bool:
    """Whether these may be the same values in some order: max and min are equal; mean, norm and L1 but for rounding."""
    one, two = _numbers(first), _numbers(second)
    if one is None or two is None:
        return False
    count = max(1, math.prod(second.shape))
    coarse = max(_eps(first), _eps(second))
    alike = _eps(first) == _eps(second)  # frameworks have other names for one type
    near = 1e-6 if alike else coarse
    if first.l1 is not None and second.l1 is not None:  # sums of full precision: rounding leaves hardly anything
        coarse = 1e-6 if alike else max(1e-6, 2 * coarse / math.sqrt(count))
    scale, root = max(abs(two[0]), abs(two[1])), two[3] / math.sqrt(count)
    sums = [(one[2], two[2], max(abs(two[2]), root)), (one[3], two[3], two[3])]
    if first.l1 is not None and second.l1 is not None:
        sums.append((first.l1, second.l1, second.l1))
    return all(abs(one[at] - two[at]) <= near * scale for at in (0, 1)) and all(
        abs(a - b) <= 2 * coarse * size for a, b, size in sums
    )


def _rows(suspect: Suspect, *roles: str) -> Iterable[tuple[Row, Side, Side]]:
    """Rows of these roles that both runs have."""
    for row in suspect.rows:
        if row.role in roles and row.target is not None and row.golden is not None:
            yield row, row.target, row.golden


def _shaped(suspect: Suspect) -> Iterable[tuple[Row, Side, Side]]:
    """Where the difference may have a shape: in what goes in, if something between two recorded calls has changed it,
    and in what comes out."""
    between = () if suspect.from_outside else (one for one in _rows(suspect, INPUT) if _differs(one[0]))
    return chain(between, _rows(suspect, OUTPUT, GRADIENT))


def _inputs_agree(suspect: Suspect) -> bool:
    return not any(_differs(row) for row in suspect.rows if row.role in (INPUT, PARAMETER))


# The rules: causes


def _argument(suspect: Suspect) -> Kind | None:
    """A number, flag or text among the arguments differs, or golden alone gives a tensor."""
    found, alone = [], {row.name for row in suspect.rows if row.golden is None}
    # What was given by keyword here, by place there.
    shapes = [row.target.shape for row in suspect.rows if row.golden is None and row.target and row.role == INPUT]
    for row in (row for row in suspect.rows if row.role == INPUT):
        values = [side.value if side is not None else None for side in (row.target, row.golden)]
        if row.target is None and row.name not in alone and row.golden is not None and row.golden.value is None:
            again = (
                one for one in suspect.rows if one.role == INPUT and one.target is not None and one.golden is not None
            )
            # The same tensor once more, as queries, keys and values say, is nothing that was left out.
            if row.golden.shape not in shapes and not any(
                _same_numbers(row.golden, one.golden) for one in again if one.golden
            ):
                found.append((row.name, "not given", f"a tensor {list(row.golden.shape)}"))
            continue
        if values == [None, None] or _same_text(*values):
            continue
        if None in values and any(side is not None and side.value is None for side in (row.target, row.golden)):
            continue  # a tensor on one side: the call is made otherwise, not with another value
        target, golden = ("not given" if value is None else value for value in values)
        found.append((row.name, target, golden))
    # Where no plain argument has a partner, one run gives them by keyword, the other by place.
    plain = [
        row
        for row in suspect.rows
        if row.role == INPUT and any(s and s.value is not None for s in (row.target, row.golden))
    ]
    one_sided = [row.target is None for row in plain if None in (row.target, row.golden)]
    if len(one_sided) == len(plain) and any(one_sided) and not all(one_sided):
        found = [one for one in found if "not given" not in one]
    if not found:
        return None
    words = ", ".join(f"{name}: {_brief(target)} against {_brief(golden)}" for name, target, golden in found[:3])
    words += f" and {len(found) - 3} more" if len(found) > 3 else ""
    # Given on one side only, a usual value is what the other side takes by itself.
    single = [{target, golden} - {"not given"} for _, target, golden in found if "not given" in (target, golden)]
    confidence = 0.97 if len(single) < len(found) else 0.8 if set.union(*single) <= _USUAL else 0.92
    return Kind("argument", words, confidence, {"arguments": [list(one) for one in found]})


def _same_text(target: str | None, golden: str | None) -> bool:
    if target == golden:
        return True
    try:
        first, second = float(str(target)), float(str(golden))
    except ValueError:
        return False
    return math.isclose(first, second, rel_tol=1e-7) or (math.isnan(first) and math.isnan(second))


def _brief(text: str) -> str:
    try:
        return text if len(text) <= 8 else shown(float(text))
    except ValueError:
        return text if len(text) <= 60 else f"{text[:57]}..."


def _parameter(suspect: Suspect) -> Kind | None:
    """A parameter differs; perhaps it is that of another layer, or was not loaded."""
    for row, target, golden in _rows(suspect, PARAMETER):
        if not _differs(row):
            continue
        evidence: dict[str, Any] = {"parameter": row.name}
        constant = _constant(target)
        elsewhere = _found_elsewhere(row, target, suspect.parameters)
        if constant is not None and _constant(golden) is None:
            sentence = f"{row.name} is {shown(constant)} everywhere, as if it had not been loaded"
            evidence["constant"] = constant
        elif elsewhere is not None:
            name, how = elsewhere
            sentence = f"{row.name} is {how}golden's {name}"
            evidence["equal to"] = name
        elif _same_numbers(target, golden):
            sentence = f"{row.name} holds golden's values in another order"
        else:
            sentence = f"{row.name} differs: {_compared(target, golden)}"
        return Kind("parameter", sentence, 0.95, evidence)
    return _not_transposed(suspect) or _in_one_run(suspect)


def _not_transposed(suspect: Suspect) -> Kind | None:
    """A square weight that one framework stores [in, out], the other [out, in], and that holds golden's elements in
    golden's places. Statistics alone take it for golden's, and so it is where it is symmetric: then nothing differs."""
    for row, target, golden in _rows(suspect, PARAMETER, INPUT):
        held = target.stored, golden.stored
        if held[0] is None or held[1] is None or len(golden.shape) != 2 or len(set(golden.shape)) > 1:
            continue
        diagonal = target.zeros is not None and 2 * target.zeros > math.prod(golden.shape)
        if _constant(target) is None and not diagonal and _distance(held[0], held[1]) <= _tolerance(row):
            words = "is stored as golden's is, though one is [in, out] and the other [out, in]: it was not transposed"
            return Kind("parameter", f"{row.name} {words}", 0.95, {"parameter": row.name})
    return None


def _in_one_run(suspect: Suspect) -> Kind | None:
    """A parameter that one run alone has; ones and zeros are what a layer without it computes with."""
    if suspect.presence != "both" or any(".forward." in row.name for row in suspect.rows):  # a group of calls
        return None
    for row in suspect.rows:
        side = row.golden if row.target is None else row.target
        if row.role != PARAMETER or None not in (row.target, row.golden) or side is None:
            continue
        who, others = ("golden", suspect.own) if row.target is None else ("the target", suspect.parameters)
        held = any(sorted(other.shape) == sorted(side.shape) and _same_numbers(side, other) for _, other in others)
        if side.value is None and _constant(side) not in (0.0, 1.0) and not held:
            words = f"only {who} has {row.name.removeprefix('parameters.')} {list(side.shape)}"
            return Kind("parameter", words, 0.95, {"parameter": row.name})
    return None


def _constant(side: Side) -> float | None:
    return side.max if side.max is not None and side.max == side.min and math.prod(side.shape) > 1 else None


def _found_elsewhere(row: Row, side: Side, parameters: Sequence[tuple[str, Side]]) -> tuple[str, str] | None:
    """The golden run's parameter that this one is, and how: as it is, transposed, in another order."""
    if _constant(side) is not None:
        return None  # ones and zeros are everywhere
    for name, other in parameters:
        if sorted(other.shape) != sorted(side.shape) or not _same_numbers(side, other):
            continue
        if row.golden is not None and _same_numbers(other, row.golden):
            continue  # golden's own, under whatever name
        if other.shape != side.shape:
            return name, "the transpose of "
        if side.sketch is not None and other.sketch is not None:
            apart = _distance(side.sketch, other.sketch)
            if apart > 4 * max(_eps(side), _eps(other)):
                return (name, "in another order ") if apart > 0.5 else None
        return name, ""
    return None


def _compared(target: Side, golden: Side) -> str:
    if target.shape != golden.shape:
        return f"shape {list(target.shape)} against {list(golden.shape)}"
    for name in ("norm", "max", "min", "mean"):
        one, two = getattr(target, name), getattr(golden, name)
        if one is not None and two is not None and shown(one) != shown(two):
            return f"{name} {shown(one)} against {shown(two)}"
    return "equal statistics, other values"


def _presence(suspect: Suspect) -> Kind | None:
    """A call that only one of the runs makes: extra, missing, moved, or another one in its place."""
    if suspect.presence == "both":
        return None
    name = api_name(suspect.name)
    extra = suspect.presence == "target"
    others = [api_name(one) for one in suspect.unpaired]
    evidence = {"call": suspect.name, "unpaired": list(suspect.unpaired)}
    if name in others:
        return Kind("order", f"{name} is called in both runs, but not in the same place", 0.92, evidence)
    if others and len(set(others)) == 1:
        target, golden = (name, others[0]) if extra else (others[0], name)
        return Kind("function", f"{target} is called where golden calls {golden}", 0.93, evidence)
    return Kind("extra" if extra else "missing", f"only {suspect.presence} calls {name} here", 0.93, evidence)


def api_name(name: str) -> str:
    """``gelu`` of ``Functional.gelu.3.forward``; ``Linear`` of ``Module.a.Linear.forward.0``."""
    parts = [part for part in name.split(".") if not part.isdecimal() and part not in ("forward", "backward")]
    return parts[-1] if parts else name


def _nan(suspect: Suspect) -> Kind | None:
    """What the call returns is not finite in one run, though what goes in is."""
    for row, target, golden in _rows(suspect, OUTPUT, GRADIENT):
        sides = [_broken(target), _broken(golden)]
        if sides[0] == sides[1]:
            continue
        side, word = ("target", sides[0]) if sides[0] else ("golden", sides[1])
        inputs = [getattr(given, side) for given in suspect.rows if given.role in (INPUT, PARAMETER)]
        begins = not any(_broken(value) for value in inputs if value is not None)
        count = getattr(row, side).not_finite
        how_many = f", {count} elements" if count else ""
        where = " and begins here: what goes in is finite" if begins else ""
        sentence = f"{row.name} holds {word} in {side} only{how_many}{where}"
        return Kind("nan", sentence, 0.99 if begins else 0.7, {"row": row.name, "side": side, "begins": begins})
    return None


def _broken(side: Side) -> str:
    """Whether a tensor holds NaN or infinity, and which."""
    numbers = [one for one in (side.max, side.min, side.mean, side.norm) if one is not None]
    if any(map(math.isnan, numbers)):
        return "NaN"
    return "infinity" if any(math.isinf(one) for one in numbers) or side.not_finite else ""


_RANDOM = re.compile(
    r"dropout|bernoulli|multinomial|randn?(_like)?$|randint|randperm|normal_?$|uniform_?$|exponential_"
)
_EMPTY = re.compile(r"(new_)?empty(_like|_strided|_permuted)?$")


def _random(suspect: Suspect) -> Kind | None:
    """A random call gave something else for the same arguments."""
    name = api_name(suspect.name)
    drops = "dropout" in name.lower()
    if not _RANDOM.search(name.lower()) or not _inputs_agree(suspect):
        return None
    for row, target, golden in _rows(suspect, OUTPUT, GRADIENT):
        if not _differs(row):
            continue
        if drops and target.zeros == golden.zeros == 0 and target.norm and golden.norm:  # both run in evaluation
            scaled = f"nothing is dropped, and target is {shown(target.norm / golden.norm)} x golden"
            words = f"{scaled}: one run scales in evaluation (downscale_in_infer)"
            return Kind("function", words, 0.93)
        if drops and target.zeros is not None and golden.zeros is not None and not (target.zeros and golden.zeros):
            sentence = f"only one run drops elements: {target.zeros} are zero against {golden.zeros}"
            return Kind("function", sentence, 0.93, {"call": suspect.name})
        counted = drops and target.zeros is not None
        masks = f": {target.zeros} elements are zero against {golden.zeros}" if counted else ""
        return Kind("random", f"{name} is random, and its state differs{masks}", 0.93, {"call": suspect.name})
    return None


def _uninitialised(suspect: Suspect) -> Kind | None:
    """The call only takes memory."""
    name = api_name(suspect.name)
    if not _EMPTY.fullmatch(name):
        return None
    return Kind("uninitialised", f"{name} gives memory that nobody has written yet", 0.98, {"call": suspect.name})


def _input(suspect: Suspect) -> Kind | None:
    """Another value goes in: one of golden's that belongs elsewhere, or, from outside, another batch, mask or state."""
    for row, target, golden in _rows(suspect, INPUT):
        if not _differs(row):
            continue
        origin = (
            "comes from no recorded call" if suspect.begun and suspect.place != "optimizer" else "comes from outside"
        )
        if suspect.kept:
            sentence = f"{row.name} {suspect.kept}: is zero_grad missing?"
        elif (name := _exchanged(suspect, row, target)) is not None:
            # What comes back is added up from all readers of a value.
            alone = ".backward" in suspect.name and ".backward.output" in name
            only, so = ("only ", ": nothing else sends a gradient back") if alone else ("", "")
            sentence = f"{row.name} holds {only}what golden has in {name}{so}"
        elif not suspect.from_outside:
            continue
        elif target.shape == golden.shape and _same_numbers(target, golden):
            sentence = f"{row.name} {origin} and holds golden's values in another order"
        else:
            state = suspect.place == "optimizer" and row.name == "input.0" and api_name(suspect.name).endswith("_")
            what = "is the optimizer's state so far" if state else origin
            sentence = f"{row.name} {what} and differs: {_compared(target, golden)}"
        return Kind("input", sentence, 0.93, {"input": row.name})
    return None


def _exchanged(suspect: Suspect, row: Row, target: Side) -> str | None:
    """Golden's value that goes in here: two were exchanged, or what should have been done with it was not."""
    if target.sketch is None or math.prod(target.shape) < 8 or _constant(target) is not None:
        return None
    same = [name for name, side in suspect.tensors if side.sketch is not None and side.shape == target.shape
            and _distance(target.sketch, side.sketch) <= _tolerance(row)]  # fmt: skip
    if not same and row.golden is not None and not _same_numbers(target, row.golden):
        same = [f"{name}, with its axes in another order" for name, side in suspect.tensors
                if side.shape != target.shape and _is_float(side) and _same_numbers(target, side)]  # fmt: skip
    return next((name for name in same if ".output." in name), next(iter(same), None))  # what made it says most


def _dtype(suspect: Suspect) -> Kind | None:
    """A result has another floating-point type, and is off by no more than that explains."""
    for row, target, golden in _rows(suspect, OUTPUT, GRADIENT):
        if target.dtype == golden.dtype or not _is_float(target) or not _is_float(golden):
            continue
        first, second = _numbers(target), _numbers(golden)
        if first is None or second is None or _eps(target) == _eps(golden):
            continue
        scale = 4 * max(_eps(target), _eps(golden)) * max(abs(second[0]), abs(second[1]))
        near = all(abs(one - two) <= scale for one, two in zip(first[:2], second[:2], strict=True))
        if near and abs(first[3] - second[3]) <= 2 * max(_eps(target), _eps(golden)) * second[3]:
            names = [side.dtype.rpartition(".")[2] for side in (target, golden)]
            sentence = f"{row.name} is {names[0]} in target and {names[1]} in golden"
            return Kind("dtype", sentence, 0.91, {"row": row.name, "dtypes": names})
    return None


# The rules: shapes of the difference


def _factor(suspect: Suspect) -> Kind | None:
    """Max, min, mean and norm are all golden's times one number; sketches too, where there are any."""
    for row, target, golden in _shaped(suspect):
        first, second = _numbers(target), _numbers(golden)
        if first is None or second is None or target.shape != golden.shape or not _differs(row):
            continue
        tolerance = _tolerance(row)
        sketched = _sketch_factor(target.sketch, golden.sketch)
        if not second[3] or not first[3]:
            continue
        size = first[3] / second[3]
        turned = abs(first[0] + size * second[1]) + abs(first[1] + size * second[0])  # max and min, exchanged
        straight = abs(first[0] - size * second[0]) + abs(first[1] - size * second[1])
        factor = sketched[0] if sketched is not None else -size if turned < straight / 4 else size
        if abs(factor - 1) <= 2 * tolerance or not _in_proportion(first, second, factor, golden.shape, tolerance):
            continue
        left = tolerance / 2 if sketched is None else sketched[1]
        if sketched is not None and left > max(0.25 * abs(factor - 1), tolerance):
            continue
        few = math.prod(golden.shape) < 4
        if not (name := factor_name(factor, golden.shape, max(tolerance / 2, 1e-6), suspect.counts)) and few:
            continue
        confidence = (0.5 if few else 0.8) if sketched is None else 0.9
        evidence = {"row": row.name, "factor": factor, "residual": left}
        if abs(factor + 1) <= 2 * tolerance:
            return Kind("sign", f"{row.name}: target = -golden", confidence, evidence)
        times = shown(factor) if name in ("", shown(factor)) else f"{shown(factor)} = {name}"
        return Kind("factor", f"{row.name}: target = {times} x golden", confidence, evidence)
    return None


def _sketch_factor(target: NDArray[Any] | None, golden: NDArray[Any] | None) -> tuple[float, float] | None:
    """The best factor and what it leaves, relative to golden, by sketches."""
    if target is None or golden is None:
        return None
    square = float(golden @ golden)
    if not square:
        return None
    factor = float(target @ golden) / square
    return factor, float(np.linalg.norm(target - factor * golden)) / math.sqrt(square)


def _in_proportion(
    first: Sequence[float], second: Sequence[float], factor: float, shape: tuple[int, ...], tolerance: float
) -> bool:
    scale = abs(factor) * max(abs(second[0]), abs(second[1]))
    high, low = (second[0], second[1]) if factor > 0 else (second[1], second[0])
    # A mean is a sum of many signs: noise counts against the size of the values.
    spread = abs(factor) * second[3] / math.sqrt(max(1, math.prod(shape)))
    return (
        abs(first[0] - factor * high) <= tolerance * scale
        and abs(first[1] - factor * low) <= tolerance * scale
        and abs(first[2] - factor * second[2]) <= tolerance * max(spread, abs(factor * second[2]))
        and abs(first[3] - abs(factor) * second[3]) <= tolerance * abs(factor) * second[3]
    )


def _offset(suspect: Suspect) -> Kind | None:
    """Max, min and mean have moved by the same, and the norm by what that makes."""
    for row, target, golden in _shaped(suspect):
        first, second = _numbers(target), _numbers(golden)
        if first is None or second is None or target.shape != golden.shape or math.prod(golden.shape) < 4:
            continue
        moved = first[2] - second[2]
        spread = second[0] - second[1]
        tolerance = _tolerance(row) * max(abs(second[0]), abs(second[1]), abs(first[0]), abs(first[1]))
        if not spread > 8 * tolerance or abs(moved) <= 4 * tolerance:
            continue
        count = math.prod(golden.shape)
        square = second[3] ** 2 + 2 * moved * second[2] * count + count * moved**2
        fits = square > 0 and abs(first[3] - math.sqrt(square)) <= 2 * _tolerance(row) * math.sqrt(square)
        if fits and all(abs(first[at] - second[at] - moved) <= tolerance for at in (0, 1)):
            sentence = f"{row.name}: target = golden {'+' if moved > 0 else '-'} {shown(abs(moved))}"
            return Kind("offset", sentence, 0.8, {"row": row.name, "offset": moved})
    return None


def _order(suspect: Suspect) -> Kind | None:
    """A result is another one of golden's; or statistics are equal, sketches or shapes are not: another order."""
    for row, target, golden in _shaped(suspect):
        if _differs(row) and (name := _exchanged(suspect, row, target)) is not None:
            return Kind("exchange", f"{row.name} holds what golden has in {name}", 0.9, {"row": row.name})
        if not _is_float(target) or not _same_numbers(target, golden):
            continue
        if target.shape != golden.shape and sorted(target.shape) == sorted(golden.shape):
            sentence = f"{row.name} has golden's values, and axes in another order: {_compared(target, golden)}"
            return Kind("transposition", sentence, 0.85, {"row": row.name})
        if target.sketch is None or golden.sketch is None or math.prod(golden.shape) < 16:  # equal by chance
            continue
        if _distance(target.sketch, golden.sketch) > 0.3:
            sentence = f"{row.name} has golden's values in another order: statistics are equal, sketches are not"
            return Kind("permutation", sentence, 0.8, {"row": row.name})
    return None


def _part(suspect: Suspect) -> Kind | None:
    """Only some of the sketches' blocks differ, which are one after another in the tensor's memory."""
    for row, target, golden in _shaped(suspect):
        if target.sketch is None or golden.sketch is None or target.shape != golden.shape or not _is_float(golden):
            continue
        size, blocks = math.prod(golden.shape), golden.sketch.reshape(16, -1)
        off = np.linalg.norm(target.sketch.reshape(16, -1) - blocks, axis=1)
        typical = float(np.median(np.linalg.norm(blocks, axis=1)))
        order = np.argsort(off)
        rises = [(off[order[at]] / max(off[order[at - 1]], 1e-300), at) for at in range(8, 16)]
        rise, first = max(rises)
        chosen = np.sort(order[first:])
        gross = typical and float(off[chosen].min()) > max(0.05, 4 * _tolerance(row)) * typical
        if size >= 1024 and rise > 16 and gross and float(off[order[first - 1]]) <= 0.02 * typical:
            pieces = ", ".join(str(at + 1) for at in chosen)
            sentence = f"{row.name}: only a part differs: of 16 equal pieces, one after another, number {pieces}"
            return Kind("part", sentence, 0.75, {"row": row.name, "blocks": chosen.tolist()})
    return None


_OPTIMISERS = re.compile(r"adam|sgd|lamb|adagrad|rmsprop|momentum|lars")
_BOUNDS = (65504.0, 448.0, 57344.0, 240.0)


def _saturation(suspect: Suspect) -> Kind | None:
    """The largest value, or the smallest, is a round number that golden goes beyond."""
    for row, target, golden in _shaped(suspect):
        first, second = _numbers(target), _numbers(golden)
        if first is None or second is None or not _is_float(target) or first[3] >= second[3]:
            continue
        beyond = ((first[0], second[0] - first[0]), (first[1], first[1] - second[1]))
        bounds = [bound for bound, by in beyond if bound and by > 0.05 * abs(bound) and _is_round(bound, target)]
        if bounds:
            words = " and ".join(shown(bound) for bound in bounds)
            confidence = 0.75 if len(bounds) == 2 or abs(bounds[0]) in _BOUNDS else 0.6
            return Kind("saturation", f"{row.name} is cut off at {words}", confidence, {"bounds": bounds})
    return None


def _is_round(number: float, side: Side) -> bool:
    """Whether a number of this type is what a person would write. Numbers of 16 bits are too few to tell."""
    if abs(number) in _BOUNDS or _eps(side) > 1e-4:
        return abs(number) in _BOUNDS
    return math.isclose(number, float(f"{number:.1e}"), rel_tol=2 * _eps(side))


def _update(suspect: Suspect) -> Kind | None:
    """An optimiser changes a parameter by another amount; by how much, where there are sketches."""
    if suspect.place != "optimizer" and not _OPTIMISERS.search(api_name(suspect.name).lower()):
        return None
    given = [row for row in suspect.rows if row.role in (INPUT, PARAMETER)]
    for row, target, golden in _rows(suspect, OUTPUT, GRADIENT):
        if not _differs(row):
            continue
        sentence, evidence = f"the optimiser's update differs, in {row.name}", {"row": row.name}
        before = next((one for one in given if one.golden is not None and one.golden.shape == golden.shape), None)
        if before is not None and before.target is not None and before.golden is not None:
            sketches = [side.sketch for side in (target, before.target, golden, before.golden)]
            if all(one is not None for one in sketches):
                after_t, before_t, after_g, before_g = (np.asarray(one) for one in sketches)
                found = _sketch_factor(after_t - before_t, after_g - before_g)
                if found is not None and found[1] <= 0.25 * abs(found[0] - 1):
                    sentence = f"{row.name}: the optimiser's update is {shown(found[0])} x golden's"
                    return Kind("update", sentence, 0.92, {**evidence, "factor": found[0]})
        already = "" if _inputs_agree(suspect) else ": what goes into it differs already"
        return Kind("update", sentence + already, 0.91, evidence)
    return None


def _summand(suspect: Suspect) -> Kind | None:
    """The difference of the sketches is parallel to a tensor's: a summand is missing, or too much."""
    rows = (row for row in suspect.rows if row.role in (INPUT, PARAMETER))
    known = [(row.name, row.golden) for row in rows if row.golden is not None]
    for row, target, golden in _shaped(suspect):
        if target.sketch is None or golden.sketch is None or not _differs(row):
            continue
        difference = target.sketch - golden.sketch
        for name, other in (*known, *suspect.tensors):
            if other.sketch is None or math.prod(other.shape) != math.prod(golden.shape):
                continue
            along = cosine(difference, other.sketch)
            # In proportion to golden itself, it would be a factor.
            if abs(along) < 0.99 or abs(cosine(other.sketch, golden.sketch)) > 0.99:
                continue
            factor = along * float(np.linalg.norm(difference) / np.linalg.norm(other.sketch))
            times = "" if abs(abs(factor) - 1) < 0.03 else f"{shown(abs(factor))} x "
            sentence = f"{row.name}: target = golden {'-' if factor < 0 else '+'} {times}{name}"
            evidence = {"row": row.name, "tensor": name, "factor": factor}
            return Kind("missing" if factor < 0 else "extra", sentence, 0.85, evidence)
    return None


_RULES: tuple[Callable[[Suspect], Kind | None], ...] = (
    _argument, _parameter, _presence, _nan, _random, _uninitialised, _input, _dtype, _factor, _offset, _order,
    _saturation, _part, _update, _summand,
)  # fmt: skip
