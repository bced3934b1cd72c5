"""What to merge: the YAML file of ``merge_result``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from twinprobe.align.mapping.yaml_files import KINDS, Mapping, Sequence, Text, at, read_yaml, text_of
from twinprobe.errors import BadInput
from twinprobe.report import titles

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
                raise self._unknown(metric, have)
        return list(self.metrics) or have

    def _unknown(self, metric: str, have: list[str]) -> BadInput:
        near = get_close_matches(metric, have, 1, 0.6)
        guess = f"did you mean {near[0]!r}? " if near else ""
        elsewhere = [kind for kind, metrics in METRICS.items() if metric in metrics]
        what = f"only results of {elsewhere[0]} have it" if elsewhere else "no result has it"
        return BadInput(
            f'"compare_index" names {metric!r}, but {what}',
            where=self.path, hint=f"{guess}there are: {', '.join(have)}",
        )  # fmt: skip


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
        f"{at(path, line)}: the key {key!r} is not known and was left out"
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
