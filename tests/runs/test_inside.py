"""A name in a dump leads to a file of that dump or to an error, nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._runs.whole_files import inside
from twinprobe.errors import DamagedTensor


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = tmp_path / "dump" / "data"
    (data / "sub").mkdir(parents=True)
    (data / "a.pt").write_bytes(b"a")
    (data / "sub" / "b.pt").write_bytes(b"b")
    (tmp_path / "secret.pt").write_bytes(b"s")
    (tmp_path / "dump" / "database").mkdir()
    (tmp_path / "dump" / "database" / "c.pt").write_bytes(b"c")
    return data


@pytest.mark.parametrize("name", ["a.pt", "sub/b.pt", "missing.pt", "no/such/folder.pt", "a..b.pt", "...pt", "x" * 300])
def test_names_of_the_dump_are_joined(name: str, folder: Path) -> None:
    assert inside(folder, name) == folder / name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../secret.pt",
        "sub/../a.pt",
        "sub/../../../secret.pt",
        "..\\..\\secret.pt",
        "/etc/passwd",
        "//etc/passwd",
        "\\\\server\\share",
        "a.pt\0",
        "a\0/../b",
        "\ud800.pt",
        "sub/\ud800.pt",
    ],
)
def test_names_that_leave_the_dump_are_refused(name: str, folder: Path) -> None:
    with pytest.raises(DamagedTensor, match="name of the tensor file") as caught:
        inside(folder, name)
    str(caught.value).encode()  # the message can be printed whatever the name was


def test_the_error_says_which_name(folder: Path) -> None:
    with pytest.raises(DamagedTensor) as caught:
        inside(folder, "../secret.pt")
    assert caught.value.where == "../secret.pt"


def test_escape_sequences_do_not_reach_the_terminal(folder: Path) -> None:
    with pytest.raises(DamagedTensor) as caught:
        inside(folder, "../\x1b[2J\u202esecret.pt")
    assert str(caught.value).isprintable()


def test_a_link_out_of_the_dump_is_refused(folder: Path) -> None:
    (folder / "link.pt").symlink_to("../../secret.pt")
    (folder / "neighbour.pt").symlink_to("../database/c.pt")
    (folder / "chain.pt").symlink_to("link.pt")
    (folder / "away").symlink_to("../..")
    for name in ("link.pt", "neighbour.pt", "chain.pt", "away/secret.pt", "away"):
        with pytest.raises(DamagedTensor, match="symbolic link"):
            inside(folder, name)


def test_a_link_within_the_dump_is_followed(folder: Path) -> None:
    (folder / "link.pt").symlink_to("sub/b.pt")
    assert inside(folder, "link.pt").read_bytes() == b"b"


def test_a_dump_reached_through_a_link_is_a_dump(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shortcut").symlink_to(folder)
    assert inside(tmp_path / "shortcut", "a.pt").read_bytes() == b"a"
    assert inside(tmp_path / "shortcut", "sub/b.pt").read_bytes() == b"b"


def test_a_circle_of_links_is_no_way_out(folder: Path) -> None:
    (folder / "x.pt").symlink_to("y.pt")
    (folder / "y.pt").symlink_to("x.pt")
    assert inside(folder, "x.pt") == folder / "x.pt"
    with pytest.raises(OSError, match="symbolic links"):
        (folder / "x.pt").read_bytes()


@settings(deadline=None, max_examples=300)
@given(
    name=st.lists(st.sampled_from(["..", ".", "/", "\\", "sub", "a.pt", "", "\0", "b.pt", "é"]), max_size=8).map(
        "".join
    )
)
def test_no_name_resolves_outside(name: str, folder: Path) -> None:
    try:
        path = inside(folder, name)
    except DamagedTensor:
        return
    assert os.path.realpath(path).startswith(os.path.realpath(folder))
