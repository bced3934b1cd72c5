"""Warnings about a mapping file: each names its line; a file full of mistakes does not flood the screen."""

from __future__ import annotations

from pathlib import Path

from twinprobe.align.mapping.yaml_files import at

_SHOWN = 20


class Remarks:
    """Collects warnings about one mapping file, at most some of each kind."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._kinds: dict[str, int] = {}
        self._texts: list[str] = []

    def add(self, line: int, text: str, kind: str = "") -> None:
        """Remember a warning; from the 21st of a kind on they are only counted."""
        seen = self._kinds[kind] = self._kinds.get(kind, 0) + 1
        if seen <= _SHOWN:
            self._texts.append(f"{at(self._path, line)}: {text}")

    def wants(self, kind: str) -> bool:
        """Whether another warning of this kind would still be shown, and a costly hint is worth its time."""
        return self._kinds.get(kind, 0) < _SHOWN

    def whole_file(self, text: str) -> None:
        """Remember a remark on the file as a whole."""
        self._texts.append(f"{self._path}: {text}")

    def texts(self) -> list[str]:
        """All warnings, and how many more there were of each kind."""
        more = [
            f"{self._path}: {count - _SHOWN} more like these ({kind})"
            for kind, count in self._kinds.items()
            if count > _SHOWN
        ]
        return self._texts + more
