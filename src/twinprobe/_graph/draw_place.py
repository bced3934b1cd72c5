"""One step and rank drawn into a file of its own, perhaps in a worker process."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from twinprobe import __version__
from twinprobe._align.matcher import MappingOptions, build_matcher
from twinprobe._compare.layouts.findings import with_findings
from twinprobe._compare.layouts.whole import open_wholes
from twinprobe._compare.one import open_both, worth_two
from twinprobe._compare.request import mapping_mark, once_in_folder
from twinprobe._graph.communication import Call, write_calls
from twinprobe._graph.compare_json import Place, check_dump, nested, open_dump
from twinprobe._graph.golden_process import GoldenProcess
from twinprobe._graph.links import Matcher
from twinprobe._graph.picture import TARGET, Picture, draw_pair, drawn_run, log_calls
from twinprobe._graph.values import DB, VIS
from twinprobe._graph.vis_files import GraphDb, node_indices, write_vis
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.summary import Summary
from twinprobe._layout.layout import Layouts
from twinprobe._layout.merge import Merged, merge_ranks
from twinprobe._layout.settle import Settler
from twinprobe._report.files import Staging, timestamp_now
from twinprobe._runs.run import DUMP, RUN_FILES, Run, open_run, run_fingerprint, unchanged
from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.ledger import Session

DB_FILE, MERGED_DUMP = "db", "json"


@dataclass(frozen=True)
class GraphRequest:
    """What the user asked for; without ``golden`` single graphs are drawn."""

    target: Path
    golden: Path | None
    output: Path
    form: str
    timestamp: str = field(default_factory=timestamp_now)
    mapping: MappingOptions = field(default_factory=MappingOptions)
    same_ancestors: bool = True
    overflow_check: bool = False
    log_calls: bool = False
    complete_stack: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    engine: EngineOptions = field(default_factory=EngineOptions)
    layouts: Layouts = (None, None)
    """Ranks that are merged by their statistics, as the flags say."""
    sizes: tuple[str, ...] = ()
    """How the ranks of two runs in different layouts lie, e.g. ``tp=2,pp=2``; found where nothing is said."""
    resume: bool = False

    def identity(self) -> str:
        """All that decides what is drawn, apart from what lies in the files."""
        mapping = replace(self.mapping, output=None, timestamp="", label="")
        flags = (self.same_ancestors, self.overflow_check, self.complete_stack)
        return repr((str(self.target), str(self.golden), self.form, mapping, flags, self.thresholds, self.layouts,
                     self.sizes))  # fmt: skip

    @property
    def kind(self) -> str:
        """The first word of a result's name."""
        return "build" if self.golden is None else "compare"


@dataclass(frozen=True)
class Job:
    """One place to draw, and what receives it: a file, or the notes of a long command."""

    place: Place
    to: Path | Session
    request: GraphRequest


@dataclass
class Drawn:
    """What came of a job, apart from its file."""

    place: Place
    part: Path
    nodes: int
    micro_steps: int
    mode: str | None
    sources: list[str]
    ends: list[tuple[str, str, int]]
    """Where in a ``.vis`` file the calls that communicate end: source, node, offset."""
    summary: Summary | None
    notes: list[str]


def calls_file(part: Path) -> Path:
    """The calls of a part that talk to other ranks: on disk, since all ranks' together may be too many for memory."""
    return part.with_name(f"{part.name}.calls")


def run_job(job: Job) -> Drawn:
    """Draw one place (perhaps in a worker process), unless an interrupted command has done it."""
    request, place, to = job.request, job.place, job.to
    if isinstance(to, Path):
        to.unlink(missing_ok=True)
        return _draw_into(place, request, to, calls_file(to))

    def work(folder: Path) -> tuple[Drawn, list[Path]]:
        part = folder / f"part.{request.form}"
        with Staging() as staging:
            temporary, calls = staging.file(part), staging.file(calls_file(part))
            temporary.unlink()
            drawn = replace(_draw_into(place, request, temporary, calls), part=part)
        return drawn, [part, calls_file(part)]

    return once_in_folder(to, place.label or "graph", _fingerprint(place, request), Drawn, work)


def _fingerprint(place: Place, request: GraphRequest) -> str:
    """What decides how a place is drawn: the content of its dumps and mapping files, the options, our version."""
    asked = (__version__, request.identity(), place.step, place.rank, place.label)
    digest = hashlib.sha256(repr(asked).encode("utf-8", "surrogateescape"))
    digest.update(mapping_mark(request.mapping))
    for file in _run_files(place):
        digest.update(run_fingerprint(file).encode())
    return digest.hexdigest()


def _run_files(place: Place) -> list[Path]:
    """The dump files that a place is drawn from; one that is not there has the name it should have."""
    if place.sides is not None:
        folders = [folder for side in place.sides for _, folder in side.folders]
    elif place.ranks is None:
        folders = [folder for folder in (place.target, place.golden) if folder is not None]
    else:
        folders = [folder for side in place.ranks for folder in side.values()]
    return [
        next((folder / name for name in RUN_FILES if (folder / name).is_file()), folder / DUMP) for folder in folders
    ]


def _draw_into(place: Place, request: GraphRequest, part: Path, calls: Path) -> Drawn:
    ends: list[tuple[str, str, int]] = []
    picture = _draw_by_two(place, request, part)
    if picture is None:
        picture = _draw(place, request, None)
        if request.form == DB_FILE:
            db = GraphDb(part, nodes=sum(len(side.tree) for side, _ in picture.sides))
            db.add(picture)
            db.close()
        else:
            options = {"overflow_check": request.overflow_check, "complete_stack": request.complete_stack}
            ends = [(source, node, end) for (source, node), end in write_vis(picture, part, **options).items()]
    if request.log_calls:
        log_calls(picture)
    write_calls(calls, _calls(picture, request.form))
    comparison = picture.comparison
    summary = replace(comparison.summary, rank=place.label) if comparison is not None else None
    return Drawn(
        place=place,
        part=part,
        nodes=sum(len(side.tree) for side, _ in picture.sides),
        micro_steps=picture.micro_steps,
        mode=comparison.evidence.mode if comparison is not None else None,
        sources=[side.source for side, _ in picture.sides],
        ends=ends,
        summary=summary,
        notes=picture.target.run.notes if summary is None else summary.notes,
    )


def _draw_by_two(place: Place, request: GraphRequest, part: Path) -> Picture | None:
    """Draw two large runs with a second process; None where that does not pay, or where that one failed."""
    merged = place.ranks is not None or place.sides is not None
    if request.form != DB_FILE or merged or place.golden is None:
        return None
    check_dump(place.target)
    check_dump(place.golden)
    if not worth_two(place.target, place.golden):
        return None
    with GoldenProcess(place.golden, part, place.step, place.rank, overflow_check=request.overflow_check) as worker:
        picture = _draw(place, request, worker)
        return picture if worker.write(picture) else None


def _draw(place: Place, request: GraphRequest, worker: GoldenProcess | None) -> Picture:
    mapping, finish = replace(request.mapping, label=place.label), None
    runs: Sequence[Run | Merged]
    match: Matcher
    with unchanged(*_run_files(place)):
        if place.sides is not None:
            runs, notes, lost = open_wholes(place.sides, DUMP, request.sizes)
            match, finish = Settler(build_matcher(mapping)), partial(with_findings, notes=notes, lost=lost)
        else:
            runs = open_runs(place, request, worker)
            if place.ranks is not None and mapping.layer is None:
                mapping = replace(mapping, fuzzy=True)  # call numbers of the stages mean nothing to one another
            match = build_matcher(mapping)
        if len(runs) == 1:
            side = drawn_run(TARGET, runs[0], overflow_check=request.overflow_check)
            return Picture(place.step, place.rank, side)
        same_ancestors = request.same_ancestors and place.ranks is None and place.sides is None
        return draw_pair(
            runs[0], runs[1], place.step, place.rank, match=match, same_ancestors=same_ancestors, worker=worker,
            overflow_check=request.overflow_check, thresholds=request.thresholds, finish=finish,
        )  # fmt: skip


def open_runs(place: Place, request: GraphRequest, worker: GoldenProcess | None = None) -> list[Run] | list[Merged]:
    """The run or the two runs of a place, the ranks of a layout merged."""
    if place.ranks is None:
        if place.golden is None:
            return [open_dump(place.target)]
        if worker is not None:
            target = nested(open_run(place.target))
            # What the other process hands over is nested, or it would not have handed it over.
            return [target, worker.run() or open_dump(place.golden)]
        check_dump(place.target)
        check_dump(place.golden)
        return [nested(run) for run in open_both(place.target, place.golden)]
    sides = [(folders, layout) for folders, layout in zip(place.ranks, request.layouts, strict=True) if layout]
    return [
        merge_ranks({rank: open_dump(folder) for rank, folder in folders.items()}, layout) for folders, layout in sides
    ]


def _calls(picture: Picture, form: str) -> list[Call]:
    """The calls of a picture that talk to other ranks."""
    calls = []
    indices = node_indices(picture, DB if form == DB_FILE else VIS)
    for side, _ in picture.sides:
        for name, messages in side.communication.calls.items():
            node = side.tree.index[name]
            index: object = indices[node] if side is picture.target else None
            if side.overflow:
                index = side.overflow[node]
            text = "Nan" if index is None else str(index)
            calls.append(Call(side.source, picture.step, picture.rank, name, text, tuple(messages)))
    return calls
