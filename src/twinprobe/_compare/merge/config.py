"""What to merge: the YAML file of ``merge_result``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from twinprobe._align.mapping.yaml_files import KINDS, Mapping, Sequence, Text, location, read_yaml, text_of
from twinprobe._report import tables as titles
from twinprobe._report.overview import lost_of
from twinprobe._report.tables import PART, find_dataset, places
from twinprobe.errors import BadInput, did_you_mean

STATISTICS_METRICS = (*titles.DIFFERENCES.values(), *titles.RELATIVES.values())
TENSOR_METRICS = tuple(titles.METRICS)
GRAD_METRIC = "Requires_grad Consistent"
STATISTICS, TENSORS = "statistics", "real data"
METRICS = {STATISTICS: (*STATISTICS_METRICS, GRAD_METRIC), TENSORS: (*TENSOR_METRICS, GRAD_METRIC)}

_EXAMPLE = "a list such as [Distributed.all_reduce]"


@dataclass(frozen=True)
class MergeConfig:
    """Which calls are merged, and which metrics of them; no metrics means all."""

    path: Path
    api: tuple[str, ...]
    metrics: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)

    def pattern(self) -> str:
        """A regular expression (of Python and of polars) for the names that are wanted."""
        return "^(?:" + "|".join(re.escape(entry) for entry in self.api) + r")(?:\.|$)"

    def choose(self, kinds: Iterable[str]) -> list[str]:
        """The metrics to merge from results of these kinds; one that none of them has is an error."""
        have: list[str] = []
        present = set(kinds)
        for kind, metrics in METRICS.items():
            if kind in present:
                have += [metric for metric in metrics if metric not in (*have, GRAD_METRIC)]
        have.append(GRAD_METRIC)
        for metric in self.metrics:
            if metric not in have:
                elsewhere = [kind for kind, metrics in METRICS.items() if metric in metrics]
                what = f"only results of {elsewhere[0]} have it" if elsewhere else "no result has it"
                raise BadInput(
                    f'"compare_index" names {metric!r}, but {what}',
                    where=self.path, hint=f"{did_you_mean(metric, have)}there are: {', '.join(have)}",
                )  # fmt: skip
        return list(self.metrics) or have


def read_merge_config(path: Path) -> MergeConfig:
    """Read the config file; BadInput names the file and the key."""
    top = read_yaml(path)
    if not isinstance(top, Mapping):
        raise BadInput(
            f"is {KINDS[type(top)]}, a mapping was expected", where=path, hint=f'its key "api" takes {_EXAMPLE}'
        )
    if "api" not in top.items:
        raise BadInput('has no "api"', where=path, hint=f"name the calls to merge: {_EXAMPLE}")
    api = [entry.rstrip(".") for entry in _texts(path, "api", top)]
    if not api or not all(api):
        raise BadInput('"api" is empty or has an empty entry', where=path, hint=f"give {_EXAMPLE}")
    metrics = _texts(path, "compare_index", top)
    notes = [
        f"{location(path, line)}: the key {key!r} is not known and was left out"
        for key, (line, _) in top.items.items()
        if key not in ("api", "compare_index")
    ]
    return MergeConfig(path, tuple(dict.fromkeys(api)), tuple(dict.fromkeys(metrics)), notes)


def _texts(path: Path, key: str, top: Mapping) -> list[str]:
    """The entries of a list of texts, or one text alone; nothing at all is an empty list."""
    if key not in top.items:
        return []
    node = top.items[key][1]
    if isinstance(node, Text) and node.is_null:
        return []
    entries = node.items if isinstance(node, Sequence) else [node]
    return [text_of(path, entry, f'an entry of "{key}"').strip() for entry in entries]


# Which files of a folder are the results of which rank.

_RESULT = re.compile(
    r"compare_result_rank(?P<rank>\d{1,9})(?:-rank\d{1,9})?_(?P<time>\d{14})(?:_part_(?P<part>\d{1,6}))?"
    r"\.(?P<form>parquet|csv|xlsx)"
)
_KERNEL = re.compile(r"compare_result_\d+_\d+_\d{14}(?:_part_\d+)?\.(?:parquet|csv|xlsx)")
_OTHER_RESULT = re.compile(r"(?:debug_)?compare_result_.*\.(?:parquet|csv|xlsx)")
# The same table, the quickest to read first.
_FORMS = ("parquet", "csv", "xlsx")


@dataclass(frozen=True)
class RankFiles:
    """The files that hold one rank's result: one, or its parts in order."""

    rank: int
    paths: tuple[Path, ...]


def find_results(folder: Path) -> tuple[list[RankFiles], list[str], list[str]]:
    """The newest result of every rank, in rank order; notes on what was left out; and what compare did not manage."""
    if not folder.is_dir():
        raise BadInput("is not a folder" if folder.exists() else "does not exist", where=folder)
    in_parts = _dataset_parts(folder)
    if in_parts is not None:
        return in_parts[0], [], in_parts[1]
    results: dict[int, dict[str, dict[str, list[tuple[int, Path]]]]] = {}
    notes: list[str] = []
    for path in sorted(folder.iterdir()):
        if not path.is_file():
            continue
        match = _RESULT.fullmatch(path.name)
        if match is not None:
            by_time = results.setdefault(int(match["rank"]), {})
            parts = by_time.setdefault(match["time"], {}).setdefault(match["form"], [])
            parts.append((int(match["part"] or 0), path))
        elif _KERNEL.fullmatch(path.name):
            raise BadInput(
                "is a result of kernels of a static graph, which cannot be merged",
                where=path, hint="give a folder that holds results of ranks only",
            )  # fmt: skip
        elif _OTHER_RESULT.fullmatch(path.name):
            notes.append(f"{path}: left out, its name does not say which rank it belongs to")
    if len(results) < 2:
        have = ", ".join(f"rank {rank}" for rank in results) or "none"
        below = {path.parent.name for path in folder.glob("*/compare_result_rank*") if _RESULT.fullmatch(path.name)}
        hint = "results are called compare_result_rank<N>_<time>.xlsx, .csv or .parquet"
        if below:
            hint = f"there are results one level below, in {', '.join(sorted(below)[:5])}: name one of these folders"
        raise BadInput(f"results of at least two ranks are needed, found: {have}", where=folder, hint=hint)
    return [_newest(rank, results[rank], notes) for rank in sorted(results)], notes, []


def _dataset_parts(folder: Path) -> tuple[list[RankFiles], list[str]] | None:
    """The parts of a dataset, or of one of its steps, and what it lacks; None where results of other kinds are here."""
    if any(folder.glob("rank=*/part.parquet")):
        dataset = folder.parent
        places_here = [place for place in places(dataset) if not place.mode and folder.name == f"step={place.step}"]
        lost = lost_of(dataset, places_here[0].step if places_here else None)
    else:
        inner = find_dataset(folder)
        if inner is None or (inner != folder and any(_RESULT.fullmatch(path.name) for path in folder.iterdir())):
            return None
        dataset, places_here = inner, places(inner)
        lost = lost_of(dataset)
    steps = sorted({Path(place.folder).parent.as_posix() for place in places_here})
    if len(steps) > 1:
        shown = ", ".join(steps[:6]) + (" ..." if len(steps) > 6 else "")
        raise BadInput(
            f"holds {len(steps)} steps, and one is merged at a time", where=dataset, hint=f"name one of {shown}"
        )
    if len(places_here) < 2:
        raise BadInput("results of at least two ranks are needed", where=dataset)
    return [RankFiles(place.rank, (dataset / place.folder / PART,)) for place in places_here], lost


def _newest(rank: int, by_time: dict[str, dict[str, list[tuple[int, Path]]]], notes: list[str]) -> RankFiles:
    *older, newest = sorted(by_time)
    if older:
        names = ", ".join(path.name for time in older for parts in by_time[time].values() for _, path in parts)
        notes.append(f"rank {rank} has several results: the newest ({newest}) is taken, not {names}")
    forms = by_time[newest]
    form = next(form for form in _FORMS if form in forms)
    return RankFiles(rank, tuple(path for _, path in sorted(forms[form])))
