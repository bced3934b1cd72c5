"""What every request needs: its arguments read with care, the file it names, and the graph it means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from twinprobe.errors import BadInput
from twinprobe.graph.open_graph import Source, find_graph, find_graphs, open_graph
from twinprobe.graph.read_db import GOLDEN, SOURCES, TARGET, Graph
from twinprobe.graph.safe_sqlite import file_key
from twinprobe.view import matches
from twinprobe.view.levels import METRICS
from twinprobe.view.nodes import Scene
from twinprobe.view.overview import Cache, Floats, Overview, read_metric, read_overview

_LARGEST = 1 << 40


class Question:
    """The arguments of a request."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, key: str, default: str = "") -> str:
        """A text of reasonable length."""
        return self._values.get(key, default)[:10_000]

    def flag(self, key: str) -> bool:
        """Whether something is switched on."""
        return self._values.get(key) == "1"

    def number(self, key: str, default: int, most: int = _LARGEST) -> int:
        """A whole number from 0 on."""
        found = self.optional(key)
        return default if found is None else min(found, most)

    def optional(self, key: str) -> int | None:
        """A whole number from 0 on, or None if it is not given."""
        text = self._values.get(key, "")
        if not text:
            return None
        if not text.isdecimal() or len(text) > 15:
            raise BadInput(f"{key} must be a number")
        return int(text)

    def limit(self, key: str) -> float | None:
        """A number that is not negative, or None if it is not given."""
        try:
            found = float(self._values[key]) if self._values.get(key) else None
        except ValueError:
            raise BadInput(f"{key} must be a number") from None
        return found if found is not None and found >= 0 else None

    def numbers(self, key: str) -> list[int]:
        """A comma list of whole numbers."""
        parts = [part for part in self._values.get(key, "").split(",") if part]
        if not all(part.isdecimal() and len(part) < 16 for part in parts):
            raise BadInput(f"{key} must be a list of numbers")
        return [int(part) for part in parts][:5000]

    def side(self) -> str:
        """Which graph: that of the run under test or that of the reference."""
        side = self._values.get("side") or TARGET
        if side not in SOURCES:
            raise BadInput(f"side must be {TARGET} or {GOLDEN}")
        return side


@dataclass(frozen=True)
class Desk:
    """The folder that is shown, and what was computed for earlier requests and can be computed again."""

    place: Path
    _overviews: Cache = field(default_factory=lambda: Cache(64))
    _metrics: Cache = field(default_factory=lambda: Cache(32))
    cells: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def source(self, asked: Question) -> Source:
        """The file that a request names, which must be one of those in the folder; by default the newest."""
        if wanted := asked.text("file"):
            source = find_graph(self.place, wanted)
            if source is None:
                raise BadInput("there is no such file in the folder", where=wanted)
            return source
        found = find_graphs(self.place)
        if not found:
            raise BadInput("no .vis or .vis.db file is in this folder", hint="make one with twinprobe graph")
        return found[0]

    @contextmanager
    def scene(self, asked: Question) -> Iterator[Scene]:
        """The graph that a request means."""
        source = self.source(asked)
        with open_graph(source, asked.optional("step"), asked.optional("rank")) as (config, graph):
            step, rank = asked.number("step", config.steps[0]), asked.number("rank", config.ranks[0])
            made = matches.load(source.path, f"{step}/{rank}")
            metric = asked.text("metric") if asked.text("metric") in METRICS else ""
            yield Scene(source, step, rank, config, graph, made, asked.optional("micro"), metric)

    def overview(self, scene: Scene, side: str) -> Overview:
        """The arrays of one side, computed once for each version of the file."""
        key = (self.version(scene.source, scene.step, scene.rank), side)
        return self._overviews.get(key, lambda: read_overview(scene.config, scene.graph, side))

    def metric(self, scene: Scene) -> Floats | None:
        """The metric in use for every node, if one is."""
        if not scene.metric:
            return None
        overview = self.overview(scene, TARGET)
        key = (self.version(scene.source, scene.step, scene.rank), scene.metric)
        return self._metrics.get(key, lambda: read_metric(scene.graph, scene.metric, overview))

    def suspicious(self, scene: Scene, asked: Question) -> npt.NDArray[np.bool_]:
        """Which nodes of the run under test count as suspicious: by the file's marks or by the user's own limit."""
        above = asked.limit("above")
        return self.overview(scene, TARGET).suspicious(self.metric(scene) if above is not None else None, above)

    @staticmethod
    def version(source: Source, step: int, rank: int) -> tuple[str, int, int]:
        """A key that changes when the file does."""
        path = source.path if source.is_db else source.paths[step, rank]
        log = path.with_name(path.name + "-wal")
        return (file_key(path, log) if log.exists() else file_key(path), step, rank)


def named(scene: Scene, asked: Question) -> dict[str, Any]:
    """The node that a request names by name or by its place in the order."""
    order, name = asked.optional("order"), asked.text("name")
    row = _first(scene.graph, asked.side(), order) if order is not None else scene.graph.node(asked.side(), name)
    if row is None:
        raise BadInput(f"there is no node {name!r} in this graph" if name else "there is no such node in this graph")
    return row


def _first(graph: Graph, side: str, order: int) -> dict[str, Any] | None:
    return next(iter(graph.by_order(side, [order])), None)
