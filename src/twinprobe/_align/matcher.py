"""All mapping options as one matcher; what a run does not need is not even imported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from twinprobe._align.links import RULE, Pairs, from_partners, needs_help
from twinprobe._runs.names import BACKWARD, OPTIMIZER, parse_op
from twinprobe._runs.run import OPTIMIZER_FILE, Run
from twinprobe._runs.table import OUTPUT

# Which mappings a user can ask for.


@dataclass
class MappingOptions:
    """Which mappings a user asks for. ``True`` stands for an option without a file.

    ``output`` is the folder that receives ``data_mapping_{timestamp}.yaml`` when ``layer`` is given; ``label`` (a rank
    folder's name, say) keeps the files of several ranks apart.
    """

    fuzzy: bool = False
    api: Path | Literal[True] | None = None
    cell: Path | Literal[True] | None = None
    data: Path | None = None
    layer: Path | None = None
    output: Path | None = None
    timestamp: str = ""
    label: str = ""
    pair: Literal["place", "numbers"] = "place"
    align: Literal["auto", "names", "none"] = "auto"
    alignment: Path | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything but equal names to go by."""
        named = self.fuzzy or self.api or self.cell or self.data or self.layer or self.alignment
        return bool(named) or self.align == "none"

    @property
    def fills(self) -> bool:
        """Whether unmapped calls may be aligned; bare -cm and -am align nothing."""
        return self.align == "auto" and self.cell is not True and self.api is not True


@dataclass
class NamesMatcher:
    """Pair equal names at the same place; where names differ, use everything else that TwinProbe knows."""

    options: MappingOptions

    def __call__(self, target: Run, golden: Run) -> Pairs:
        """Pair two runs."""
        by_place = self.options.pair == "place"
        if target.framework != golden.framework and target.path.name == golden.path.name == OPTIMIZER_FILE:
            return match_updates(target, golden)
        # Two frameworks call the same function with other names of its arguments.
        same_calls = target.ops == golden.ops and target.framework == golden.framework
        if same_calls or target.single_points:
            pairs = match_names(target, golden)
            alike = target.table["shape"].equals(golden.table["shape"], null_equal=True)
            if alike or not by_place or target.single_points:
                return pairs
        elif not by_place and (self.options.align == "names" or not needs_help(target, golden, by_place=False)):
            from twinprobe._align.place import note_of_other_places

            pairs = match_names(target, golden)
            pairs.notes += note_of_other_places(target, golden, pairs)
            return pairs
        else:
            from twinprobe._align.mapping.mapped import read_mappings

            pairs = read_mappings(self.options)(target, golden)
            if not by_place:
                return pairs
        from twinprobe._align.rows import fit_shapes

        return fit_shapes(target, golden, pairs)


def build_matcher(options: MappingOptions) -> Callable[[Run, Run], Pairs]:
    """A matcher that can travel to worker processes.

    All mapping files are read now, so that a bad one is met before any dump is opened.
    """
    from twinprobe._align.parameter_order import ByParameter

    if not options.any:
        return ByParameter(NamesMatcher(options))
    from twinprobe._align.mapping.mapped import read_mappings

    return ByParameter(read_mappings(options))


# Equal names belong together.


def match_names(target: Run, golden: Run) -> Pairs:
    """Pair rows of equal name; backward calls by their order of appearance, on both sides."""
    places = [run.table.select("op", "name") for run in (target, golden)]
    # The same rows in the same order, none of them twice: each belongs to the one at its place.
    unique = target.ops == golden.ops and places[0]["name"].n_unique() == target.table.height
    if unique and places[0].equals(places[1]):
        rows = np.arange(target.table.height, dtype=np.int32)
        return Pairs(rows, rows.copy(), [RULE] * len(rows))
    return join_names(target, golden)


def join_names(target: Run, golden: Run) -> Pairs:
    """The same for any two runs, key by key."""
    return _join(row_keys(target, op_keys(target)), row_keys(golden, op_keys(golden)))


# What MindSpore calls the parameters of a normalisation and of a table, and PyTorch and Paddle do.
_WORDS = {"gamma": "weight", "beta": "bias", "embedding_table": "weight"}


def match_updates(target: Run, golden: Run, names: Mapping[str, str] | None = None) -> Pairs:
    """Pair what the optimizers of two frameworks did: by parameter, by the optimizer's place among all, and by step.

    ``names`` are golden's names of the target's parameters where they are known to be others. What is left over in the
    same module, and is the only parameter of its shape there, has another name as well (``cls``, ``cls_token``).
    """
    sides, places = [], []
    for run, known in ((target, names or {}), (golden, {})):
        kinds: dict[str, int] = {}  # Momentum here is SGD there: the first belongs to the first
        keys, alike = [], []
        shapes = dict(run.table.filter(run.table["role"] == OUTPUT).select("op", "shape").iter_rows())
        for number, op in enumerate(run.ops):
            name, kind, step, _ = op.removeprefix(OPTIMIZER).rsplit(".", 3)
            path, _, word = known.get(name, name).rpartition(".")
            which = f"{kinds.setdefault(kind, len(kinds))} {step}"
            keys.append(f"{path}.{_WORDS.get(word, word)} {which}")
            alike.append(f"{path} {shapes.get(number)} {which}")
        sides.append(keys)
        places.append(alike)
    alone = []
    for keys, alike, there in zip(sides, places, (set(sides[1]), set(sides[0])), strict=True):
        rest = [(place, key) for place, key in zip(alike, keys, strict=True) if key not in there]
        often = Counter(place for place, _ in rest)
        alone.append({place: key for place, key in rest if often[place] == 1})
    renamed = {key: alone[1][place] for place, key in alone[0].items() if place in alone[1]}
    sides[0] = [renamed.get(key, key) for key in sides[0]]
    return _join(row_keys(target, sides[0]), row_keys(golden, sides[1]))


def _join(target: Sequence[str], golden: Sequence[str]) -> Pairs:
    place = dict(zip(reversed(golden), range(len(golden) - 1, -1, -1), strict=True))
    partners = [place.pop(key, -1) for key in target]
    return from_partners(partners, len(golden), [RULE if at >= 0 else "" for at in partners])


def op_keys(run: Run) -> list[str]:
    """One key per call. Backward calls are numbered by their order of appearance.

    Autograd replays calls in an order of its own, so the n-th backward entry of an API is the n-th to run, whatever
    number it carries; both runs are numbered the same way, or two equal runs would not pair with themselves.
    """
    if run.single_points:
        return run.ops
    seen: Counter[str] = Counter()
    keys = []
    for name in run.ops:
        if BACKWARD not in name:
            keys.append(name)
            continue
        op = parse_op(name)
        if op.direction != BACKWARD:
            keys.append(name)
            continue
        kind = op.without_call
        keys.append(op.renumbered(seen[kind]))
        seen[kind] += 1
    return keys


def row_keys(run: Run, keys: Sequence[str]) -> list[str]:
    """One key per row: its call's key and its place among the call's values."""
    ops = run.ops
    result = []
    for at, shown in zip(run.table["op"].to_list(), run.table["name"].to_list(), strict=True):
        op, key, name = ops[at], keys[at], shown
        if key is not op and name.startswith(op):
            name = key + name[len(op) :]
        # A keyword argument's file says .kwargs., its row without a file says .input.
        if ".kwargs." in name:
            name = name.replace(".kwargs.", ".input.", 1)
        result.append(name)
    return result
