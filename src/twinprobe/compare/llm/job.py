"""Two inference dumps in, a report and a summary out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinprobe.align.ops.table import OperatorTable, read_table
from twinprobe.compare.llm.custom import Algorithms
from twinprobe.compare.llm.plan import Plan, make_plan
from twinprobe.compare.llm.token import TokenJob, TokenResult, Where, compare_token
from twinprobe.compare.llm.tokens import DevicePair, pair_all
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError
from twinprobe.judge.summary import Divergence, Side, Summary, unread_rows
from twinprobe.judge.thresholds import Thresholds
from twinprobe.runs.llm.dump import LlmDump, Token, open_llm_dump
from twinprobe.runs.llm.files import under
from twinprobe.scale.engine import AUTO, EngineOptions, cores, spread

if TYPE_CHECKING:
    import polars as pl

    from twinprobe.compare.llm.kept import Notes

# Rows or bytes from which more than one process, or thread for few large tokens, is worth starting.
_MANY_ROWS = 6000
_MANY_BYTES = 256 << 20
# So many times that much takes long enough for notes of what is finished.
_LONG = 100
# What numpy's calls for a row cost on top, in bytes that it could have measured instead.
_BYTES_OF_A_ROW = 48 << 10


@dataclass(frozen=True)
class LlmRequest:
    """What the user asked for."""

    my: Path
    golden: Path
    level: str | None = None
    mapping: Path | None = None
    algorithms: tuple[str, ...] = ()
    thresholds: Thresholds = field(default_factory=Thresholds)
    workers: int | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    timeout: float = 60.0


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
    _try_algorithms(request)
    my, golden = open_llm_dump(request.my), open_llm_dump(request.golden)
    jobs, notes, lost = _jobs(request, my, golden, table)
    results, told = _run(jobs, request, advance or _silent, kept)
    notes += told
    failures = [
        f"token {job.token}: {one}" for job, one in zip(jobs, results, strict=True) if isinstance(one, TwinProbeError)
    ]
    lost += failures
    done = [one for one in results if isinstance(one, TokenResult)]
    if kept is not None:
        kept.complete = not failures
    if not done:
        raise BadInput(f"nothing could be compared: {failures[0]}", where=request.my)
    matched, misshapen = (sum(getattr(one.counts, name) for one in done) for name in ("matched", "misshapen"))
    if matched == misshapen:
        raise NothingToCompare(
            f"no tensor has a counterpart of its size in {request.golden}", where=request.my,
            hint="are both dumps of the same model? an op_mapping_file.json can say which operators belong together",
        )  # fmt: skip
    if 2 * misshapen > matched:
        notes.append(f"{misshapen} of {matched} pairs differ in size: are both dumps of the same model?")
    sides = _side(my, request.my), _side(golden, request.golden)
    comparison = joined(done, sides, [*table.notes, *my.notes, *golden.notes, *notes, *lost])
    return replace(comparison, lost=lost)


def _try_algorithms(request: LlmRequest) -> None:
    if not request.algorithms:
        return
    algorithms = Algorithms(request.algorithms, timeout=request.timeout)
    try:
        algorithms.start()
    finally:
        algorithms.close()


def _jobs(
    request: LlmRequest, my: LlmDump, golden: LlmDump, table: OperatorTable
) -> tuple[list[TokenJob], list[str], list[str]]:
    plans: dict[tuple[int, int], Plan] = {}
    jobs = []
    pairs, notes, lost = pair_all(my, golden)
    for devices, mine, theirs in pairs:
        key = mine.model, theirs.model
        if key not in plans:
            plans[key] = make_plan(my, golden, (mine, theirs), table)
            notes += [note for note in plans[key].notes if note not in notes]
        jobs.append(_job(request, my, golden, devices, (mine, theirs), plans[key]))
    return jobs, notes, lost


def _job(
    request: LlmRequest, my: LlmDump, golden: LlmDump, pair: DevicePair, tokens: tuple[Token, Token], plan: Plan
) -> TokenJob:
    mine, theirs = tokens
    return TokenJob(
        token=mine.label,
        device=pair.label,
        my=Where(my.kind, my.root, mine.folder, _cards(mine, pair.my.folder, pair.my_cards)),
        golden=Where(golden.kind, golden.root, theirs.folder, _cards(theirs, pair.golden.folder, pair.golden_cards)),
        plan=plan,
        level=request.level,
        limits=request.thresholds,
        algorithms=request.algorithms,
        timeout=request.timeout,
    )


def _cards(token: Token, device: str, cards: Sequence[str]) -> tuple[str, ...]:
    return tuple(card + token.folder[len(device) :] for card in cards)


def _run(
    jobs: list[TokenJob], request: LlmRequest, advance: Callable[[str, int, int], None], kept: Notes | None
) -> tuple[list[TokenResult | TwinProbeError], list[str]]:
    rows = sum(len(job.plan.links) + 2 * len(job.plan.same_names) for job in jobs)
    size = _bytes(jobs[0])
    pays = rows >= _MANY_ROWS or size * len(jobs) >= _MANY_BYTES
    asked = request.engine.workers or request.workers
    workers = asked or (cores() if pays else 1)
    # Few large tokens gain more from threads than from processes.
    threads = workers if len(jobs) < workers and not request.engine.wanted else 1
    workers = 1 if threads > 1 else workers
    ahead = 2 * size * len(jobs) + rows * _BYTES_OF_A_ROW
    jobs = [replace(job, threads=threads, bytes_ahead=ahead) for job in jobs]
    results: dict[int, TokenResult | TwinProbeError] = {}
    options = replace(request.engine, workers=workers if request.engine.engine == AUTO else asked)
    is_long = rows >= _LONG * _MANY_ROWS or size * len(jobs) >= _LONG * _MANY_BYTES or request.engine.wanted
    work, told = _noted(jobs, kept, is_long=is_long)
    for at, result in spread(*work, options=options, name=_name):
        results[at] = result
        advance("tokens", len(results), len(jobs))
    return [results[at] for at in range(len(jobs))], told


def _noted(
    jobs: list[TokenJob], kept: Notes | None, *, is_long: bool
) -> tuple[tuple[Callable[[Any], TokenResult], Sequence[Any]], list[str]]:
    """What to do with each job: with notes of it where the work is long, so that it can be resumed."""
    session, told = kept.begin(is_long=is_long) if kept is not None else (None, [])
    if session is None:
        return (compare_token, jobs), told
    from twinprobe.compare.llm.kept import compare_kept, kept_tokens

    return (compare_kept, kept_tokens(jobs, session)), told


def _name(work: Any) -> str:
    return f"token {getattr(work, 'job', work).token}"


def _bytes(job: TokenJob) -> int:
    """About how much one token holds on my side."""
    total = 0
    for files in job.my.store().files.values():
        for file in files:
            try:
                total += (job.my.root / under(job.my.folder, file)).lstat().st_size
            except OSError:
                continue
    return total


def joined(results: list[TokenResult], sides: tuple[Side, Side], notes: list[str]) -> LlmComparison:
    """One table and one summary of all tokens; the sides are told how many rows they have."""
    from twinprobe.compare.llm.table import numbered

    table = numbered([result.table for result in results])
    matched, my_only, golden_only = (
        sum(getattr(result.counts, name) for result in results) for name in ("matched", "my_only", "golden_only")
    )
    summary = Summary(
        mode="llm",
        target=replace(sides[0], rows=matched + my_only),
        golden=replace(sides[1], rows=matched + golden_only),
        rows=table.height,
        matched=matched,
        target_only=my_only,
        golden_only=golden_only,
        verdicts={name: int((table["Result"] == name).sum()) for name in ("pass", "warning", "error")},
        first=_first(results),
        notes=notes,
        unread=sum(result.counts.unread for result in results),
    )
    return LlmComparison(table, summary)


def _first(results: list[TokenResult]) -> Divergence | None:
    """The first divergence of the first token that has one, with its row in the whole table."""
    before = unread = 0
    for result in results:
        first = result.counts.first
        if first is not None:
            told = f"; {unread_rows(unread, ' of earlier tokens')}: the difference may begin earlier" if unread else ""
            return replace(first, order=before + first.order, sentence=first.sentence + told)
        before += result.table.height
        unread += result.counts.unread
    return None


def _side(dump: LlmDump, path: Path) -> Side:
    operators = sum(1 for model in dump.models for _ in model.walk())
    return Side(str(path), dump.kind, "tensor", "", operators, 0)


def _silent(_what: str, _done: int, _total: int) -> None:
    """No progress is shown."""
