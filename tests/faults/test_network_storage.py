"""Network storage that is slow, or fails for some files: one row with a reason for each of those, the rest goes on."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest

from support import tensor_dump
from twinprobe._cli import main

fsspec = pytest.importorskip("fsspec")

from fsspec.implementations.memory import MemoryFileSystem  # noqa: E402

CALLS = 6
TROUBLE: dict[str, Exception] = {
    "Torch.f.1.": OSError(errno.EIO, "Input/output error"),
    "Torch.f.2.": TimeoutError("the server took too long"),
    "Torch.f.3.": ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
    "Torch.f.4.": PermissionError(errno.EACCES, "403 Forbidden"),
}


class Unsteady(MemoryFileSystem):
    """A store of which every answer takes its time, and some fail."""

    protocol = "unsteady"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    slow = False
    failing = False
    under_way = most_under_way = 0
    _changed = threading.Condition()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("unsteady://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        with self._changed:
            Unsteady.under_way += 1
            Unsteady.most_under_way = max(Unsteady.most_under_way, Unsteady.under_way)
            self._changed.notify_all()
            if self.slow and path.endswith(".npy"):  # answers when a second one asks, or never
                self._changed.wait_for(lambda: Unsteady.most_under_way > 1, timeout=120)
        try:
            if self.failing:
                for name, error in TROUBLE.items():
                    if name in path:
                        raise error
            return super().cat_file(path, start, end, **more)
        finally:
            with self._changed:
                Unsteady.under_way -= 1


@pytest.fixture
def dumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Path]]:
    """A dump in the store and the same dump here."""
    fsspec.register_implementation("unsteady", f"{__name__}.Unsteady", clobber=True)
    here = tensor_dump(
        tmp_path / "here",
        {f"Torch.f.{at}.forward": {"output.0": np.full(30_000, at, np.float32)} for at in range(CALLS)},
    )
    store = Unsteady(skip_instance_cache=True)
    for file in sorted(path for path in here.parent.rglob("*") if path.is_file()):
        store.pipe_file(f"/run/{file.relative_to(here.parent).as_posix()}", file.read_bytes())
    monkeypatch.setattr(Unsteady, "most_under_way", 0)
    yield "unsteady://run/dump.json", here
    Unsteady.store.clear()


def _compared(dumps: tuple[str, Path], out: Path) -> pl.DataFrame:
    words = ["compare", "-tp", dumps[0], "-gp", str(dumps[1]), "-o", str(out), "--format", "csv", "--engine", "inline"]
    assert main(words) == 0
    (path,) = out.glob("*.csv")
    return pl.read_csv(path)


def test_slow_storage_gives_all_rows(dumps: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unsteady, "slow", True)
    assert _compared(dumps, tmp_path / "out")["Result"].to_list() == ["pass"] * CALLS
    assert Unsteady.most_under_way > 1  # nobody waits for one file after the other


def test_failing_storage_costs_the_rows_of_what_failed(
    dumps: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unsteady, "failing", True)
    table = _compared(dumps, tmp_path / "out")
    failed = table["NPU Name"].str.contains(r"Torch\.f\.[1-4]\.")
    assert table.filter(~failed)["Result"].to_list() == ["pass"] * (CALLS - len(TROUBLE))
    assert table.filter(failed)["Result"].to_list() == ["warning"] * len(TROUBLE)
    reasons = table.filter(failed)["Reason"].to_list()
    for reason, words in zip(
        reasons, ["Input/output error", "does not answer", "does not answer", "denied"], strict=True
    ):
        assert "the tensor could not be read" in reason
        assert words in reason
