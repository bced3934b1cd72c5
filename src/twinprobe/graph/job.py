"""The graph commands' work: every step and rank drawn, in one ``.vis.db`` or in a ``.vis`` file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from twinprobe.align.matcher import MappingOptions, build_matcher
from twinprobe.compare.both import open_both
from twinprobe.errors import BadInput, TwinProbeError
from twinprobe.graph.call_log import log_calls
from twinprobe.graph.folders import Place, check_dump, find_places, find_replicas
from twinprobe.graph.layout import Layouts
from twinprobe.graph.merged_dump import write_merged
from twinprobe.graph.parallel_merge import Merged, merge_ranks
from twinprobe.graph.picture import DrawOptions, Picture, draw_one, draw_pair
from twinprobe.graph.rank_links import Call, link_ranks, read_calls, write_calls
from twinprobe.graph.vis_db import GraphDb, new_indices
from twinprobe.graph.vis_json import add_rank_links, old_indices, write_vis
from twinprobe.judge.summary import Summary
from twinprobe.judge.thresholds import Thresholds
from twinprobe.report.atomic import Staging, prepare_folder, workshop
from twinprobe.report.claims import own_timestamp
from twinprobe.report.leftovers import temporary_name
from twinprobe.runs.run import Run, open_run
from twinprobe.scale.engine import EngineOptions, spread

VIS_FILE, DB_FILE, MERGED_DUMP = "vis", "db", "json"


@dataclass(frozen=True)
class GraphRequest:
    """What the user asked for; without ``golden`` single graphs are drawn."""

    target: Path
    golden: Path | None
    output: Path
    form: str
    timestamp: str
    mapping: MappingOptions = field(default_factory=MappingOptions)
    same_ancestors: bool = True
    overflow_check: bool = False
    log_calls: bool = False
    complete_stack: bool = False
    thresholds: Thresholds = field(default_factory=Thresholds)
    workers: int | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    layouts: Layouts = (None, None)

    @property
    def kind(self) -> str:
        """The first word of a result's name."""
        return "build" if self.golden is None else "compare"


@dataclass(frozen=True)
class Job:
    """One place to draw, and the file that receives it."""

    place: Place
    part: Path
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
    ends: dict[tuple[str, str], int]
    summary: Summary | None
    notes: list[str]

    @property
    def calls_file(self) -> Path:
        """The calls that talk to other ranks: on disk, since all ranks' together may be too many for memory."""
        return _calls_file(self.part)


@dataclass
class Outcome:
    """The files written, what was found, and what could not be drawn."""

    files: list[Path]
    summaries: list[Summary]
    notes: list[str]
    failures: list[str]


def run_request(request: GraphRequest, advance: Callable[[str, int, int], None]) -> Outcome:
    """Carry out a graph request; ``advance(what, done, total)`` is told of progress."""
    places, notes = _find_places(request)
    prepare_folder(request.output)
    if request.form == MERGED_DUMP:
        if request.layouts[0] is not None and request.golden is None:
            return _write_merged(request, places, notes)
        if request.golden is not None:
            raise BadInput("a merged dump is made of one run", hint="leave out -gp, or choose --file_type db or vis")
        notes.append("no ranks are merged, so there is no merged dump to write: a .vis.db is written instead")
        request = replace(request, form=DB_FILE)
    write = _write_db if request.form == DB_FILE else _write_vis
    with own_timestamp(request.output, request.timestamp) as stamp, Staging() as staging:
        request = replace(request, timestamp=stamp, mapping=replace(request.mapping, timestamp=stamp))
        files, drawn, failures = write(request, places, staging, advance)
    for one in drawn:
        notes += one.notes
    summaries = [one.summary for one in drawn if one.summary is not None]
    return Outcome(files, summaries, list(dict.fromkeys(notes)), failures)


def _find_places(request: GraphRequest) -> tuple[list[Place], list[str]]:
    if request.layouts[0] is not None:
        return find_replicas(request.target, request.golden, request.layouts)
    return find_places(request.target, request.golden)


Written = tuple[list[Path], list[Drawn], list[str]]


def _write_merged(request: GraphRequest, places: list[Place], notes: list[str]) -> Outcome:
    files: list[Path] = []
    for place in places:
        (merged,) = _runs(place, request)
        assert isinstance(merged, Merged)
        files += write_merged(merged.run, request.output / f"step{place.step}" / f"rank{place.rank}")
    return Outcome(files, [], notes, [])


def _write_db(
    request: GraphRequest, places: list[Place], staging: Staging, advance: Callable[[str, int, int], None]
) -> Written:
    path = request.output / f"{request.kind}_{request.timestamp}.vis.db"
    final = staging.file(path)
    if len(places) == 1:
        final.unlink()
        try:
            drawn = [run_job(Job(places[0], final, request))]
            _finish(GraphDb(final, nodes=None), drawn, request)
        finally:
            _calls_file(final).unlink(missing_ok=True)
        return [path], drawn, []
    with TemporaryDirectory(
        dir=workshop(request.output), prefix=".twinprobe.", suffix=temporary_name("graph")
    ) as folder:
        jobs = [Job(place, Path(folder, f"{at}.db"), request) for at, place in enumerate(places)]
        drawn, failures = _spread(jobs, advance)
        final.unlink()
        db = GraphDb(final, nodes=sum(one.nodes for one in drawn))
        for one in drawn:
            db.absorb(one.part)
            one.part.unlink()
        _finish(db, drawn, request)
    return [path], drawn, failures


def _finish(db: GraphDb, drawn: list[Drawn], request: GraphRequest) -> None:
    for step in sorted({one.place.step for one in drawn}):
        links = _links([one for one in drawn if one.place.step == step])
        db.link_ranks((call.source, call.step, call.rank, call.node, text) for call, text in links)
    db.finish(
        mode=drawn[0].mode,
        micro_steps=max(one.micro_steps for one in drawn),
        overflow_check=request.overflow_check,
        ranks=sorted({one.place.rank for one in drawn}),
        steps=sorted({one.place.step for one in drawn}),
    )


def _write_vis(
    request: GraphRequest, places: list[Place], staging: Staging, advance: Callable[[str, int, int], None]
) -> Written:
    with TemporaryDirectory(
        dir=workshop(request.output), prefix=".twinprobe.", suffix=temporary_name("graph")
    ) as folder:
        jobs = [Job(place, Path(folder, f"{at}.vis"), request) for at, place in enumerate(places)]
        drawn, failures = _spread(jobs, advance)
        texts: dict[tuple[str, int, int, str], str] = {}
        step_of_texts: int | None = None
        files = []
        for one in drawn:
            if one.place.step != step_of_texts:
                step_of_texts = one.place.step
                same = [other for other in drawn if other.place.step == step_of_texts]
                texts = {(call.source, call.step, call.rank, call.node): text for call, text in _links(same)}
            parts = (request.kind, one.place.label, request.timestamp)
            files.append(request.output / f"{'_'.join(part for part in parts if part)}.vis")
            ends = {
                end: texts[source, one.place.step, one.place.rank, node]
                for (source, node), end in one.ends.items()
                if (source, one.place.step, one.place.rank, node) in texts
            }
            add_rank_links(one.part, staging.file(files[-1]), ends)
            one.part.unlink()
    return files, drawn, failures


def _links(drawn: list[Drawn]) -> Iterator[tuple[Call, str]]:
    """The calls of one step with their partners on other ranks, one side of the comparison in memory at a time."""
    for source in dict.fromkeys(source for one in drawn for source in one.sources):
        calls = [call for one in drawn for call in read_calls(one.calls_file) if call.source == source]
        yield from link_ranks(calls)


def _spread(jobs: list[Job], advance: Callable[[str, int, int], None]) -> tuple[list[Drawn], list[str]]:
    """Draw all places on all cores, in their order; a place that cannot be drawn costs only itself."""
    found: dict[int, Drawn] = {}
    failures: list[str] = []
    if len(jobs) == 1:
        return [run_job(jobs[0])], []
    options = _options(jobs[0].request)
    streamed = spread(run_job, jobs, options=options, name=lambda job: job.place.label)
    for done, (at, result) in enumerate(streamed, start=1):
        advance("ranks", done, len(jobs))
        if isinstance(result, TwinProbeError):
            failures.append(str(result))
        else:
            found[at] = result
    if not found:
        raise BadInput(f"nothing could be drawn: {failures[0]}", where=jobs[0].request.target)
    return [found[at] for at in sorted(found)], sorted(failures)


def _options(request: GraphRequest) -> EngineOptions:
    return replace(request.engine, workers=request.engine.workers or request.workers)


def run_job(job: Job) -> Drawn:
    """Draw one place into its file (perhaps in a worker process)."""
    request, place = job.request, job.place
    job.part.unlink(missing_ok=True)  # a worker that died at this place may have left its half
    picture = _draw(place, request)
    if request.log_calls:
        log_calls(picture)
    ends: dict[tuple[str, str], int] = {}
    nodes = sum(len(side.tree) for side, _ in picture.sides)
    if request.form == DB_FILE:
        db = GraphDb(job.part, nodes=nodes)
        db.add(picture)
        db.close()
    else:
        file = write_vis(
            picture, job.part, overflow_check=request.overflow_check, complete_stack=request.complete_stack
        )
        ends = file.ends
    write_calls(_calls_file(job.part), _calls(picture, request.form))
    comparison = picture.comparison
    summary = replace(comparison.summary, rank=place.label) if comparison is not None else None
    return Drawn(
        place=place,
        part=job.part,
        nodes=nodes,
        micro_steps=picture.micro_steps,
        mode=comparison.evidence.mode if comparison is not None else None,
        sources=[side.source for side, _ in picture.sides],
        ends=ends,
        summary=summary,
        notes=picture.target.run.notes if summary is None else summary.notes,
    )


def _calls_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.calls")


def _draw(place: Place, request: GraphRequest) -> Picture:
    runs = _runs(place, request)
    mapping = replace(request.mapping, label=place.label)
    if place.ranks is not None and mapping.layer is None:
        mapping = replace(mapping, fuzzy=True)  # call numbers of the stages mean nothing to one another
    options = DrawOptions(
        match=build_matcher(mapping),
        same_ancestors=request.same_ancestors and place.ranks is None,
        overflow_check=request.overflow_check,
        thresholds=request.thresholds,
    )
    if len(runs) == 1:
        return draw_one(runs[0], place.step, place.rank, options)
    return draw_pair(runs[0], runs[1], place.step, place.rank, options)


def _runs(place: Place, request: GraphRequest) -> list[Run] | list[Merged]:
    if place.ranks is None:
        if place.golden is None:
            return [open_dump(place.target)]
        check_dump(place.target)
        check_dump(place.golden)
        return [nested(run) for run in open_both(place.target, place.golden)]
    sides = [(folders, layout) for folders, layout in zip(place.ranks, request.layouts, strict=True) if layout]
    return [
        merge_ranks({rank: open_dump(folder) for rank, folder in folders.items()}, layout) for folders, layout in sides
    ]


def open_dump(folder: Path) -> Run:
    """Open one rank's dump and make sure that it says how its calls are nested."""
    check_dump(folder)
    return nested(open_run(folder))


def nested(run: Run) -> Run:
    """The run itself, if it says how its calls are nested."""
    if not run.parents:
        damaged = [note for note in run.notes if "construct.json" in note]
        raise BadInput(
            damaged[0] if damaged else "construct.json is empty: the hierarchy was not recorded",
            where=run.folder, hint="record with level L0 or mix",
        )  # fmt: skip
    return run


def _calls(picture: Picture, form: str) -> list[Call]:
    """The calls of a picture that talk to other ranks."""
    found = []
    indices = (new_indices if form == DB_FILE else old_indices)(picture)
    for side, _ in picture.sides:
        for name, messages in side.communication.calls.items():
            node = side.tree.index[name]
            index: object = indices[node] if side is picture.target else None
            if side.overflow:
                index = side.overflow[node]
            text = "Nan" if index is None else str(index)
            found.append(Call(side.source, picture.step, picture.rank, name, text, tuple(messages)))
    return found
