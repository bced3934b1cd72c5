"""One long command's notes, whichever command it is: what is done is recalled, what is new is kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from twinprobe.report.claims import own_timestamp
from twinprobe.runs.places import place
from twinprobe.scale.ledger import Session, earlier_session, new_session

Result = TypeVar("Result")


@dataclass(frozen=True)
class Command:
    """What makes two commands the same one: ``identity`` tells all that decides the results, but not the inputs."""

    kind: str
    identity: str
    output: Path
    timestamp: str
    resume: bool

    def digest(self) -> str:
        """The command in the notes."""
        return hashlib.sha256(f"{self.kind} {self.identity}".encode("utf-8", "surrogateescape")).hexdigest()


@contextmanager
def session_of(command: Command, *, keeps: bool) -> Iterator[tuple[str, Session | None, list[str]]]:
    """The command's timestamp, its notes (new, or those of the command that is resumed), and what to tell the user."""
    notes: list[str] = []
    if command.resume:
        with earlier_session(command.output, command.digest()) as session:
            if session is not None:
                yield session.stamp, session, notes
                return
        notes.append(f"{command.output}: no such command was interrupted here, so there is nothing to resume")
    with own_timestamp(command.output, command.timestamp) as stamp:
        if not keeps:
            yield stamp, None, notes
            return
        with new_session(command.output, stamp, command.digest()) as session:
            yield stamp, session, notes


def once(
    session: Session | None,
    name: str,
    mark: Callable[[], str],
    kind: type[Result],
    work: Callable[[], tuple[Result, list[Path]]],
) -> Result:
    """Do a piece of work, or take what an interrupted command has kept of it."""
    if session is None:
        return work()[0]
    fingerprint = mark()
    kept = session.recall(name, fingerprint)
    if kept is not None:
        return _revived(kind, kept)
    result, files = work()
    keep(session, name, fingerprint, result, files)
    return result


def once_in_folder(
    session: Session, name: str, fingerprint: str, kind: type[Result], work: Callable[[Path], tuple[Result, list[Path]]]
) -> Result:
    """The same for work whose files are of use only to the command itself: they lie in the folder it is given."""
    kept = session.recall(name, fingerprint)
    if kept is not None:
        return _revived(kind, kept)
    result, files = work(session.work_folder(name, fingerprint))
    keep(session, name, fingerprint, result, files)
    return result


def keep(session: Session, name: str, fingerprint: str, result: Any, files: list[Path]) -> None:
    """Note a finished piece: a dataclass of plain values."""
    session.keep(name, fingerprint, json.loads(json.dumps(asdict(result), default=_plain)), files)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set | frozenset) else str(value)


def _revived(kind: type[Result], kept: Any) -> Result:
    import msgspec

    return msgspec.convert(kept, type=kind, strict=False, dec_hook=_revived_value)


def _revived_value(wanted: Any, value: Any) -> Any:
    return place(value) if wanted is Path else wanted(value)
