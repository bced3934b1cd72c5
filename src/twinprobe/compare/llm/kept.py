"""A long comparison of inference dumps keeps its finished tokens, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from twinprobe import __version__
from twinprobe.compare.llm.token import TokenCounts, TokenJob, TokenResult, Where, compare_token
from twinprobe.compare.resume import Command, once_in_folder, session_of
from twinprobe.report.atomic import prepare_folder, replacing
from twinprobe.runs.fingerprint import files_below, files_fingerprint, whole_fingerprint
from twinprobe.runs.places import place
from twinprobe.runs.remote.local_copy import local_copy
from twinprobe.scale.ledger import Session

if TYPE_CHECKING:
    from twinprobe.compare.llm.job import LlmRequest


class Notes:
    """The notes of one command: begun when its work turns out to be long, ended when its report is there."""

    def __init__(self, request: LlmRequest, output: Path, timestamp: str, *, resume: bool) -> None:
        told = (request.my, request.golden, request.mapping)
        identity = repr(([str(path) for path in told], request.level, request.algorithms, request.thresholds))
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
        self.timestamp, self._session, told = self._open.enter_context(session_of(self._command, keeps=True))
        return self._session, told

    def end(self) -> None:
        """The report is written; notes are needed only where a token is missing in it."""
        if self._session is not None and self.complete:
            self._session.end(keep=False)

    def __enter__(self) -> Notes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._open.close()


@dataclass(frozen=True, slots=True)
class KeptToken:
    """A token to compare, unless an interrupted command has; ``plan_mark`` stands for the plan it shares."""

    job: TokenJob
    session: Session
    plan_mark: str


@dataclass(frozen=True)
class _Found:
    """A token's result without its rows, which lie in a file."""

    file: Path
    counts: TokenCounts


def kept_tokens(jobs: list[TokenJob], session: Session) -> list[KeptToken]:
    """The same jobs, with notes."""
    marks: dict[int, str] = {}
    for job in jobs:
        if id(job.plan) not in marks:
            marks[id(job.plan)] = hashlib.sha256(repr(job.plan).encode("utf-8", "surrogateescape")).hexdigest()
    return [KeptToken(job, session, marks[id(job.plan)]) for job in jobs]


def compare_kept(token: KeptToken) -> TokenResult:
    """Compare one token, or take what was kept of it (perhaps in a worker process)."""
    job, made = token.job, list[TokenResult]()

    def work(folder: Path) -> tuple[_Found, list[Path]]:
        result = compare_token(job)
        made.append(result)
        file = folder / "rows.arrow"
        with replacing(file) as temporary, temporary.open("wb") as rows:
            result.table.write_ipc(rows)
        return _Found(file, result.counts), [file]

    found = once_in_folder(token.session, f"{job.device} token {job.token}", _mark(token), _Found, work)
    return made[0] if made else _read(found)


def _read(found: _Found) -> TokenResult:
    import polars as pl

    with local_copy(found.file) as copy:
        table = pl.read_ipc(copy)
    return TokenResult(table, found.counts)


def _mark(token: KeptToken) -> str:
    """What decides a token's result: its files on both sides, the plan, the options, own metrics, our version."""
    job = token.job
    told = (__version__, token.plan_mark, job.token, job.device, job.my, job.golden, job.level, job.limits)
    own = whole_fingerprint([place(name.rpartition(":")[0]) for name in job.algorithms])
    sides = [_side_mark(token.session.stamp, side) for side in (job.my, job.golden)]
    return hashlib.sha256(repr((told, job.algorithms, job.timeout, own, sides)).encode()).hexdigest()


def _side_mark(command: str, side: Where) -> str:
    folders = [side.root / folder for folder in dict.fromkeys((side.folder, *side.cards))]
    return " ".join(_folder_mark(command, folder) for folder in folders)


@lru_cache(maxsize=4096)
def _folder_mark(_command: str, folder: Path) -> str:
    """Cards look into each other's folders, where they share a tensor: read once per command and process."""
    return files_fingerprint(folder, files_below(folder))
