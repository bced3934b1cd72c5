"""Two inference dumps in, a report and a summary out."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path, PurePath

from twinprobe import __version__
from twinprobe._align.folders import pair_all
from twinprobe._align.ops.plan import Call, OpenedToken, Plan, make_plan
from twinprobe._align.ops.table import OperatorTable, read_table
from twinprobe._compare.llm.custom import Algorithms
from twinprobe._compare.llm.rows import Row, Rows, TokenFiles
from twinprobe._compare.llm.token import (
    SHARED_NAMES,
    LlmRequest,
    TokenCounts,
    TokenJob,
    TokenResult,
    compare_token,
    numbered,
    result_of,
)
from twinprobe._compare.request import Command, once_in_folder, session_of
from twinprobe._judge.rules import ERROR, PASS, WARNING
from twinprobe._judge.summary import Divergence, RunInfo, Summary, unread_rows
from twinprobe._lazy import polars as pl
from twinprobe._report.files import own_timestamp, prepare_folder, replacing
from twinprobe._report.reports import check_formats, write_reports
from twinprobe._runs.llm.dump import (
    METADATA,
    STORES,
    Layout,
    LlmDump,
    ManualPair,
    find_layout,
    open_llm_dump,
    read_manual,
)
from twinprobe._runs.llm.files import OUTPUT, TensorFile, TokenFolder
from twinprobe._runs.remote.contents import local_copy
from twinprobe._runs.run import files_below, files_fingerprint, whole_fingerprint
from twinprobe._runs.whole_files import place
from twinprobe._scale.engine import AUTO, cores
from twinprobe._scale.ledger import Session
from twinprobe._scale.spread import spread
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError

# Rows or bytes from which more than one process, or thread for few large tokens, is worth starting.
_MANY_ROWS = 6000
_MANY_BYTES = 256 << 20
# So many times that much takes long enough for notes of what is finished.
_LONG = 100
# What numpy's calls for a row cost on top, in bytes that it could have measured instead.
_BYTES_OF_A_ROW = 48 << 10


@dataclass
class LlmComparison:
    """The report's table and the summary; in ``lost``, what was asked for and is not in the report."""

    table: pl.DataFrame
    summary: Summary
    lost: list[str] = field(default_factory=list)


def compare_dumps(
    request: LlmRequest, advance: Callable[[str, int, int], None] | None = None, kept: Notes | None = None
) -> LlmComparison:
    """Compare two dumps: all tokens that both have, or the ones that the paths name."""
    table = read_table(request.mapping)
    if request.algorithms:  # a mistake in them is told before the work
        with closing(Algorithms(request.algorithms, timeout=request.timeout)) as algorithms:
            algorithms.start()
    target, golden = open_llm_dump(request.target), open_llm_dump(request.golden)
    jobs, notes, lost = _jobs(request, target, golden, table)
    results, resumed = _run(jobs, request, advance or (lambda _what, _done, _total: None), kept)
    notes += resumed
    failures = [
        f"token {job.token}: {result}"
        for job, result in zip(jobs, results, strict=True)
        if isinstance(result, TwinProbeError)
    ]
    lost += failures
    done = [result for result in results if isinstance(result, TokenResult)]
    if kept is not None:
        kept.complete = not failures
    if not done:
        raise BadInput(f"nothing could be compared: {failures[0]}", where=request.target)
    matched, misshapen = (sum(getattr(result.counts, name) for result in done) for name in ("matched", "misshapen"))
    if request.statistics:
        if not matched:
            raise NothingToCompare(f"nothing here has a counterpart in {request.golden}", where=request.target)
    # Operators of equal names in two other models pair up as well; that nothing has one size gives it away.
    elif matched == misshapen:
        raise NothingToCompare(
            f"no tensor has a counterpart of the same size in {request.golden}", where=request.target,
            hint="are both dumps of the same model? an op_mapping_file.json can say which operators belong together",
        )  # fmt: skip
    elif 2 * misshapen > matched:
        notes.append(f"{misshapen} of {matched} pairs differ in size: are both dumps of the same model?")
    mode, task = ("llm statistics", "statistics") if request.statistics else ("llm", "tensor")
    sides = [
        RunInfo(str(path), dump.kind, task, "", sum(1 for model in dump.models for _ in model.walk()), 0)
        for dump, path in ((target, request.target), (golden, request.golden))
    ]
    comparison = joined(done, mode, sides[0], sides[1], [*table.notes, *target.notes, *golden.notes, *notes, *lost])
    return replace(comparison, lost=lost)


def _jobs(
    request: LlmRequest, target: LlmDump, golden: LlmDump, table: OperatorTable
) -> tuple[list[TokenJob], list[str], list[str]]:
    plans: dict[tuple[int, int], Plan] = {}
    jobs = []
    pairs, notes, lost = pair_all(target, golden)
    for devices, token, golden_token in pairs:
        key = token.model, golden_token.model
        if key not in plans:
            opened = [
                OpenedToken(dump, token_of, statistics=request.statistics)
                for dump, token_of in ((target, token), (golden, golden_token))
            ]
            plans[key] = make_plan(opened[0], opened[1], table)
            notes += [note for note in plans[key].notes if note not in notes]
        cards = [
            tuple(card + side_token.folder[len(device.folder) :] for card in folders)
            for side_token, device, folders in (
                (token, devices.target, devices.target_cards), (golden_token, devices.golden, devices.golden_cards),
            )
        ]  # fmt: skip
        jobs.append(
            TokenJob(
                token=token.label,
                device=devices.target.name,
                target=TokenFolder(target.kind, target.root, token.folder, cards[0]),
                golden=TokenFolder(golden.kind, golden.root, golden_token.folder, cards[1]),
                plan=plans[key],
                request=request,
            )
        )
    return jobs, notes, lost


def _run(
    jobs: list[TokenJob], request: LlmRequest, advance: Callable[[str, int, int], None], kept: Notes | None
) -> tuple[list[TokenResult | TwinProbeError], list[str]]:
    rows = sum(len(job.plan.links) + 2 * len(job.plan.same_names) for job in jobs)
    size = _bytes(jobs[0])
    pays = rows >= _MANY_ROWS or size * len(jobs) >= _MANY_BYTES
    asked = request.engine.workers
    workers = asked or (cores() if pays else 1)
    # Few large tokens gain more from threads than from processes.
    threads = workers if len(jobs) < workers and not request.engine.wanted else 1
    workers = 1 if threads > 1 else workers
    ahead = 2 * size * len(jobs) + rows * _BYTES_OF_A_ROW
    jobs = [replace(job, threads=threads, bytes_ahead=ahead) for job in jobs]
    results: dict[int, TokenResult | TwinProbeError] = {}
    options = replace(request.engine, workers=workers if request.engine.engine == AUTO else asked)
    is_long = rows >= _LONG * _MANY_ROWS or size * len(jobs) >= _LONG * _MANY_BYTES or request.engine.wanted
    session, resumed = kept.begin(is_long=is_long) if kept is not None else (None, [])
    if session is not None:  # notes of each token, so that the command can be resumed
        plans = {id(job.plan): job.plan for job in jobs}
        marks = {key: hashlib.sha256(repr(plan).encode("utf-8", "surrogateescape")) for key, plan in plans.items()}
        jobs = [replace(job, session=session, plan_mark=marks[id(job.plan)].hexdigest()) for job in jobs]
    for index, result in spread(compare_or_recall, jobs, options=options, name=lambda job: f"token {job.token}"):
        results[index] = result
        advance("tokens", len(results), len(jobs))
    return [results[index] for index in range(len(jobs))], resumed


def _bytes(job: TokenJob) -> int:
    """About how much one token holds on my side."""
    total, token = 0, replace(job.target)  # what is listed here does not travel with the job
    for file in (file for files in token.files.values() for file in files):
        with suppress(OSError):
            total += (token.root / token.name(file)).lstat().st_size
    return total


def joined(results: list[TokenResult], mode: str, target: RunInfo, golden: RunInfo, notes: list[str]) -> LlmComparison:
    """One table and one summary of all tokens; the sides are told how many rows they have."""
    table = numbered([result.table for result in results])
    matched, target_only, golden_only, unread = (
        sum(getattr(result.counts, name) for result in results)
        for name in ("matched", "target_only", "golden_only", "unread")
    )
    sides = replace(target, rows=matched + target_only), replace(golden, rows=matched + golden_only)
    return LlmComparison(table, summary_of(mode, sides, table, matched, notes, unread, first=_first(results)))


def summary_of(
    mode: str,
    sides: tuple[RunInfo, RunInfo],
    table: pl.DataFrame,
    matched: int,
    notes: list[str],
    unread: int,
    first: Divergence | None = None,
) -> Summary:
    """The counts of a comparison."""
    verdicts = {name: int((table["Result"] == name).sum()) for name in (PASS, WARNING, ERROR)}
    only = sides[0].rows - matched, sides[1].rows - matched
    return Summary(mode, *sides, table.height, matched, *only, verdicts, first, notes, unread=unread)


def _first(results: list[TokenResult]) -> Divergence | None:
    """The first divergence of the first token that has one, with its row in the whole table."""
    before = unread = 0
    for result in results:
        first = result.counts.first
        if first is not None:
            doubt = f"; {unread_rows(unread, ' of earlier tokens')}: the difference may begin earlier" if unread else ""
            return replace(first, order=before + first.order, sentence=first.sentence + doubt)
        before += result.table.height
        unread += result.counts.unread
    return None


# A long comparison of inference dumps keeps its finished tokens, so that an interrupted one can go on.


class Notes(AbstractContextManager["Notes"]):
    """The notes of one command: begun when its work turns out to be long, ended when its report is there."""

    def __init__(self, request: LlmRequest, output: Path, timestamp: str, *, resume: bool) -> None:
        paths = (request.target, request.golden, request.mapping)
        identity = repr(([str(path) for path in paths], request.level, request.statistics, request.algorithms,
                         request.thresholds))  # fmt: skip
        self._command = Command("llm compare", identity, output, timestamp, resume)
        self._open = ExitStack()
        self._session: Session | None = None
        self.timestamp: str | None = None
        self.complete = True

    def begin(self, *, is_long: bool) -> tuple[Session | None, list[str]]:
        """Where finished tokens are kept, and what to tell the user; None for work that is quickly done again."""
        if not (is_long or self._command.resume):
            return None, []
        prepare_folder(self._command.output)
        self.timestamp, self._session, resumed = self._open.enter_context(session_of(self._command, keeps=True))
        return self._session, resumed

    def end(self) -> None:
        """The report is written; notes are needed only where a token is missing in it."""
        if self._session is not None and self.complete:
            self._session.end(keep=False)

    def __exit__(self, *_problem: object) -> None:
        self._open.close()


@dataclass(frozen=True)
class _Kept:
    """A token's result without its rows, which lie in a file."""

    file: Path
    counts: TokenCounts


def compare_or_recall(job: TokenJob) -> TokenResult:
    """Compare one token, or take what an interrupted command has kept of it (perhaps in a worker process)."""
    if job.session is None:
        return compare_token(job)
    made: list[TokenResult] = []

    def work(folder: Path) -> tuple[_Kept, list[Path]]:
        result = compare_token(job)
        made.append(result)
        file = folder / "rows.arrow"
        with replacing(file) as temporary, temporary.open("wb") as rows:
            result.table.write_ipc(rows)
        return _Kept(file, result.counts), [file]

    kept = once_in_folder(job.session, f"{job.device} token {job.token}", _mark(job, job.session.stamp), _Kept, work)
    if made:
        return made[0]
    with local_copy(kept.file) as copy:
        return TokenResult(pl.read_ipc(copy), kept.counts)


def _mark(job: TokenJob, stamp: str) -> str:
    """What decides a token's result: its files on both sides, the plan, the options, own metrics, our version."""
    request = job.request
    asked = (__version__, job.plan_mark, job.token, job.device, job.target, job.golden, request.level,
             request.statistics, request.thresholds, request.algorithms, request.timeout)  # fmt: skip
    own = whole_fingerprint([place(name.rpartition(":")[0]) for name in request.algorithms])
    sides = [
        " ".join(_folder_mark(stamp, side.root / folder) for folder in dict.fromkeys((side.folder, *side.cards)))
        for side in (job.target, job.golden)
    ]
    return hashlib.sha256(repr((asked, own, sides)).encode()).hexdigest()


@lru_cache(maxsize=4096)
def _folder_mark(_command: str, folder: Path) -> str:
    """Cards look into each other's folders, where they share a tensor: read once per command and process."""
    return files_fingerprint(folder, files_below(folder))


REPORT, STATISTICS = "ait_cmp_report", "statstics_cmp_report"  # the second is spelled as people know it


def utc_timestamp() -> str:
    """The time in the names of these reports."""
    return time.strftime("%Y%m%d%H%M%S", time.gmtime())


def write_llm_reports(
    result: LlmComparison, out: Path, formats: Sequence[str], *, stem: str = REPORT, timestamp: str | None = None
) -> Summary:
    """Write the report in every format asked for; the summary then names the files."""
    wanted = check_formats(formats)
    plain = [name for name in wanted if name != "html"]
    prepare_folder(out)
    with nullcontext(timestamp) if timestamp else own_timestamp(out, utc_timestamp()) as stamp:
        name = f"{stem}_{stamp}"
        files = write_reports(result.table, result.summary, out, name, plain) if plain else []
        if "html" in wanted:
            files += write_reports(_for_the_page(result.table), result.summary, out, name, ["html"])
    return replace(result.summary, files=[str(path) for path in files])


def _for_the_page(table: pl.DataFrame) -> pl.DataFrame:
    """The page knows columns by the names of the other reports, and wants texts in all but the last."""
    from twinprobe._report.tables import as_texts

    table = table.rename({old: new for old, new in SHARED_NAMES.items() if old in table.columns})
    texts = [as_texts(table[name]).fill_null("") for name in table.columns if name != "Relative Error"]
    return pl.DataFrame([*texts, table["Relative Error"]])


def compare_manual(
    request: LlmRequest, metadata: Path, advance: Callable[[str, int, int], None] | None = None
) -> LlmComparison:
    """Compare every pair that the metadata names."""
    layout = find_layout(request.target)
    groups = [list(group) for _, group in groupby(read_manual(metadata), key=lambda pair: pair.token)]
    results = []
    for group in groups:
        results.append(_token(request, metadata.parent, layout, group))
        if advance is not None:
            advance("tokens", len(results), len(groups))
    if not any(result.counts.matched > result.counts.unread for result in results):
        reason = results[0].table["cmp_fail_reason"][0]
        raise NothingToCompare(f"none of the pairs can be read: {reason}", where=metadata)
    target = RunInfo(str(request.target), layout.kind, "tensor", "", 0, 0)
    return joined(results, "llm", target, RunInfo(str(request.golden), METADATA, "tensor", "", 0, 0), [])


def _token(request: LlmRequest, folder: Path, layout: Layout, pairs: list[ManualPair]) -> TokenResult:
    calls = [Call(pair.data_id, pair.data_id, "") for pair in pairs]
    job = TokenJob(
        token=pairs[0].token,
        device=layout.device.name if layout.device else "",
        target=TokenFolder(METADATA, layout.root, ""),
        golden=TokenFolder(METADATA, folder, ""),
        plan=Plan(calls, {}, [], [], across=True),
        request=request,
    )
    # Names that somebody wrote, not ones from a listing: they are checked before they are followed.
    target, golden = (
        TokenFiles(calls, [(at, TensorFile(OUTPUT, (0,), file, linked=True)) for at, file in enumerate(files)])
        for files in ([_file(pair, layout) for pair in pairs], [pair.golden for pair in pairs])
    )
    return result_of(job, Rows(target, golden, [Row(((at,), (at,)), METADATA) for at in range(len(pairs))]))


def _file(pair: ManualPair, layout: Layout) -> str:
    """My file under the dump's root: named from the root, the device or the token on, or where it once lay."""
    name = pair.target.replace("\\", "/").removeprefix("./")
    parts = name.split("/")
    moved = "/".join(parts[next((index for index, part in enumerate(parts) if part in STORES), 0) :])
    path = PurePath(name)
    places = [path.relative_to(layout.root).as_posix() if path.is_relative_to(layout.root) else moved]
    for device in layout.chosen:
        places += [f"{device.folder}/{pair.token}/{name}", f"{device.folder}/{name}"]
        if layout.token is not None:
            places.append(f"{device.folder}/{layout.token}/{name}")
    sound = [place for place in places if not place.startswith("/") and ".." not in place.split("/")]
    return next((place for place in sound if (layout.root / place).exists()), places[0])
