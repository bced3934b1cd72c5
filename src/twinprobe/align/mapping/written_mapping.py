"""The data mapping that a layer mapping leaves behind, to be read, corrected and given back with -dm."""

from __future__ import annotations

import json
import re
from pathlib import Path

from twinprobe.align.mapping.data_mapping import NO_PARTNER
from twinprobe.align.pairs import Pairs
from twinprobe.runs.run import Run
from twinprobe.runs.whole_files import write_whole

_PLAIN = r"^[A-Za-z_][A-Za-z0-9_./-]*$"


def write_data_mapping(path: Path, target: Run, golden: Run, pairs: Pairs) -> None:
    """Write every target row and its partner, N/A where it has none."""
    names, others = _quoted(target), _quoted(golden)
    others.append(NO_PARTNER)  # what the row number -1 finds
    partners = pairs.golden[: len(names)].tolist()
    lines = dict(zip(reversed(names), (others[at] for at in reversed(partners)), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "\n".join([f"{name}: {lines.pop(name)}" for name in names if name in lines]) + "\n"
    write_whole(path, lambda place: place.write_text(text, encoding="utf-8"), sync=True)


def _quoted(run: Run) -> list[str]:
    """The rows' names as YAML scalars."""
    column = run.table["name"]
    names: list[str] = column.to_list()
    if column.str.contains(_PLAIN).all():
        return names
    return [name if re.match(_PLAIN, name) and "\n" not in name else json.dumps(name) for name in names]
