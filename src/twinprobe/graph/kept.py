"""A long graph command's notes: which places an interrupted one has drawn, known by the content of their dumps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from twinprobe import __version__
from twinprobe.compare.ranks.arrange import mapping_mark
from twinprobe.runs.fingerprint import run_fingerprint
from twinprobe.runs.run import DUMP, RUN_FILES

if TYPE_CHECKING:
    from twinprobe.graph.folders import Place
    from twinprobe.graph.request import GraphRequest


def place_mark(place: Place, request: GraphRequest) -> str:
    """What decides how a place is drawn: the content of its dumps and mapping files, the options, our version."""
    told = (__version__, request.identity(), place.step, place.rank, place.label)
    digest = hashlib.sha256(repr(told).encode("utf-8", "surrogateescape"))
    digest.update(mapping_mark(request.mapping))
    for file in run_files(place):
        digest.update(run_fingerprint(file).encode())
    return digest.hexdigest()


def run_files(place: Place) -> list[Path]:
    """The dump files that a place is drawn from; one that is not there has the name it should have."""
    return [_run_file(folder) for folder in _folders(place)]


def _folders(place: Place) -> Iterator[Path]:
    if place.ranks is None:
        yield place.target
        if place.golden is not None:
            yield place.golden
        return
    for side in place.ranks:
        yield from side.values()


def _run_file(folder: Path) -> Path:
    return next((folder / name for name in RUN_FILES if (folder / name).is_file()), folder / DUMP)
