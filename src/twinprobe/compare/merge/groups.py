"""Collectives whose outputs must be the same on all ranks of a group: what to read of them, and who disagrees."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import polars as pl

# The argument that receives the result: its place, or its keyword. Recorders list all arguments as outputs.
_RESULT_KEYS = {
    "all_gather": ("0", "tensor_list"),
    "all_gather_into_tensor": ("0", "output_tensor", "output"),
    "_all_gather_base": ("0", "output_tensor", "output"),
    "all_reduce": ("0", "tensor"),
    "broadcast": ("0", "tensor"),
}
_OPS = "|".join(_RESULT_KEYS)
_CALL = (
    rf"^(?P<api>\w*Distributed\.(?P<op>{_OPS}))\.(?P<number>\d+)\.forward\.(?P<io>input|kwargs|output)\.(?P<rest>.+)$"
)
_PREFIX = re.compile(rf"^(?P<api>\w*Distributed(?:\.(?:{_OPS}))?)(?:\.|$)")
_LISTED = re.compile(r"\[\s*(\d{1,18}(?:\s*,\s*\d{1,18})*)\s*,?\s*\]")
_DASHED = re.compile(r"((?:-\d{1,18})+)$")

SIDES = ("NPU", "Bench")
STATS = ("max", "min", "mean", "l2norm")
# Mean and norm are sums, whose last digits depend on the order of adding; max and min are elements.
_ROUNDING = {"max": 1e-9, "min": 1e-9, "mean": 1e-6, "l2norm": 1e-6}


@dataclass(frozen=True)
class GroupCheck:
    """One output that must agree inside one group. ``places`` are the (rank, row name) of the cells to mark."""

    name: str
    group: str
    ranks: tuple[int, ...]
    disagree: tuple[int, ...]
    missing: tuple[int, ...]
    detail: str
    places: tuple[tuple[int, str], ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether all ranks that have the output have the same one."""
        return not self.disagree


def touched(api: Iterable[str]) -> tuple[Callable[[str], bool], list[str]]:
    """Which names to read for these entries: the wanted ones, and all calls of the collectives they name.

    All of them, because ranks are linked by the order of their calls within a group. Also the texts that names begin
    with.
    """
    starts: list[str] = []
    for entry in api:
        match = _PREFIX.match(entry)
        starts.append(match["api"] if match is not None and "." in match["api"] else entry)
    starts = list(dict.fromkeys(starts))
    ends = tuple(start + "." for start in starts)
    exact = frozenset(starts)
    return lambda name: name.startswith(ends) or name in exact, starts


def checkable(table: pl.DataFrame, rank: int) -> pl.DataFrame:
    """The outputs of one rank that must agree with other ranks: call, group, order in the group, statistics."""
    import polars as pl

    parts = table.select(pl.all(), pl.col("NPU Name").str.extract_groups(_CALL).alias("parts")).unnest("parts")
    parts = parts.filter(pl.col("rest").is_not_null()).with_columns(
        pl.col("number").cast(pl.Int64, strict=False), pl.col("rest").str.split(".").list.first().alias("key")
    )
    call = ["api", "op", "number"]
    inputs = parts.filter(pl.col("io") != "output")
    is_group = inputs["key"].eq("group") | inputs["NPU Dtype"].fill_null("").str.contains("ProcessGroup")
    named = is_group & ~inputs["NPU max"].fill_null("").str.to_lowercase().is_in(["", "none", "n/a"])
    groups = inputs.filter(named).group_by(call).agg(pl.col("NPU max").first().alias("group"))
    keys = inputs.group_by(call, maintain_order=True).agg(pl.col("key").unique(maintain_order=True).alias("keys"))
    calls = parts.select(call).unique().join(groups, on=call, how="left").join(keys, on=call, how="left")
    calls = calls.with_columns(
        pl.col("group").fill_null(""),
        pl.Series("place", [_result_place(op, ks) for op, ks in calls.select("op", "keys").iter_rows()], pl.String),
    )
    # Ranks may number their calls differently; the n-th call within one group is the same call on all of them.
    calls = calls.sort(call).with_columns(pl.int_range(pl.len()).over("api", "group").alias("order"))
    outputs = parts.filter(pl.col("io") == "output").join(calls.drop("keys"), on=call)
    outputs = outputs.filter(pl.col("key") == pl.col("place"))
    numbers = [
        pl.col(f"{side} {stat}").cast(pl.Float64, strict=False) for side in SIDES for stat in STATS
    ]  # fmt: skip
    outputs = outputs.filter(pl.col("NPU max").str.contains(r"\d|(?i)nan|inf").fill_null(value=False))
    return outputs.select(
        pl.lit(rank, dtype=pl.Int32).alias("rank"), pl.col("NPU Name").alias("name"), "chosen",
        "api", "group", "order", "rest", pl.col("NPU Tensor Shape").fill_null("").alias("shape"), *numbers,
    )  # fmt: skip


def _result_place(op: str, keys: list[str] | None) -> str:
    keys = keys or []
    return next((str(keys.index(key)) for key in _RESULT_KEYS[op] if key in keys), "0")


def check_groups(outputs: pl.DataFrame, ranks: list[int]) -> list[GroupCheck]:
    """Compare the outputs of all ranks inside their groups; a group of one rank has nothing to check."""
    checks = []
    for key, members in outputs.group_by("api", "group", "order", "rest", maintain_order=True):
        check = _check(members.sort("rank"), str(key[1]), ranks)
        if check is not None:
            checks.append(check)
    return checks


def _check(members: pl.DataFrame, group: str, ranks: list[int]) -> GroupCheck | None:
    if not members["chosen"].any():
        return None
    in_group = set(group_ranks(group) or ranks)
    have = members["rank"].to_list()
    missing = tuple(sorted((in_group & set(ranks)) - set(have)))
    if len(have) + len(missing) < 2:
        return None
    odd: set[int] = set()
    details = []
    for side in SIDES:
        classes = _classes(members, side)
        if len(classes) > 1:
            odd |= {have[at] for at in _minority(classes)}
            details.append(f"{side}: {_told(members, side, classes)}")
    names = members["name"].to_list()
    places = tuple((rank, name) for rank, name in zip(have, names, strict=True) if rank in odd)
    shown = group or "default group"
    return GroupCheck(names[0], shown, tuple(have), tuple(sorted(odd)), missing, "; ".join(details), places)


def _classes(members: pl.DataFrame, side: str) -> list[list[int]]:
    """Rows of equal outputs, largest class first."""
    shapes = members["shape"].to_list()
    values = members.select(f"{side} {stat}" for stat in STATS).to_numpy().astype(np.float64)
    if len(set(shapes)) == 1 and bool(((values == values[0]) | (np.isnan(values) & np.isnan(values[0]))).all()):
        return [list(range(len(values)))]
    classes: list[list[int]] = []
    for at in range(len(values)):
        for known in classes:
            if shapes[known[0]] == shapes[at] and _same(values[known[0]], values[at]):
                known.append(at)
                break
        else:
            classes.append([at])
    return sorted(classes, key=len, reverse=True)


def _same(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    size = max(abs(number) for number in (*one[:2], *other[:2]))
    for stat, a, b in zip(STATS, one.tolist(), other.tolist(), strict=True):
        if a == b or (isnan(a) and isnan(b)):
            continue
        scale = max(abs(a), abs(b)) if stat == "l2norm" else size
        if not abs(a - b) <= _ROUNDING[stat] * scale:
            return False
    return True


def _minority(classes: list[list[int]]) -> list[int]:
    """Who disagrees: all outside of the largest class, or everybody where no class is the largest."""
    tied = len(classes[0]) == len(classes[1])
    return [at for known in (classes if tied else classes[1:]) for at in known]


def _told(members: pl.DataFrame, side: str, classes: list[list[int]]) -> str:
    ranks = members["rank"].to_list()
    told = []
    for known in classes[:8]:
        row = members.row(known[0], named=True)
        numbers = ", ".join(f"{stat} {row[f'{side} {stat}']!r}" for stat in STATS)
        told.append(f"{_list([ranks[at] for at in known])} {row['shape']} {numbers}")
    return " | ".join(told) + (" | ..." if len(classes) > 8 else "")


def _list(ranks: list[int]) -> str:
    return "rank " + ", ".join(str(rank) for rank in ranks)


def group_ranks(text: str) -> list[int]:
    """The ranks that a group's text names: ``[0, 1]`` and ``tp-0-1`` both mean 0 and 1; nothing if it names none."""
    listed = _LISTED.search(text)
    if listed is not None:
        return [int(number) for number in listed[1].split(",")]
    dashed = _DASHED.search(text)
    return [int(number) for number in dashed[1].split("-")[1:]] if dashed is not None else []
