"""Which tensor of one checkpoint is which of another: by name, by content, fused against split, transposed, exchanged.

Names come first, without the wrappers that frameworks put around them. What they leave over is paired by what it
holds, in a form that no layout changes: how large it is, its extremes, its mean and its norm.

Sketches of a checkpoint go into a file of their own, so that two sites compare weights by exchanging kilobytes.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, islice
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._align.calls import IN_OUT, WRAPPERS, Shape, dims
from twinprobe._align.links import NONE, Pairs
from twinprobe._align.rows import spelled
from twinprobe._align.turns import fill_up
from twinprobe._compare.pair_table import ALIGNED
from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._measure.sketch import measured
from twinprobe._runs.dtypes import EPSILON, dtype_name
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.sketches import SUFFIX, SketchFile
from twinprobe._runs.tensors.containers import tensors_in
from twinprobe._runs.tensors.elements import HostTensor, damage_of
from twinprobe._runs.tensors.foreign import SHARD
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe._runs.whole_files import write_whole
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

BY_NAME, BY_PLAIN_NAME, BY_CONTENT, FUSED = "name", "name without wrappers", "content", "fused"
SHARDED = "copy of a rank"
KNOWN = (".safetensors", ".npz", ".npy", ".pt", ".pth")  # files of tensors that can be sketched
_WRAPPERS = WRAPPERS | {"state_dict", "model_state_dict", "_layer", "_network", "backbone"}
_FUSED_NAMES = ("qkv", "query_key_value", "c_attn", "in_proj", "gate_up", "w13", "kv", "gate_and_up", "fc1", "h_to_4h")
_SPLIT_NAMES = (("q", "k", "v"), ("gate", "up"), ("w1", "w3"), ("k", "v"))
_MOST_PARTS = 4  # as many as tensors are put together from
_SHOWN = 4  # names of a sort in a note
_STRIP, _SAMPLE, _ROWS = 1 << 20, 1 << 14, 8  # elements at once, elements and rows that are enough to tell
_FEW = 4096  # candidates that are looked at for one tensor
_NEAR = 24  # tensors of one layer that are tried together


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a tensor holds, whatever its layout."""

    total: float
    squares: float
    highest: float
    lowest: float

    def is_like(self, other: Fingerprint, tolerance: float) -> bool:
        """Whether the two may be one tensor in two layouts or dtypes."""
        size = max(abs(self.highest), abs(self.lowest), 1e-30)
        same = (isclose(one, two, rel_tol=tolerance, abs_tol=tolerance * size)
                for one, two in ((self.highest, other.highest), (self.lowest, other.lowest)))  # fmt: skip
        return all(same) and isclose(self.squares, other.squares, rel_tol=2 * tolerance, abs_tol=1e-30)


class Checkpoint:
    """The tensors of one checkpoint."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.names: list[str] = run.table["name"].to_list()
        self.dtypes: list[str] = run.table["dtype"].to_list()
        self.shapes: list[Shape] = [dims(text) or () for text in run.table["shape"].to_list()]
        self._files: list[str] = run.table["file"].to_list()
        self._fingerprints: dict[int, Fingerprint | None] = {}

    @cached_property
    def plain(self) -> list[str]:
        """Names in PyTorch's spelling, without wrappers."""
        return [".".join(part for part in spelled(name).split(".") if part not in _WRAPPERS) for name in self.names]

    def tensor(self, row: int) -> HostTensor | None:
        """The elements; None where they cannot be read, which the comparison itself says."""
        try:
            found = open_named(self.run.tensor_folder, self._files[row])
        except DamagedTensor:
            return None
        return None if found.dtype.startswith("complex") else found

    def fingerprint(self, row: int) -> Fingerprint | None:
        """What a tensor holds, strip by strip; read once. None where that says nothing: NaN, infinity, no elements."""
        if row not in self._fingerprints:
            tensor = self.tensor(row)
            parts = [] if tensor is None else [_numbers(tensor, at, at + _STRIP) for at in
                                              range(0, tensor.data.size, _STRIP)]  # fmt: skip
            found = [(part.sum(), np.square(part).sum(), part.max(), part.min()) for part in parts]
            total, squares, highest, lowest = zip(*found, strict=True) if found else ((), (np.nan,), (), ())
            self._fingerprints[row] = (
                Fingerprint(float(sum(total)), float(sum(squares)), float(max(highest)), float(min(lowest)))
                if np.isfinite(sum(squares))
                else None
            )
        return self._fingerprints[row]

    def tolerance(self, row: int, other: Checkpoint, other_row: int) -> float:
        """How far rounding to the coarser of two dtypes may move a number."""
        coarse = max(
            EPSILON.get(dtype_name(self.dtypes[row]), 0.0), EPSILON.get(dtype_name(other.dtypes[other_row]), 0.0)
        )
        return max(4 * coarse, 1e-6)


def match_weights(target: Run, golden: Run) -> Pairs:
    """Pair the tensors of two checkpoints and note which are renamed, fused, transposed, exchanged or cast."""
    sides = Checkpoint(target), Checkpoint(golden)
    found = _Pairing(sides)
    found.sharded()
    found.by_names()
    found.fused()
    found.by_content()
    transposed = [row for row in found.partner if found.is_transposed(row)]
    swapped = list(found.exchanged(set(transposed)))
    if transposed:
        import polars as pl

        marked = np.zeros(target.table.height, dtype=bool)
        marked[transposed] = True
        layout = pl.when(pl.Series(marked)).then(pl.lit(IN_OUT)).otherwise(pl.col("layout")).alias("layout")
        target.table = target.table.with_columns(layout)
    pairs = found.pairs()
    pairs.notes += _notes(found, transposed, swapped)
    return pairs


class _Pairing:
    """What is paired so far."""

    def __init__(self, sides: tuple[Checkpoint, Checkpoint]) -> None:
        self.target, self.golden = sides
        self.partner: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.rule: dict[int, str] = {}
        self.groups: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._grouped: tuple[set[int], set[int]] = (set(), set())
        self._copies: list[tuple[int, int]] = []  # further copies of a tensor, one on each rank

    def link(self, row: int, other: int, rule: str) -> None:
        self.partner[row], self.back[other], self.rule[row] = other, row, rule

    def _group(self, target: tuple[int, ...], golden: tuple[int, ...]) -> None:
        self.groups.append((target, golden))
        self._grouped[0].update(target)
        self._grouped[1].update(golden)

    def free(self) -> tuple[list[int], list[int]]:
        """The rows of either side that have no partner."""
        return (
            [row for row in range(len(self.target.names)) if row not in self.partner and row not in self._grouped[0]],
            [row for row in range(len(self.golden.names)) if row not in self.back and row not in self._grouped[1]],
        )

    def sharded(self) -> None:
        """Shards of tensor-parallel ranks against whole tensors: put together, or each compared where it is a copy."""
        for side, shards, whole in ((0, self.target, self.golden), (1, self.golden, self.target)):
            ranks: dict[str, list[int]] = defaultdict(list)
            for row, name in enumerate(shards.plain):
                rank, _, rest = name.partition(".")
                if SHARD.fullmatch(rank):
                    ranks[rest].append(row)
            known = _unique(range(len(whole.names)), whole.plain)
            for name, rows in ranks.items():
                other = known.get(name, known.get(_behind(name, 1)))
                if other is None or len(rows) < 2:
                    continue
                if all(shards.shapes[row] == whole.shapes[other] for row in rows):
                    self._copies += [(row, other) if side == 0 else (other, row) for row in rows[1:]]
                    self.link(*((rows[0], other) if side == 0 else (other, rows[0])), SHARDED)
                    self._grouped[side].update(rows[1:])
                elif _adds_up([shards.shapes[row] for row in rows], whole.shapes[other]):
                    self._group(*((tuple(rows), (other,)) if side == 0 else ((other,), tuple(rows))))

    def by_names(self) -> None:
        """Equal names, then names without wrappers, then without what stands in front on one side."""
        forms = [(BY_NAME, self.target.names, self.golden.names), (BY_PLAIN_NAME, self.target.plain, self.golden.plain)]
        for cut in (1, 2):
            behind = [[_behind(name, cut) for name in side.plain] for side in (self.target, self.golden)]
            forms += [(BY_PLAIN_NAME, behind[0], self.golden.plain), (BY_PLAIN_NAME, self.target.plain, behind[1]),
                      (BY_PLAIN_NAME, behind[0], behind[1])]  # fmt: skip
        for rule, target_names, golden_names in forms:
            free, others = self.free()
            known = _unique(others, golden_names)
            for name, row in _unique(free, target_names).items():
                other = known.get(name)
                if other is not None and _sizes(self.target.shapes[row]) == _sizes(self.golden.shapes[other]):
                    self.link(row, other, rule)

    def by_content(self) -> None:
        """Tensors of the same size, in some layout, that hold the same; of several equal ones the first."""
        free, others = self.free()
        by_size: dict[Shape, list[int]] = defaultdict(list)
        for other in others:
            by_size[_sizes(self.golden.shapes[other])].append(other)
        for row in free:
            candidates = [one for one in by_size[_sizes(self.target.shapes[row])] if one not in self.back]
            alike = (other for other in candidates if self._holds(row, other)) if len(candidates) <= _FEW else ()
            for other in islice(alike, 1):
                self.link(row, other, BY_CONTENT)

    def fused(self) -> None:
        """One tensor against several of the other side, in the same layer, that make it up."""
        for side, other in ((0, 1), (1, 0)):
            whole, parts = (self.target, self.golden) if side == 0 else (self.golden, self.target)
            rows = self.free()
            families: dict[tuple[str, str], list[int]] = defaultdict(list)
            for row in rows[other]:
                families[_family(parts.plain[row])].append(row)
            for row in rows[side]:
                numbers_of_name = _family(whole.plain[row])
                near = [part for part in families.get(numbers_of_name, ()) if part not in self._grouped[other]]
                group = next(self._made_of(whole, row, parts, near), None) or self._named(whole, row, parts, near)
                if group is not None:
                    self._group(*(((row,), group) if side == 0 else (group, (row,))))

    def _made_of(self, whole: Checkpoint, row: int, parts: Checkpoint, near: list[int]) -> Iterator[tuple[int, ...]]:
        """Groups of these that make up a tensor: their sizes add up, and so do their squares."""
        if len(near) > _NEAR:
            return
        shape = whole.shapes[row]
        for count in range(2, _MOST_PARTS + 1):
            for group in combinations(near, count):
                if not _adds_up([parts.shapes[one] for one in group], shape):
                    continue
                held = whole.fingerprint(row)
                inner = [one for part in group if (one := parts.fingerprint(part)) is not None]
                if held is None or len(inner) < count:
                    continue
                squares = sum(one.squares for one in inner)
                highest, lowest = max(one.highest for one in inner), min(one.lowest for one in inner)
                together = Fingerprint(held.total, squares, highest, lowest)
                if held.is_like(together, whole.tolerance(row, parts, group[0])):
                    yield group

    def _named(self, whole: Checkpoint, row: int, parts: Checkpoint, near: list[int]) -> tuple[int, ...] | None:
        """The parts by their usual names, where what they hold differs."""
        if not any(word in whole.plain[row].lower() for word in _FUSED_NAMES):
            return None
        for words in _SPLIT_NAMES:
            group = [
                [one for one in near if parts.plain[one].split(".")[-2:][0].lower().startswith(word)] for word in words
            ]
            if all(len(found) == 1 for found in group):
                rows = tuple(found[0] for found in group)
                if _adds_up([parts.shapes[one] for one in rows], whole.shapes[row]):
                    return rows
        return None

    def is_transposed(self, row: int) -> bool:
        """Whether the target's tensor is the golden one with its two axes exchanged."""
        other = self.partner[row]
        shape, golden_shape = self.target.shapes[row], self.golden.shapes[other]
        if len(shape) != 2 or shape[::-1] != golden_shape:
            return False
        if shape != golden_shape:
            return True
        one, two = self.target.tensor(row), self.golden.tensor(other)
        if one is None or two is None or one.shape != shape or two.shape != shape:
            return False
        target, golden = (tensor.data[:].reshape(shape) for tensor in (one, two))

        def close(rows: int, *, turned: bool) -> bool:
            left = target[:, :rows].T if turned else target[:rows]
            first, second = (numbers(tensor.dtype, np.ascontiguousarray(part).reshape(-1), FLOAT64)
                             for tensor, part in ((one, left), (two, golden[:rows])))  # fmt: skip
            return self._close(first, second, row, other)

        # A few rows tell in nearly all cases.
        return not close(_ROWS, turned=False) and close(_ROWS, turned=True) and close(shape[0], turned=True)

    def exchanged(self, transposed: set[int]) -> Iterator[tuple[int, int]]:
        """Pairs of rows whose tensors stand under each other's names."""
        apart: dict[Shape, list[int]] = defaultdict(list)
        for row, other in self.partner.items():
            if row in transposed or self.target.shapes[row] != self.golden.shapes[other]:
                continue
            if not self._begin_alike(row, other) and not self._holds(row, other):
                apart[self.target.shapes[row]].append(row)
        for rows in apart.values():
            for one, two in combinations(rows[:_FEW], 2):
                if self._holds(one, self.partner[two]) and self._holds(two, self.partner[one]):
                    yield one, two

    def _begin_alike(self, row: int, other: int) -> bool:
        """Whether the first elements are equal or cannot be read: enough to see that a tensor is where it belongs."""
        one, two = self.target.tensor(row), self.golden.tensor(other)
        if one is None or two is None:
            return True
        first, second = _numbers(one, 0, _SAMPLE), _numbers(two, 0, _SAMPLE)
        return first.shape == second.shape and self._close(first, second, row, other)

    def _close(self, first: NDArray[np.float64], second: NDArray[np.float64], row: int, other: int) -> bool:
        size = max(float(np.abs(second).max(initial=0.0)), 1e-30)
        atol = size * self.target.tolerance(row, self.golden, other)
        return bool(np.allclose(first, second, rtol=0, atol=atol, equal_nan=True))

    def _holds(self, row: int, other: int) -> bool:
        target, golden = self.target.fingerprint(row), self.golden.fingerprint(other)
        return bool(target and golden and target.is_like(golden, self.target.tolerance(row, self.golden, other)))

    def pairs(self) -> Pairs:
        """The rows side by side, groups in the place of their first row."""
        grouped = {target[0]: (target, golden) for target, golden in self.groups}
        rows: list[tuple[int, int, str]] = []
        groups = {}
        for row in range(len(self.target.names)):
            if row in grouped:
                groups[len(rows)] = grouped[row]
                rows.append((row, grouped[row][1][0], f"{ALIGNED} {FUSED}"))
            elif row not in self._grouped[0]:
                rule = self.rule.get(row, "")
                rows.append((row, self.partner.get(row, NONE), f"{ALIGNED} {rule}" if rule == BY_CONTENT else rule))
        rows += [(row, other, SHARDED) for row, other in self._copies]
        rows += [(NONE, other, "") for other in self.free()[1]]
        target, golden, rules = zip(*rows, strict=True)
        return Pairs(np.array(target, np.int32), np.array(golden, np.int32), list(rules), [], groups)


def _notes(found: _Pairing, transposed: list[int], swapped: list[tuple[int, int]]) -> list[str]:
    target, golden = found.target, found.golden
    notes = []
    renamed = [f"{target.names[row]} is {golden.names[found.partner[row]]}"
               for row, rule in found.rule.items() if rule == BY_CONTENT]  # fmt: skip
    fused = [" + ".join(target.names[row] for row in rows) + " is " + " + ".join(golden.names[row] for row in others)
             for rows, others in found.groups]  # fmt: skip
    casts: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row, other in found.partner.items():
        kinds = dtype_name(golden.dtypes[other]), dtype_name(target.dtypes[row])
        if kinds[0] != kinds[1]:
            casts[kinds].append(target.names[row])
    for title, names in (
        ("renamed, by what they hold", renamed),
        ("fused or split", fused),
        ("transposed", [target.names[row] for row in transposed]),
        ("exchanged", [f"{target.names[one]} holds {golden.names[found.partner[two]]} and the other way round"
                       for one, two in swapped]),
        *((f"cast from {before} to {after}", names) for (before, after), names in casts.items()),
    ):  # fmt: skip
        if names:
            more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
            notes.append(f"{title}: {'; '.join(names[:_SHOWN])}{more}")
    return notes


def _numbers(tensor: HostTensor, start: int, stop: int) -> NDArray[np.float64]:
    return numbers(tensor.dtype, tensor.data[start:stop], FLOAT64)


def _unique(rows: Iterable[int], names: Sequence[str]) -> dict[str, int]:
    """The names that stand once, with their row."""
    found: dict[str, int] = {}
    twice = set()
    for row in rows:
        if names[row] in found:
            twice.add(names[row])
        found[names[row]] = row
    return {name: row for name, row in found.items() if name not in twice}


def _behind(name: str, cut: int) -> str:
    """A name without its first parts; the whole where fewer than two would be left."""
    parts = name.split(".")
    return ".".join(parts[cut:]) if len(parts) - cut >= 2 else name


def _family(name: str) -> tuple[str, str]:
    """What fused and split tensors of one layer have in common: the numbers in their names, and weight or bias."""
    parts = name.split(".")
    return ".".join(part for part in parts if part.isdecimal()), parts[-1]


def _sizes(shape: Shape) -> Shape:
    return tuple(sorted(size for size in shape if size != 1))


def _adds_up(shapes: list[Shape], whole: Shape) -> bool:
    """Whether tensors of these shapes make up the whole along one axis, as they are or transposed."""
    turned = [shape[::-1] for shape in shapes] if len(whole) == 2 else shapes
    return fill_up(shapes, whole) or fill_up(turned, whole)


# Sketches of checkpoints and arrays.


def write_sketches(files: Iterable[Path], output: Path) -> int:
    """Write the sketches of all tensors of these files, which are read one after the other; returns how many."""
    leaves: dict[str, Any] = {}
    came_from: dict[str, Path] = {}

    def write(place: Path) -> None:
        with place.open("wb") as stream:
            sketches = SketchFile(stream)
            for file in files:
                for name, tensor in _named_tensors(file):
                    if name in leaves:
                        raise BadInput(f"{came_from[name]} holds a tensor {name!r}, too", where=file)
                    values, row = measured(tensor) if tensor.data.size else ((), None)
                    leaf = {"type": "Tensor", "dtype": tensor.dtype, "shape": list(tensor.shape)}
                    leaves[name] = leaf | dict(zip(("Max", "Min", "Mean", "Norm"), values, strict=False))
                    came_from[name] = file
                    sketches.add(row)
            if not leaves:
                raise NothingToCompare("hold no tensors", where=", ".join(map(str, files)))
            head = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
            sketches.finish(json.dumps({**head, "data": leaves}).encode())

    write_whole(output, write)
    return len(leaves)


def sketched(path: Path) -> Run:
    """A file of tensors as a run of sketches."""
    with TemporaryDirectory(prefix="twinprobe-") as folder:
        place = Path(folder, f"tensors{SUFFIX}")
        write_sketches([path], place)
        run = open_run(place)
        assert run.sketches is not None  # read now: the file is gone when they are needed
    run.notes = [note.replace(str(place), str(path)) for note in run.notes]
    run.path = path.with_suffix(SUFFIX)
    return run


def _named_tensors(path: Path) -> Iterator[tuple[str, HostTensor]]:
    """The tensors of a file by their names; a file of a single one gives its own."""
    if path.suffix.lower() not in KNOWN:
        raise BadInput("is not a file of tensors", where=path, hint=f"expected {', '.join(KNOWN)}")
    try:
        for name, stored in tensors_in(path).items():
            yield name or path.stem, stored.read()
    except (DamagedTensor, OSError, MemoryError) as error:
        damage = error if isinstance(error, DamagedTensor) and error.where else damage_of(path, error)
        raise BadInput(damage.what, where=damage.where, hint=damage.hint) from None
