"""Which mappings a user can ask for."""

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
    align: Literal["auto", "names", "none"] = "auto"
    alignment: Path | None = None

    @property
    def any(self) -> bool:
        """Whether there is anything but equal names to go by."""
        named = self.fuzzy or self.api or self.cell or self.data or self.layer or self.alignment
        return bool(named) or self.align == "none"

    @property
    def fills(self) -> bool:
        """Whether what no file speaks of may be aligned; bare -cm and -am mean what they say."""
        return self.align == "auto" and self.cell is not True and self.api is not True
