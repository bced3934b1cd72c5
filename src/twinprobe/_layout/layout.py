"""Parallel layouts: how many ranks, split along which dimensions, in which order."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from twinprobe.errors import BadInput

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
_DIMENSIONS = frozenset(DEFAULT_ORDER.split("-"))
_SIZES = ("rank_size", "tp", "pp", "vpp", "cp", "ep")
NAMES = (*_SIZES, "order")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank stands in its layout."""

    dp: int
    pp: int
    tp: int
    cp: int
    ep: int

    @property
    def shard(self) -> tuple[int, int, int]:
        """Where it stands among the ranks of its stage, the fastest-changing last."""
        return self.ep, self.cp, self.tp


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of one run. ``order`` names the dimensions from the fastest-changing to the slowest."""

    rank_size: int
    tp: int
    pp: int
    vpp: int = 1
    order: str = DEFAULT_ORDER
    cp: int = 1
    ep: int = 1
    experts: tuple[str, ...] = ()
    """Lists of experts by other names than ``experts``."""
    known: bool = True
    """Otherwise nothing is put together: what all ranks hold alike is all that there is."""

    def __post_init__(self) -> None:
        for name in _SIZES:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise BadInput(f"{name} is {value!r}", hint="expected a whole number from 1 up")
        model = self.tp * self.pp * self.cp * self.ep
        if self.rank_size % model:
            raise BadInput(f"rank_size {self.rank_size} is not a multiple of tp x cp x ep x pp = {model}")
        parts = self.order.split("-") if isinstance(self.order, str) else []
        needed = {name for name in _DIMENSIONS if self.size(name) > 1}
        if not needed <= set(parts) or len(set(parts)) != len(parts) or set(parts) - _DIMENSIONS:
            raise BadInput(f"order is {self.order!r}", hint=f"expected the dimensions once each, as in {DEFAULT_ORDER}")
        if self.vpp > 1 and self.pp == 1:
            raise BadInput("vpp above 1 needs pp above 1")

    @property
    def dp(self) -> int:
        """How many ranks hold the same slice of the model."""
        return self.rank_size // (self.tp * self.pp * self.cp * self.ep)

    def size(self, name: str) -> int:
        """How many ranks lie along one dimension."""
        return int(getattr(self, name))

    def place(self, rank: int) -> Place:
        """Where a rank stands."""
        at = dict.fromkeys(_DIMENSIONS, 0)
        for name in self.order.split("-"):
            rank, at[name] = divmod(rank, self.size(name))
        return Place(at["dp"], at["pp"], at["tp"], at["cp"], at["ep"])

    def __str__(self) -> str:
        if not self.known:
            return "unknown"
        sizes = [f"{name}={self.size(name)}" for name in (*DEFAULT_ORDER.split("-"), "vpp") if self.size(name) > 1]
        return ",".join(sizes) or "one rank"


Layouts = tuple[Layout | None, Layout | None]


def read_sizes(text: str) -> dict[str, Any]:
    """``tp=2,pp=4`` as a dictionary; the sizes that are not named are 1, but for dp, which is what is left over."""
    sizes: dict[str, Any] = {}
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        known = name in ("tp", "pp", "dp", "cp", "ep", "vpp") and value.isdecimal() and len(value) < 7
        if name == "order" and value:
            sizes[name] = value
        elif known and int(value) and name not in sizes:
            sizes[name] = int(value)
        else:
            raise BadInput(f"--layout has {part!r}", hint="expected sizes such as tp=2,pp=2,dp=2,cp=1,ep=1,vpp=1")
    return sizes


def layout_for(sizes: dict[str, Any], ranks: int, where: str) -> Layout:
    """The layout of so many ranks; BadInput where the sizes do not multiply to them."""
    model = 1
    for name in ("tp", "pp", "cp", "ep"):
        model *= sizes.get(name, 1)
    dp = sizes.get("dp", ranks // model if model and ranks % model == 0 else 1)
    if model * dp != ranks:
        told = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise BadInput(f"layout {told} makes {model * dp} ranks, but there are {ranks}", where=where,
                       hint="name the sizes so that they multiply to the ranks")  # fmt: skip
    return Layout(ranks, sizes.get("tp", 1), sizes.get("pp", 1), sizes.get("vpp", 1),
                  sizes.get("order", DEFAULT_ORDER), sizes.get("cp", 1), sizes.get("ep", 1))  # fmt: skip


def fitting_layout(text: str, ranks: int) -> Layout | None:
    """The layout that a text such as ``tp=2`` names, or that one rank has, if it is one of so many ranks."""
    with suppress(BadInput):
        return layout_for(read_sizes(text) if text else {"dp": 1}, ranks, "")
    return None


def layouts_of(document: dict[str, Any], *, golden: bool) -> Layouts:
    """The layouts that ``parallel_merge`` of a compare.json names, for both sides."""
    if not document:
        return None, None
    unknown = set(document) - {"npu", "bench"}
    if unknown or "npu" not in document or golden != ("bench" in document):
        need = '"npu" and "bench"' if golden else '"npu"'
        raise BadInput(f"parallel_merge has the keys {sorted(document)}", hint=f"expected {need}")
    return _layout(document["npu"], "npu"), _layout(document["bench"], "bench") if golden else None


def layouts_of_flags(flags: dict[str, list[Any] | None], *, golden: bool) -> Layouts:
    """The layouts that the merge flags name: one value each, or two where two runs are compared."""
    given = {name: values for name, values in flags.items() if values}
    if not given:
        return None, None
    sides = 2 if golden else 1
    for name, values in given.items():
        if len(values) != sides:
            raise BadInput(f"--{name} has {len(values)} values", hint=f"expected {sides}: one for each run")
    target, *others = (
        _layout({name: values[side] for name, values in given.items()}, f"value {side + 1} of the merge flags")
        for side in range(sides)
    )
    return target, others[0] if others else None


def _layout(document: Any, where: str) -> Layout:
    if not isinstance(document, dict):
        raise BadInput("is not an object", where=f"parallel_merge: {where}")
    unknown = [key for key in document if key not in NAMES]
    missing = [key for key in ("rank_size", "tp", "pp") if key not in document]
    if unknown or missing:
        what = f"unknown: {', '.join(unknown)}" if unknown else f"missing: {', '.join(missing)}"
        raise BadInput(what, where=where, hint="a layout is rank_size, tp, pp and if need be vpp, cp, ep and order")
    return Layout(**document)
