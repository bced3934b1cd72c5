"""Graph files that lie elsewhere, brought here to be looked at: SQLite reads none but local files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from twinprobe.runs.places import remote
from twinprobe.runs.remote.local_copy import fetch
from twinprobe.runs.remote.path import RemotePath

_GRAPHS = (".vis", ".vis.db")


@contextmanager
def graphs_here(place: Path) -> Iterator[Path]:
    """The place itself where it is local; else a copy of its graph files, and nothing else, while it is needed."""
    elsewhere = remote(place)
    if elsewhere is None or not elsewhere.exists():
        yield place
        return
    with TemporaryDirectory(prefix="twinprobe-view-") as folder:
        if elsewhere.is_file():
            yield _brought(elsewhere, Path(folder, elsewhere.name))
            return
        for path in elsewhere.rglob("*"):
            if path.name.endswith(_GRAPHS) and path.is_file():
                _brought(path, Path(folder, *path.relative_to(elsewhere).parts))
        yield Path(folder)


def _brought(path: RemotePath, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    fetch(path, copy)
    return copy
