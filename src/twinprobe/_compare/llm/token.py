"""One token on one device, compared: rows, measurements, verdicts, and its part of the report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from twinprobe._compare.llm.custom import Algorithms
from twinprobe._compare.llm.measured import Measured, MeasuredRows, Measuring, measure_rows
from twinprobe._compare.llm.rows import Plan, Row, Rows, rows_of
from twinprobe._compare.llm.table import first_of, judge_rows, token_table
from twinprobe._judge.origin import Divergence
from twinprobe._judge.verdicts import Judged, Thresholds
from twinprobe._measure.engine import engine_of
from twinprobe._measure.llm_metrics import SHAPE
from twinprobe._runs.llm.dump import WARMUP, Device, Layout, LlmDump, Token
from twinprobe._runs.llm.files import TokenFolder
from twinprobe._scale.ledger import Session
from twinprobe.errors import NothingToCompare, TwinProbeError

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True, slots=True)
class TokenJob:
    """What a worker is asked to do."""

    token: str
    device: str
    target: TokenFolder
    golden: TokenFolder
    plan: Plan
    level: str | None = None
    limits: Thresholds = field(default_factory=Thresholds)
    algorithms: tuple[str, ...] = ()
    timeout: float = 60.0
    threads: int = 1
    bytes_ahead: int = 0
    """About how much all jobs together have to read, on both sides; 0 if nobody knows."""
    session: Session | None = None
    """Where finished tokens are kept, if the command can be resumed."""
    plan_mark: str = ""
    """Stands for the plan, which many tokens share, in what is kept."""


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """What the summary wants to know of a token."""

    matched: int
    misshapen: int
    """Matched rows whose sizes differ."""
    unread: int
    """Rows with a file that cannot be read."""
    target_only: int
    golden_only: int
    first: Divergence | None


@dataclass(slots=True)
class TokenResult:
    """A token's rows in the report, and the counts for the summary."""

    table: pl.DataFrame
    counts: TokenCounts


def compare_token(job: TokenJob) -> TokenResult:
    """Compare one token. Never raises anything that another process could not read."""
    try:
        return result_of(job, rows_of(job.plan, job.target.files, job.golden.files, job.level))
    except TwinProbeError:
        raise
    except Exception as error:  # a defect: it must not cost more than this token
        raise TwinProbeError(f"token {job.token} could not be compared: {type(error).__name__}: {error}") from error


def result_of(job: TokenJob, rows: Rows) -> TokenResult:
    """Measure and judge the rows of a token."""
    algorithms = Algorithms(job.algorithms, timeout=job.timeout) if job.algorithms else None
    try:
        # Equal work gives equal digits, on however many workers: the engine goes by all of it.
        engine = engine_of(job.bytes_ahead) if job.bytes_ahead else None
        measured = measure_rows(rows, job.target, job.golden, Measuring(engine, algorithms, job.threads))
    finally:
        if algorithms is not None:
            algorithms.close()
    judged = judge_rows(job.target.root / job.target.folder, job.plan, rows, measured, job.limits)
    names = algorithms.names if algorithms else ()
    table = token_table(job.token, job.device, (job.target.base, job.golden.base), rows, measured, judged, names)
    counts = TokenCounts(
        matched=sum(bool(row.target and row.golden) for row in rows),
        misshapen=sum(reason == SHAPE for reason in measured.reasons.values()),
        unread=len(measured.faults),
        target_only=sum(not row.golden for row in rows),
        golden_only=sum(not row.target for row in rows),
        first=_first(job, rows, measured, judged),
    )
    return TokenResult(table, counts)


def _first(job: TokenJob, rows: Sequence[Row], measured: MeasuredRows, judged: Judged) -> Divergence | None:
    index = judged.first_row
    if index is None:
        return None
    row, found = rows[index], measured[index]
    return replace(
        first_of(job.token, job.plan, row, index, judged),
        row=job.target.names(row.target), golden_row=job.golden.names(row.golden),
        target_values=_values(found, 0), golden_values=_values(found, 1),
    )  # fmt: skip


def _values(found: Measured, side: int) -> dict[str, str]:
    values = {"dtype": found.dtypes[side], "shape": found.shapes[side]}
    if found.metrics is not None:
        basics = found.metrics.golden if side else found.metrics.target
        values |= {name: str(getattr(basics, name)) for name in ("max", "min", "mean")}
    return values


@dataclass(frozen=True, slots=True)
class DevicePair:
    """Two devices, and the folders of all cards where those of one side have to be joined."""

    target: Device
    golden: Device
    target_cards: tuple[str, ...] = ()
    golden_cards: tuple[str, ...] = ()


def pair_all(target: LlmDump, golden: LlmDump) -> tuple[list[tuple[DevicePair, Token, Token]], list[str], list[str]]:
    """All tokens to compare, device by device; notes; and what was asked for but only one side has."""
    devices, notes = pair_devices(target.layout, golden.layout)
    pairs: list[tuple[DevicePair, Token, Token]] = []
    lost: list[str] = []
    nothing: NothingToCompare | None = None
    for devices_pair in devices:
        try:
            tokens, remarks, left = pair_tokens(target, golden, devices_pair)
        except NothingToCompare as error:
            nothing = error
            lost.append(f"{devices_pair.target.name}: {error}")
            continue
        pairs += [(devices_pair, *both) for both in tokens]
        notes += [note for note in remarks if note not in notes]
        lost += [loss for loss in left if loss not in lost]
    if not pairs and nothing is not None:
        raise nothing
    return pairs, notes, lost


def pair_devices(target: Layout, golden: Layout) -> tuple[list[DevicePair], list[str]]:
    """As many devices on both sides: one by one. Otherwise the first of each, with the cards of a side joined."""
    notes: list[str] = []
    cards = [_one_per_number(layout, notes) for layout in (target, golden)]
    chosen = [
        [layout.device] if layout.device else found for layout, found in zip((target, golden), cards, strict=True)
    ]
    same = len(cards[0]) == len(cards[1])
    folders = [() if same or len(found) == 1 else tuple(card.folder for card in found) for found in cards]
    if len(chosen[0]) != len(chosen[1]):
        if same:  # one side names a device, the other does not: its counterpart has the same place
            return [_counterpart(target, golden, cards)], notes
        chosen = [devices[:1] for devices in chosen]
    pairs = [
        DevicePair(device, partner, folders[0], folders[1])
        for device, partner in zip(chosen[0], chosen[1], strict=True)
    ]
    for side, devices in zip(("my", "the golden"), folders, strict=True):
        if devices:
            notes.append(f"the tensors of {side} dump's {len(devices)} cards are joined where only all of them fit")
    return pairs, notes


def _counterpart(target: Layout, golden: Layout, cards: list[list[Device]]) -> DevicePair:
    side = 0 if target.device is not None else 1
    named = target.device or golden.device
    assert named is not None
    index = next((index for index, card in enumerate(cards[side]) if card.number == named.number), 0)
    other = cards[1 - side][index]
    return DevicePair(named, other) if side == 0 else DevicePair(other, named)


def _one_per_number(layout: Layout, notes: list[str]) -> list[Device]:
    """A folder may hold several runs: one process per device counts, the named one or the first."""
    found: dict[int, Device] = {}
    for device in layout.devices:
        if layout.device is not None and device.number == layout.device.number:
            found[device.number] = layout.device
        elif device.number not in found:
            found[device.number] = device
    left = [device.name for device in layout.devices if found[device.number] is not device]
    if left and layout.device is None:
        notes.append(f"{layout.root}: several processes used one device; left out: {', '.join(left[:6])}")
    return [found[number] for number in sorted(found)]


def pair_tokens(
    target: LlmDump, golden: LlmDump, pair: DevicePair
) -> tuple[list[tuple[Token, Token]], list[str], list[str]]:
    """Tokens of equal number (where both paths name one token, those two); notes; and what only one side has."""
    target_tokens, golden_tokens = target.tokens(pair.target), golden.tokens(pair.golden)
    by_label = {token.label: token for token in golden_tokens}
    common = [(token, by_label[token.label]) for token in target_tokens if token.label in by_label]
    if common:
        labels = {token.label for token, _ in common}
        lost = []
        for who, tokens in (("my", target_tokens), ("the golden", golden_tokens)):
            rest = [token for token in tokens if token.label not in labels and token.label != WARMUP]
            if rest:
                lost.append(f"only {who} dump has the tokens {_listed(rest)}")
        return common, [], lost
    named = target.layout.token is not None and golden.layout.token is not None
    if named and target_tokens and golden_tokens:
        token, partner = target_tokens[0], golden_tokens[0]
        note = f"token {token.label} of my dump is compared with token {partner.label} of the golden one"
        return [(token, partner)], [note], []
    raise NothingToCompare(
        f"no token in common: my dump has {_listed(target_tokens)}, the golden one {_listed(golden_tokens)}",
        where=target.layout.path,
        hint="name one token's folder on each side to compare them whatever their numbers are",
    )


def _listed(tokens: Sequence[Token]) -> str:
    labels = [token.label for token in tokens]
    return ", ".join(labels[:8]) + (" ..." if len(labels) > 8 else "") if labels else "none"
