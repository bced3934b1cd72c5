"""A command that cannot write says why and where, with exit code 2, and leaves no half result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from fault_checks import FORMATS, hidden, visible
from fault_tools import Victims, make_read_only

from support import forward, tensor, write_dump

MANY = {f"Module.layers.{i}.Linear.forward.0": forward([tensor(norm=i)], [tensor(norm=i)]) for i in range(600)}
PARENTS = dict.fromkeys(MANY)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    place = tmp_path_factory.mktemp("dumps")
    place.chmod(0o755)
    target, golden = (write_dump(place / name / "rank0", MANY, parents=PARENTS, stacks={}) for name in "ab")
    return target.parent.parent, golden.parent.parent


def _words(kind: str, dumps: tuple[Path, Path], out: Path) -> list[str | Path]:
    target, golden = dumps
    if kind in FORMATS:
        return ["compare", "-tp", target, "-gp", golden, "-o", out, "--format", kind]
    return ["graph_visualize", "-tp", target, "-gp", golden, "-o", out, "--file_type", kind]


@pytest.mark.parametrize("kind", [*FORMATS, "db", "vis"])
def test_a_full_disk(victims: Victims, small_disk: Callable[..., Path], dumps: tuple[Path, Path], kind: str) -> None:
    disk = small_disk(12)
    result = victims.command(disk, *_words(kind, dumps, disk))
    assert result["told"] == [2], result["said"]
    assert "cannot be written: No space left on device (free some space or choose another folder" in result["said"]
    assert "Traceback" not in result["said"]
    assert visible(disk) == hidden(disk) == []


@pytest.mark.parametrize("kind", ["db", "vis"])
def test_a_limit_on_the_size_of_files(victims: Victims, tmp_path: Path, dumps: tuple[Path, Path], kind: str) -> None:
    out = tmp_path / "out"
    result = victims.command(out, *_words(kind, dumps, out), limit=20_000)
    assert result["told"] == [2], result["said"]
    assert "cannot be written" in result["said"]
    assert "Traceback" not in result["said"]
    assert visible(out) == hidden(out) == []


@pytest.mark.parametrize("kind", ["xlsx", "db"])
def test_a_read_only_file_system(
    victims: Victims, small_disk: Callable[..., Path], dumps: tuple[Path, Path], kind: str
) -> None:
    disk = small_disk(1000)
    make_read_only(disk)
    result = victims.command(disk, *_words(kind, dumps, disk))
    assert result["told"] == [2], result["said"]
    assert "cannot be written to: Read-only file system (the file system is read-only" in result["said"]


def test_a_folder_without_permission(victims: Victims, open_folder: Path, plain_user: dict[str, int]) -> None:
    dumps = tuple(write_dump(open_folder / name / "rank0", MANY).parent.parent for name in "ab")
    out = open_folder / "out"
    out.mkdir(mode=0o555)
    result = victims.command(out, "compare", "-tp", dumps[0], "-gp", dumps[1], "-o", out, **plain_user)
    assert result["told"] == [2], result["said"]
    assert f"{out}: the output folder cannot be written to: Permission denied (choose a folder" in result["said"]
    assert visible(out) == hidden(out) == []
