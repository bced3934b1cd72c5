"""What differs between an attention written out in one run and the other run's built-in function for it."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

from twinprobe._align.calls import dims
from twinprobe._judge.operations import shown
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.table import INPUT, TENSOR

if TYPE_CHECKING:
    import polars as pl

_BUILT_IN = re.compile(r"(?i)(scaled_dot_product|flash)_attention")
_ARGUMENT = re.compile(r"\.(?:input|kwargs)\.(\w+)$")
_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "batchmatmul", "batch_matmul"})
_TIMES, _DIVIDED = frozenset({"mul", "rmul", "multiply", "imul"}), frozenset({"truediv", "div", "divide", "itruediv"})
_MASKING = frozenset({"add", "radd", "iadd", "masked_fill", "masked_fill_", "where", "baddbmm"})
_ROLES = ("query", "key", "value")
_Call = tuple[str, dict[str, dict[str, Any]]]  # the function, and its arguments by name


def attention_words(pairs: pl.DataFrame, group: int) -> str:
    """``scale: 0.25 against 0.3536``: the first of what one of the two does and the other does not; or nothing.

    ``group``: the calls of which one is, or all are, the attention.
    """
    inside = pairs.filter(pairs["group"] == group)
    ops = [inside[f"{side}_op"].drop_nulls().unique() for side in "tg"]
    members = pairs.filter(pairs["t_op"].is_in(ops[0].implode()) | pairs["g_op"].is_in(ops[1].implode()))
    sides = _calls(members, "t"), _calls(members, "g")
    built_in = [any(_BUILT_IN.search(body) for body, _ in calls) for calls in sides]
    if built_in[0] == built_in[1]:
        return ""
    own = built_in.index(True)  # the side that calls the built-in function
    given = next(arguments for body, arguments in sides[own] if _BUILT_IN.search(body))
    written = [(body.strip("_"), arguments) for body, arguments in sides[1 - own]]

    def told(name: str, built: str, other: str) -> str:
        return f"{name}: {' against '.join((built, other) if own == 0 else (other, built))}"

    if words := _exchanged(members, "tg"[own], given, written):
        return words
    query = next((dims(row["shape"]) for name, row in given.items() if name in ("0", "query")), None)
    scale, other = _number(given, "scale", "6") or (query[-1] ** -0.5 if query else None), _scale_of(written)
    if scale is not None and other is not None and abs(scale / other - 1) > 1e-3:
        return told("scale", shown(scale), shown(other))
    axis = next((number for body, arguments in written if body == "softmax" and
                 (number := _number(arguments, "dim", "axis", "1")) is not None), None)  # fmt: skip
    if axis is not None and axis not in (-1, 3 if query is None else len(query) - 1):
        return told("axis of the softmax", "-1", shown(axis))
    causal = bool(_number(given, "is_causal", "5"))
    mask = causal or any(row["kind"] == TENSOR for name, row in given.items() if name in ("3", "attn_mask"))
    masked = any(body in _MASKING for body, _ in written)
    if mask != masked:
        return told("mask", "is_causal" if causal else "a mask" if mask else "none", "a mask" if masked else "none")
    return ""


def _calls(members: pl.DataFrame, side: str) -> list[_Call]:
    """The forward calls of one side, in their order, with what goes in."""
    calls: dict[int, _Call] = {}
    names = (f"{side}_{name}" for name in ("op", "name", "role", "kind", "shape", "max"))
    for op, name, role, kind, shape, number in members.select(*names).drop_nulls(f"{side}_op").iter_rows():
        argument = _ARGUMENT.search(name or "")
        if argument is None or role != INPUT:
            continue
        parsed = parse_op(name[: argument.start()])
        if parsed.direction == FORWARD and not parsed.is_module:
            row = {"kind": kind, "shape": shape, "number": number, "name": name}
            calls.setdefault(op, (parsed.body.rpartition(".")[2], {}))[1][argument.group(1)] = row
    return [calls[op] for op in sorted(calls)]


def _number(arguments: dict[str, dict[str, Any]], *names: str) -> float | None:
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


def _exchanged(members: pl.DataFrame, side: str, given: dict[str, dict[str, Any]], written: list[_Call]) -> str:
    """Query, key or value that the written attention takes in another role."""
    products = [arguments for body, arguments in written if body in _PRODUCTS]
    if len(products) < 2:
        return ""
    tensors = [[row["name"] for row in arguments.values() if row["kind"] == TENSOR] for arguments in products]
    roles = dict(zip(tensors[0], _ROLES, strict=False))
    roles |= dict.fromkeys(tensors[-1][1:], "value")
    other = "g" if side == "t" else "t"
    partner = dict(members.select(f"{side}_name", f"{other}_name").drop_nulls().iter_rows())
    for place, role in enumerate(_ROLES):
        name = next((row["name"] for key, row in given.items() if key in (str(place), role)), None)
        taken = roles.get(partner.get(name, ""), role)
        if taken != role:
            words = (role, taken) if side == "t" else (taken, role)
            return f"the {words[0]} is what golden takes as its {words[1]}"
    return ""
