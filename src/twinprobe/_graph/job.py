"""The graph commands' work: every step and rank drawn, in one ``.vis.db`` or in a ``.vis`` file each."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from twinprobe import __version__
from twinprobe._align.mapping import MappingOptions
from twinprobe._align.matcher import build_matcher
from twinprobe._compare.layouts.findings import with_findings
from twinprobe._compare.layouts.folders import puts_together
from twinprobe._compare.layouts.whole import open_wholes
from twinprobe._compare.one import open_both, worth_two
from twinprobe._compare.request import Command, Request, mapping_mark, once_in_folder, session_of
from twinprobe._graph.communication import Call, link_ranks, read_calls, write_calls
from twinprobe._graph.compare_json import Place, check_dump, find_places, find_replicas, find_wholes, nested, open_dump
from twinprobe._graph.golden_process import GoldenProcess
from twinprobe._graph.picture import TARGET, Matcher, Picture, draw_pair, drawn_run, log_calls
from twinprobe._graph.values import DB, VIS
from twinprobe._graph.vis_files import GraphDb, add_rank_links, node_indices, write_vis
from twinprobe._judge.rules import Thresholds
from twinprobe._judge.summary import Summary
from twinprobe._layout.layout import Layouts
from twinprobe._layout.merge import Merged, merge_ranks, write_merged
from twinprobe._layout.settle import Settler
from twinprobe._report.files import Staging, prepare_folder, scratch_folder, timestamp_now
from twinprobe._runs.remote.contents import local_copy
from twinprobe._runs.run import DUMP, RUN_FILES, Run, open_run, run_fingerprint, unchanged
from twinprobe._runs.whole_files import temporary_name
from twinprobe._scale.engine import EngineOptions
from twinprobe._scale.ledger import Session
from twinprobe._scale.spread import spread
from twinprobe.errors import BadInput, NothingRecorded, NothingToCompare, TwinProbeError

# One step and rank drawn into a file of its own, perhaps in a worker process.

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


# All places of a command.

Advance = Callable[[str, int, int], None]  # what is counted, how many are done, of how many


@dataclass
class Outcome:
    """The files written, what was found, and what was asked for and could not be drawn."""

    files: list[Path]
    summaries: list[Summary]
    notes: list[str]
    failures: list[str]


def run_request(request: GraphRequest, advance: Advance) -> Outcome:
    """Carry out a graph request; ``advance`` is told of progress."""
    if request.layouts[0] is not None:
        places, notes, lost = find_replicas(request.target, request.golden, request.layouts)
    elif request.golden is not None and puts_together(
        asked := Request(request.target, request.golden, request.output, layouts=request.sizes)
    ):
        places, notes, lost = find_wholes(asked)
    else:
        places, notes, lost = find_places(request.target, request.golden)
    prepare_folder(request.output)
    if request.form == MERGED_DUMP:
        if request.layouts[0] is not None and request.golden is None:
            return _write_merged(request, places, notes)
        if request.golden is not None:
            raise BadInput("a merged dump is made of one run", hint="leave out -gp, or choose --file_type db or vis")
        notes.append("no ranks are merged, so there is no merged dump to write: a .vis.db is written instead")
        request = replace(request, form=DB_FILE)
    write = _write_db if request.form == DB_FILE else _write_vis
    command = Command("graph", request.identity(), request.output, request.timestamp, request.resume)
    with session_of(command, keeps=len(places) > 1) as (stamp, session, resumed):
        notes += resumed
        request = replace(request, timestamp=stamp, mapping=replace(request.mapping, timestamp=stamp))
        with Staging() as staging:
            files, drawn, failures, empty = write(request, places, staging, session, advance)
        if session is not None and not failures:
            session.end(keep=False)
    for piece in drawn:
        notes += piece.notes
        lost += piece.summary.lost if piece.summary is not None else []
    summaries = [piece.summary for piece in drawn if piece.summary is not None]
    return Outcome(files, summaries, list(dict.fromkeys(notes + empty)), lost + failures)


# The files, what was drawn, what could not be, and where nothing was recorded.
Written = tuple[list[Path], list[Drawn], list[str], list[str]]


def _write_merged(request: GraphRequest, places: list[Place], notes: list[str]) -> Outcome:
    files: list[Path] = []
    failures: list[str] = []
    for place in places:
        try:
            (merged,) = open_runs(place, request)
            assert isinstance(merged, Merged)
            files += write_merged(merged.run, request.output / f"step{place.step}" / f"rank{place.rank}")
        except TwinProbeError as error:
            if len(places) == 1:
                raise
            failures.append(str(error))
    if not files:
        raise BadInput(f"nothing could be drawn: {failures[0]}", where=request.target)
    return Outcome(files, [], notes, failures)


def _write_db(
    request: GraphRequest, places: list[Place], staging: Staging, session: Session | None, advance: Advance
) -> Written:
    path = request.output / f"{request.kind}_{request.timestamp}.vis.db"
    final = staging.file(path)
    final.unlink()
    if session is None:
        try:
            drawn = [run_job(Job(places[0], final, request))]
            _finish(GraphDb(final, nodes=None), drawn, request)
        finally:
            calls_file(final).unlink(missing_ok=True)
        return [path], drawn, [], []
    drawn, failures, empty = _spread([Job(place, session, request) for place in places], advance)
    db = GraphDb(final, nodes=sum(piece.nodes for piece in drawn))
    for piece in drawn:
        with local_copy(piece.part) as part:
            db.absorb(part)
    _finish(db, drawn, request)
    return [path], drawn, failures, empty


def _finish(db: GraphDb, drawn: list[Drawn], request: GraphRequest) -> None:
    for step in sorted({piece.place.step for piece in drawn}):
        links = _links([piece for piece in drawn if piece.place.step == step])
        db.link_ranks((call.source, call.step, call.rank, call.node, text) for call, text in links)
    db.finish(
        mode=drawn[0].mode,
        micro_steps=max(piece.micro_steps for piece in drawn),
        overflow_check=request.overflow_check,
        ranks=sorted({piece.place.rank for piece in drawn}),
        steps=sorted({piece.place.step for piece in drawn}),
    )


def _write_vis(
    request: GraphRequest, places: list[Place], staging: Staging, session: Session | None, advance: Advance
) -> Written:
    where, name = scratch_folder(request.output), temporary_name("graph")
    with TemporaryDirectory(dir=where, prefix=".twinprobe.", suffix=name) as folder:
        jobs = [Job(place, session or Path(folder, "part"), request) for place in places]
        drawn, failures, empty = _spread(jobs, advance)
        texts: dict[tuple[str, int, int, str], str] = {}
        step_of_texts: int | None = None
        files = []
        for piece in drawn:
            if piece.place.step != step_of_texts:  # the links of one step at a time: all of them may be too many
                step_of_texts = piece.place.step
                same = [other for other in drawn if other.place.step == step_of_texts]
                texts = {(call.source, call.step, call.rank, call.node): text for call, text in _links(same)}
            parts = (request.kind, piece.place.label, request.timestamp)
            files.append(request.output / f"{'_'.join(part for part in parts if part)}.vis")
            ends = {
                end: texts[source, piece.place.step, piece.place.rank, node]
                for source, node, end in piece.ends
                if (source, piece.place.step, piece.place.rank, node) in texts
            }
            with local_copy(piece.part) as part:
                add_rank_links(part, staging.file(files[-1]), ends)
    return files, drawn, failures, empty


def _links(drawn: list[Drawn]) -> Iterator[tuple[Call, str]]:
    """The calls of one step with their partners on other ranks, one side of the comparison in memory at a time."""
    for source in dict.fromkeys(source for piece in drawn for source in piece.sources):
        calls = [call for piece in drawn for call in read_calls(calls_file(piece.part)) if call.source == source]
        yield from link_ranks(calls)


def _spread(jobs: list[Job], advance: Advance) -> tuple[list[Drawn], list[str], list[str]]:
    """Draw all places on all cores, in their order; a place that cannot be drawn costs only itself."""
    if len(jobs) == 1:
        return [run_job(jobs[0])], [], []
    drawn: dict[int, Drawn] = {}
    failures: list[str] = []
    empty: list[str] = []
    request = jobs[0].request
    nothing = NothingToCompare if request.golden is None else NothingRecorded
    streamed = spread(run_job, jobs, options=request.engine, name=lambda job: job.place.label)
    for done, (index, result) in enumerate(streamed, start=1):
        advance("ranks", done, len(jobs))
        if isinstance(result, TwinProbeError):
            (empty if isinstance(result, nothing) else failures).append(str(result))
        else:
            drawn[index] = result
    if not drawn:
        raise BadInput(f"nothing could be drawn: {(failures + empty)[0]}", where=request.target)
    return [drawn[index] for index in sorted(drawn)], sorted(failures), sorted(empty)
