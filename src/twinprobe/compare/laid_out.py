"""Loading pairs whose sides are laid out differently: tensors to turn, and several that are one on the other side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from twinprobe.align.turns import Axes
from twinprobe.compare.turned_rows import from_text
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.read_ahead import Loader, tensor_loaders

SEPARATOR = ";"
_Side = tuple[Path, list[str]]  # folder, and the file (or files) of each row


def laid_out_jobs(
    sides: tuple[_Side, _Side], rows: Sequence[int], turns: list[str | None], joined: list[bool]
) -> Iterator[tuple[Loader, Loader]]:
    """Two loaders for each of these rows, the second of which must be called after the first."""

    def names(at: int, files: list[str]) -> list[str]:
        return files[at].split(SEPARATOR) if joined[at] else [files[at]]

    loaders = tensor_loaders((folder, name) for at in rows for folder, files in sides for name in names(at, files))
    for at in rows:
        mine, theirs = (list(islice(loaders, len(names(at, files)))) for _, files in sides)
        turn = turns[at]
        if turn is None and not joined[at]:
            yield mine[0], theirs[0]
        else:
            both = _Together(mine, theirs, [] if turn is None else from_text(turn))
            yield both.target, both.golden


class _Together:
    """Tensors that are laid out like the other side's: both sides are loaded at once."""

    def __init__(self, mine: list[Loader], theirs: list[Loader], ways: list[Axes]) -> None:
        self._mine, self._theirs, self._ways = mine, theirs, ways
        self._golden: HostTensor | None = None

    def target(self) -> HostTensor:
        """Load both sides; the target's tensor, turned, or put together if it has several."""
        from twinprobe.measure.joined import joined, turned

        mine, theirs = [load() for load in self._mine], [load() for load in self._theirs]
        whole = mine[0] if len(mine) == 1 else joined(mine, theirs[0])
        self._golden = theirs[0] if len(theirs) == 1 else joined(theirs, whole)
        return turned(whole, self._ways, self._golden) if self._ways else whole

    def golden(self) -> HostTensor:
        """The golden tensor, loaded with the target's."""
        golden, self._golden = self._golden, None
        assert golden is not None
        return golden
