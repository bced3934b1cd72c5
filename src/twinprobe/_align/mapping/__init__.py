"""Mappings that a user gives: which there are; how their files are read and applied."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


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
