"""Checksums compared with an earlier run while this one goes on; real tensors are kept for the first differences."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from twinprobe._record.entries import Entry, Note, Row, logger, notes_of
from twinprobe._record.writer import size_of
from twinprobe.errors import BadInput

_HELD_BYTES = 1 << 30
_FILE_PART = {"input_args": "input", "input_kwargs": "kwargs"}  # the key in dump.json -> its word in file names

Digest = Callable[[Any], Any]


class BenchCheck:
    """Looks at each finished entry on the training thread. ``digest`` gives the checksum of a host copy.

    Copies of tensors are held for a while, oldest dropped first: an enclosing module ends after what is inside it and
    still needs its inputs.
    """

    def __init__(self, folder: Path, wanted: int, digest: Digest, on_enough: Callable[[], None]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._digest = digest
        self._on_enough = on_enough
        self._known: dict[str, Any] = {}
        self._held: deque[Row] = deque()
        self._bytes = 0
        self.differences: list[str] = []

    @property
    def enough(self) -> bool:
        """Whether as many differences as wanted have been kept."""
        return 0 <= self._wanted <= len(self.differences)

    def open_step(self, step: int, own: str) -> None:
        """Read the checksums of this step and rank; BadInput when the earlier dump has none."""
        import msgspec

        from twinprobe._runs.dump_json import read_entries

        self._known = {}
        dumps = sorted((self._folder / f"step{step}").glob("*/dump.json"))
        # The earlier dump of the same rank, or of the only process that there was.
        files = [file for file in dumps if file.parent.name == own] or dumps
        if len(files) != 1:
            logger.warning("%s has no step %d for %s: nothing is compared in this step", self._folder, step, own)
            return
        (file,) = files
        data = {
            name: msgspec.json.decode(entry) if isinstance(entry, msgspec.Raw) else entry
            for name, entry in read_entries(file)
        }
        if next(_walk(data, ""), None) is None:
            raise BadInput("holds no checksums", where=file, hint="record it with summary_mode md5")
        self._known = data

    def check(self, entry: Entry) -> None:
        """Keep the tensors of this entry if a checksum differs, otherwise let them go."""
        notes = list(notes_of(entry))
        differing: list[str] = []
        if not self.enough:
            earlier = dict(_checksums(self._known.get(entry.name), entry))
            differing = [name for note, name in notes if name in earlier and earlier[name] != self._checksum(note)]
        if not differing:
            for note, _ in notes:
                note.save = False
                self._hold(note.row)
            return
        self.differences.append(differing[0])
        logger.info("%s differs from %s", differing[0], self._folder)
        chosen = {id(note.row) for note, _ in notes}
        self._held = deque(row for row in self._held if id(row) not in chosen)
        if self.enough:
            for row in self._held:
                row.payload = None
            self._held.clear()
            self._on_enough()

    def summary(self) -> str:
        """One line for the end of the run."""
        if not self.differences:
            return f"no checksum differs from {self._folder}"
        return f"{len(self.differences)} differing calls were kept; the first: {self.differences[0]}"

    def _checksum(self, note: Note) -> Any:
        row = note.row
        if row is None:
            return None
        if row.digest is None and row.payload is not None:
            row.digest = self._digest(row.payload)  # a device's own checksum comes only when the step ends
        return row.digest

    def _hold(self, row: Row | None) -> None:
        if row is None or row.payload is None:
            return
        self._held.append(row)
        self._bytes += size_of(row.payload)
        while self._bytes > _HELD_BYTES and self._held:
            oldest = self._held.popleft()
            self._bytes -= size_of(oldest.payload)
            oldest.payload = None


def _checksums(value: Any, entry: Entry) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, dict):
        return
    for key, part in value.items():
        inner = part[0] if entry.boxed and isinstance(part, list) and part else part
        yield from _walk(inner, f"{entry.name}.{_FILE_PART.get(key, key)}")


def _walk(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str) and "md5" in value:
            yield name, value["md5"]
        else:
            for key, item in value.items():
                yield from _walk(item, f"{name}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _walk(item, f"{name}.{index}")
