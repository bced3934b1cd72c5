"""What the calls of two runs do otherwise: another module is called, an attention is written out in one of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isclose, prod
from typing import TYPE_CHECKING, Any

from twinprobe._align.calls import dims
from twinprobe._judge.operations import shown
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.table import INPUT, TENSOR

if TYPE_CHECKING:
    import polars as pl

    from twinprobe._runs.run import Run

_BUILT_IN = re.compile(r"(?i)(scaled_dot_product|flash)_attention")
_ARGUMENT = re.compile(r"\.(?:input|kwargs)\.(\w+)$")
_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "batchmatmul", "batch_matmul"})
_TIMES, _DIVIDED = frozenset({"mul", "rmul", "multiply", "imul"}), frozenset({"truediv", "div", "divide", "itruediv"})
_MASKING = frozenset({"add", "radd", "iadd", "masked_fill", "masked_fill_", "where", "baddbmm"})
_MOST_CALLS, _SAME_NORM = 24, 1e-4
_ROLES = ("query", "key", "value")
_Arguments = dict[str, dict[str, Any]]  # by name
_Call = tuple[str, _Arguments]  # the function, and what goes in


def other_modules(target: Run, golden: Run, pairs: pl.DataFrame, call: int) -> tuple[str, str] | None:
    """Where one run calls another module of the same class, inside of the same module: both calls."""
    around, found = target.parents.get(target.ops[call]), []
    for run, side, other in ((target, "t", "g"), (golden, "g", "t")):
        paired = set(pairs.filter(pairs[f"{other}_op"].is_not_null())[f"{side}_op"].drop_nulls().to_list())
        alone = (op for at, op in enumerate(run.ops) if at not in paired and run.parents.get(op) == around)
        calls = map(parse_op, alone)
        found.append(next((op for op in calls if op.is_module and op.direction == FORWARD), None))
    one, two = found
    if one is None or two is None or one.cls != two.cls or one.body == two.body:
        return None
    return (one.text, two.text) if target.ops.index(one.text) <= call else None


def attention_words(pairs: pl.DataFrame, row: int) -> str:
    """``scale: 0.25 against 0.3536``: the first of what one of the two does and the other does not; or nothing.

    ``row``: the result of the attention, or one of the calls that are equal to it in meaning.
    """
    group = pairs["group"][row] if "group" in pairs.columns else None
    inside = pairs[row : row + 1] if group is None else pairs.filter(pairs["group"] == group)
    ops = [inside[f"{side}_op"].drop_nulls().unique().to_list() for side in "tg"]
    sides = [_calls(pairs, side, own) for side, own in zip("tg", ops, strict=True)]
    built_in = [any(_BUILT_IN.search(body) for body, _ in calls) for calls in sides]
    if built_in[0] == built_in[1] or not all(ops):
        return ""
    own = built_in.index(True)  # the side that calls the built-in function
    given = next(arguments for body, arguments in sides[own] if _BUILT_IN.search(body))
    # The group may begin behind the scores: they are made between the last two products.
    last = max(ops[1 - own])
    calls = _calls(pairs, "gt"[own], range(last - _MOST_CALLS, last + 1))
    written = [(body.strip("_"), arguments) for body, arguments in calls]
    products = [at for at, (body, _) in enumerate(written) if body in _PRODUCTS][-2:]
    written = written[products[0] :] if len(products) == 2 else []
    if all(body != "softmax" for body, _ in written):
        return ""
    if words := _exchanged(given, written, turned=own == 1):
        return words
    name, values = _setting(given, written)
    return f"{name}: {' against '.join(values[:: 1 if own == 0 else -1])}" if name else ""


def _setting(given: _Arguments, written: list[_Call]) -> tuple[str, list[str]]:
    """What differs between the built-in attention and the written one, with both values."""
    query = next((dims(row["shape"]) for name, row in given.items() if name in ("0", "query")), None)
    scale, other = _number(given, "scale", "6") or (query[-1] ** -0.5 if query else None), _scale_of(written)
    if scale is not None and other is not None and abs(scale / other - 1) > 1e-3:
        return "scale", [shown(scale), shown(other)]
    axes = (_number(arguments, "dim", "axis", "1") for body, arguments in written if body == "softmax")
    axis = next((number for number in axes if number is not None), None)
    if axis is not None and axis not in (-1, 3 if query is None else len(query) - 1):
        return "axis of the softmax", ["-1", shown(axis)]
    causal = bool(_number(given, "is_causal", "5"))
    mask = causal or any(row["kind"] == TENSOR for name, row in given.items() if name in ("3", "attn_mask"))
    masked = any(body in _MASKING for body, _ in written)
    if mask == masked:
        return "", []
    return "mask", ["is_causal" if causal else "a mask" if mask else "none", "a mask" if masked else "none"]


def _calls(pairs: pl.DataFrame, side: str, ops: Iterable[int]) -> list[_Call]:
    """These of one side's calls of functions, in their order, with what goes in."""
    import polars as pl

    calls: dict[int, _Call] = {}
    names = (f"{side}_{name}" for name in ("op", "name", "role", "kind", "shape", "max", "norm"))
    rows = pairs.filter(pl.col(f"{side}_op").is_in(list(ops))).select(*names)
    for op, name, role, kind, shape, number, norm in rows.iter_rows():
        argument = _ARGUMENT.search(name or "")
        if argument is None or role != INPUT:
            continue
        parsed = parse_op(name[: argument.start()])
        if parsed.direction == FORWARD and not parsed.is_module:
            row = {"kind": kind, "shape": shape, "number": number, "norm": norm}
            calls.setdefault(op, (parsed.body.rpartition(".")[2], {}))[1][argument.group(1)] = row
    return [calls[op] for op in sorted(calls)]


def _number(arguments: _Arguments, *names: str) -> float | None:
    found = (row["number"] for name, row in arguments.items() if name in names and row["kind"] != TENSOR)
    return next((float(number) for number in found if number is not None), None)


def _scale_of(written: list[_Call]) -> float | None:
    """What scores are multiplied by before the softmax; None where a tensor may do it."""
    factors = []
    for body, arguments in written:
        if body == "softmax":
            break
        if body in _TIMES | _DIVIDED:
            number = _number(arguments, "0", "1", "x", "y", "input", "other")
            if not number:
                return None
            factors.append(number if body in _TIMES else 1 / number)
    return prod(factors) if factors else None


def _exchanged(given: _Arguments, written: list[_Call], *, turned: bool) -> str:
    """Query, key or value that the written attention takes in another role; told by their norms."""
    products = [arguments for body, arguments in written if body in _PRODUCTS]
    tensors = [[row["norm"] for row in arguments.values() if row["kind"] == TENSOR] for arguments in products]
    taken = dict(zip(_ROLES, (*tensors[0][:2], *tensors[-1][1:2]), strict=False))
    for place, role in enumerate(_ROLES):
        norm = next((row["norm"] for key, row in given.items() if key in (str(place), role)), None)
        like = [name for name, other in taken.items() if norm and other and isclose(norm, other, rel_tol=_SAME_NORM)]
        if len(taken) == len(_ROLES) and len(like) == 1 and like[0] != role:
            words = (like[0], role) if turned else (role, like[0])
            return f"the {words[0]} is what golden takes as its {words[1]}"
    return ""
