"""The graph commands' work: every step and rank drawn, in one ``.vis.db`` or in a ``.vis`` file each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from twinprobe._compare.layouts.folders import puts_together
from twinprobe._compare.request import Command, Request, session_of
from twinprobe._graph.communication import Call, link_ranks, read_calls
from twinprobe._graph.compare_json import Place, find_places, find_replicas, find_wholes
from twinprobe._graph.draw_place import DB_FILE, MERGED_DUMP, Drawn, GraphRequest, Job, calls_file, open_runs, run_job
from twinprobe._graph.vis_files import GraphDb, add_rank_links
from twinprobe._judge.summary import Summary
from twinprobe._layout.merge import Merged, write_merged
from twinprobe._report.files import Staging, prepare_folder, scratch_folder
from twinprobe._runs.remote.contents import local_copy
from twinprobe._runs.whole_files import temporary_name
from twinprobe._scale.ledger import Session
from twinprobe._scale.spread import spread
from twinprobe.errors import BadInput, NothingRecorded, NothingToCompare, TwinProbeError

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
