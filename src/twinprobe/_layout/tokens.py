"""Where the tokens of recorded tensors are, and one side's passes put together as one run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twinprobe._align.calls import Shape, dims
from twinprobe._align.token_cuts import NONE, Cut, Pass
from twinprobe._runs.dump_json import Stacks
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import Run
from twinprobe._runs.table import FLOAT, INT, PARAMETER, STATS, TENSOR

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

# Where the tokens of a recorded tensor are.

# All tokens of the pass; only each row's last one (a head that keeps no more); all that the cache holds so far.
PLAIN, LAST, CONTEXT = range(3)


class View(NamedTuple):
    """Which axes of a tensor are the batch's rows and the tokens; the row's axis is -1 or -2 as in ``token_name``."""

    family: int
    row: int
    column: int


_AXES = ((0, 1), (0, 2), (1, 0), (1, 2), (0, 3), (2, 0), (-2, 0), (-1, 0), (-1, 1), (-1, 2))


def views_of(shape: Shape, one: Pass) -> dict[View, int]:
    """How a tensor of this shape may hold the tokens of a pass, the likeliest way first; and a token's features."""
    return _views_of(shape, *one.shape, int(one.past.max()) + one.shape[1])


@lru_cache(maxsize=65536)
def _views_of(shape: Shape, rows: int, width: int, reach: int) -> dict[View, int]:
    found: dict[View, int] = {}
    for family, (row, column) in product((PLAIN, LAST, CONTEXT), _AXES):
        if max(row, column) >= len(shape):
            continue
        length = shape[column]
        if row == -2:
            fits = family == PLAIN and rows > 1 and length == rows * width
            taken = length
        else:
            if row == -1:  # without an axis of rows, or with one row that stands for all
                fits = rows == 1 or len(shape) == 1 or (column > 0 and prod(shape[:column]) == 1)
            else:
                fits = shape[row] == rows
            cached = len(shape) == 4 and row == 0 and column < 3 and length >= reach
            fits &= (length == width, length == 1 and row == 0, cached)[family]
            taken = length * (shape[row] if row >= 0 else 1)
        if fits and taken:
            found.setdefault(View(family, row, column), prod(shape) // taken)
    return found


# One side's passes as one run.


@dataclass(repr=False)
class TokenRun(Run):
    """All passes of a side as one call of the model: its calls and rows are those of its longest pass."""

    cut: Cut
    root: Path
    rows: Ints
    """For each row of the table and each pass the row of that pass's own run; NONE where it has none."""
    base: int

    @property
    def tensor_folder(self) -> Path:
        """A folder above the tensors of all passes."""
        return self.root

    def shape(self, row: int, number: int) -> Shape | None:
        """The shape that a value has in a pass."""
        at = int(self.rows[row, number])
        return None if at == NONE else dims(self._column(number, "shape")[at])

    def file(self, row: int, number: int) -> str | None:
        """The file that a value has in a pass, as seen from the tensor folder."""
        run, at = self.cut.runs[self.cut.passes[number].run], int(self.rows[row, number])
        name = None if at == NONE else self._column(number, "file")[at]
        if name is None or run.tensor_folder == self.root:
            return name
        return f"{run.tensor_folder.relative_to(self.root).as_posix()}/{name}"

    def stats(self, row: int, number: int) -> tuple[Any, ...]:
        """The statistics that a value has in a pass; None where they are no numbers."""
        at = int(self.rows[row, number])
        kinds = [self._column(number, f"{stat}_kind")[at] for stat in STATS]
        values = (self._column(number, stat)[at] for stat in STATS)
        return tuple(value if kind in (FLOAT, INT) else None for kind, value in zip(kinds, values, strict=True))

    def _column(self, number: int, name: str) -> list[Any]:
        run = self.cut.passes[number].run
        cache: dict[tuple[int, str], list[Any]] = self.__dict__.setdefault("_lists", {})
        if (run, name) not in cache:
            cache[run, name] = self.cut.runs[run].table[name].to_list()
        return cache[run, name]


def token_run(cut: Cut, tokens: int) -> TokenRun:
    """Put the passes of a side together; the first of the longest passes lends its names.

    Until its tokens are gathered, a value has the shape [tokens, features] if it may hold tokens: rows are paired by
    shapes too, which must not depend on the cut.
    """
    import polars as pl

    base = max(range(len(cut.passes)), key=lambda at: (cut.passes[at].tokens, -at))
    run = cut.runs[cut.passes[base].run]
    keys = [_call_keys(cut, at) for at in range(len(cut.passes))]
    chosen = sorted(keys[base].values())
    place = np.full(len(run.ops), NONE, dtype=np.int64)
    place[chosen] = np.arange(len(chosen))
    ops = run.table["op"].to_numpy()
    kept = np.flatnonzero(place[ops] >= 0)
    renamed = _from_zero([run.ops[at] for at in chosen])
    table = run.table[kept].with_columns(op=pl.Series(place[ops[kept]], dtype=pl.Int32))
    if any(old != new for old, new in renamed.items()):
        shown = [
            renamed[run.ops[op]] + name.removeprefix(run.ops[op])
            for op, name in zip(ops[kept].tolist(), table["name"].to_list(), strict=True)
        ]
        table = table.with_columns(name=pl.Series(shown, dtype=pl.String))
    shapes = {text: views_of(dims(text) or (), cut.passes[base]) for text in table["shape"].unique().to_list()}
    likely = {text: next(iter(views.items())) for text, views in shapes.items() if text and views}
    common = {text: str([tokens, size]) for text, (view, size) in likely.items() if view.family == PLAIN}
    table = table.with_columns(
        pl.when((pl.col("kind") == TENSOR) & (pl.col("role") != PARAMETER))
        .then(pl.col("shape").replace(common))
        .otherwise("shape")
    )
    rows = np.full((len(kept), len(cut.passes)), NONE, dtype=np.int64)
    key_of = {at: key for key, at in keys[base].items()}
    suffixes = [_suffixes(one) for one in cut.runs]
    row_of = [{pair: row for row, pair in enumerate(one)} for one in suffixes]
    wanted = [suffixes[cut.passes[base].run][row] for row in kept.tolist()]
    for number, calls in enumerate(keys):
        own = row_of[cut.passes[number].run]
        rows[:, number] = [own.get((calls.get(key_of[op], NONE), suffix), NONE) for op, suffix in wanted]
    folders = [one.tensor_folder for one in cut.runs]
    root = folders[0]
    while not all(root == folder or root in folder.parents for folder in folders):
        root = root.parent
    made = TokenRun(
        run.path, run.task, run.level, run.framework, list(renamed.values()), table, list(run.notes), cut, root, rows,
        base, settings=run.settings,
    )  # fmt: skip
    stacks = run.stacks
    made.parents = {
        new: around if around is None else renamed.get(around, around)
        for old, new in renamed.items()
        for around in (run.parents.get(old),)
    }
    made.stacks = Stacks(stacks.frames, {new: stacks.of_op[old] for old, new in renamed.items() if old in stacks.of_op})
    return made


def _from_zero(names: Sequence[str]) -> dict[str, str]:
    """The names of a pass's calls with their numbers counted from the pass's first call, as if it were the only one."""
    ops = [parse_op(name) for name in names]
    first: dict[Any, int] = {}
    for op in ops:
        head = (op.prefix, op.body, op.cls)
        first[head] = min(first.get(head, op.call), op.call)
    return {
        name: name if op.call < 0 else op.renumbered(op.call - first[op.prefix, op.body, op.cls])
        for name, op in zip(names, ops, strict=True)
    }


def _suffixes(run: Run) -> list[tuple[int, str]]:
    """For each row its call, and what follows the call's name."""
    return [(op, name.removeprefix(run.ops[op])) for op, name in run.table.select("op", "name").iter_rows()]


def _call_keys(cut: Cut, number: int) -> dict[Any, int]:
    """The calls of one pass by what is equal in every pass: the module's path, or the API and its place in a module."""
    one = cut.passes[number]
    run, belongs = cut.runs[one.run], cut.of_op[one.run]
    seen: dict[Any, int] = defaultdict(int)
    found = {}
    for at in np.flatnonzero(belongs == number).tolist():
        op = run.op_names[at]
        if len(cut.passes) > 1 and op.direction != FORWARD:
            continue  # gradients of several calls are summed and scaled as the program likes
        head: Any = op.without_call
        if not op.is_module:
            around = run.parents.get(run.ops[at])
            head = (parse_op(around).without_call if around else "", op.without_call)
        found[head, seen[head]] = at
        seen[head] += 1
    return found
