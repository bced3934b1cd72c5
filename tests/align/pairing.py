"""Helpers of the pairing tests: run a mapping, see its pairs by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import forward, tensor, write_dump
from twinprobe._align.links import Pairs
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._runs.run import Run, open_run

DATA = Path(__file__).resolve().parents[1] / "data" / "align"
MAPPING = DATA / "mapping"


def match(target: Run, golden: Run, **options: Any) -> Pairs:
    """Pair two runs under some mapping options; what a mapping leaves open stays open, so that it is seen alone."""
    options.setdefault("align", "names" if options else "auto")
    return build_matcher(MappingOptions(**options))(target, golden)


def named(target: Run, golden: Run, pairs: Pairs) -> dict[str, str]:
    """Target row -> golden row, paired ones only."""
    mine, theirs = target.table["name"].to_list(), golden.table["name"].to_list()
    both = zip(pairs.target.tolist(), pairs.golden.tolist(), strict=True)
    return {mine[row]: theirs[other] for row, other in both if row >= 0 and other >= 0}


def matched(target: Run, golden: Run, **options: Any) -> dict[str, str]:
    """The pairs of two runs by name."""
    return named(target, golden, match(target, golden, **options))


def rules(target: Run, pairs: Pairs) -> dict[str, str]:
    """Target row -> the rule that paired it."""
    mine = target.table["name"].to_list()
    return {mine[row]: rule for row, rule in zip(pairs.target.tolist(), pairs.rule, strict=True) if row >= 0 and rule}


def is_identity(run: Run, pairs: Pairs) -> bool:
    """Whether every row of a run was paired with itself."""
    return len(pairs.target) == run.table.height and bool((pairs.target == pairs.golden).all())


def backward(inputs: list[Any], outputs: list[Any]) -> dict[str, Any]:
    """A backward call's entry."""
    return {"input": inputs, "output": outputs}


def small_run(folder: Path, data: dict[str, Any], **more: Any) -> Run:
    """Write and open a dump of a few calls."""
    return open_run(write_dump(folder, data, **more))


def calls(*names: str, shape: list[int] | None = None) -> dict[str, Any]:
    """Entries with one input and one output for each name; gradients for names that say so."""
    leaf = tensor(shape=shape or [2, 3])
    data: dict[str, Any] = {}
    for name in names:
        if ".parameters_grad" in name:
            data[name] = {"weight": [leaf]}
        elif ".backward" in name:
            data[name] = backward([leaf], [leaf])
        else:
            data[name] = forward([leaf], [leaf])
    return data


def yaml_file(folder: Path, text: str, name: str = "mapping.yaml") -> Path:
    """Write a mapping file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path
