"""A path behind a URL behaves as a path does."""

from __future__ import annotations

import os
import pickle
import uuid
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_dumps import local_results, pair_of

from twinprobe._report.files import Staging, prepare_folder
from twinprobe._runs.whole_files import expect_all, inside, place, remote, scan
from twinprobe.errors import BadInput, DamagedTensor

NAMES = st.text("abc.1_", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
FILES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=4).map("/".join), st.binary(max_size=40), max_size=8)


def twins(folder: Path, files: dict[str, bytes]) -> Path:
    """The same files here and in memory://; the URL's path."""
    there = place(f"memory://{uuid.uuid4().hex}/top")
    for name, content in files.items():
        try:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        except OSError:  # a file where another name wants a folder
            continue
        (there / name).write_bytes(content)
    (there / "always").write_bytes(b"x")
    (folder / "always").write_bytes(b"x")
    return there


@settings(deadline=None, max_examples=60)
@given(files=FILES, together=st.booleans())
def test_looking_around_gives_what_pathlib_gives(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes], together: bool
) -> None:
    here = tmp_path_factory.mktemp("here")
    there = twins(here, files)
    if together:
        expect_all(there)
    assert sorted(path.name for path in there.iterdir()) == sorted(path.name for path in here.iterdir())
    for pattern in ("*", "*.1", "a*/*", "*/b", "always", "nothing/*"):
        found, expected = (sorted(str(path.relative_to(top)) for path in top.glob(pattern)) for top in (there, here))
        assert found == expected
    for path in here.rglob("*"):
        other = there / path.relative_to(here)
        assert (other.is_file(), other.is_dir(), other.exists()) == (path.is_file(), path.is_dir(), True)
        if path.is_file():
            assert other.read_bytes() == path.read_bytes()
            assert other.stat().st_size == path.stat().st_size
    assert sorted(str(p.relative_to(there)) for p in there.rglob("*")) == sorted(
        str(p.relative_to(here)) for p in here.rglob("*")
    )
    with scan(there) as entries:
        assert {entry.name: entry.is_dir() for entry in entries} == {p.name: p.is_dir() for p in here.iterdir()}
    assert not (there / "absent").exists()
    with pytest.raises(FileNotFoundError):
        (there / "absent").read_bytes()


@given(parts=st.lists(NAMES, min_size=1, max_size=5), more=NAMES)
def test_names_are_taken_apart_as_pathlib_does(parts: list[str], more: str) -> None:
    url, plain = place("s3://" + "/".join(["bucket", *parts])), PurePosixPath("bucket", *parts)
    assert (url.name, url.suffix, url.stem, url.parts) == (plain.name, plain.suffix, plain.stem, plain.parts)
    assert str(url.parent) == f"s3://{plain.parent}"
    assert [str(path) for path in url.parents] == [f"s3://{path}" for path in plain.parents][:-1]
    assert str(url / more) == f"s3://{plain / more}"
    assert (url / more).relative_to(url) == PurePosixPath(more)
    assert url / PurePosixPath() == url
    assert str(url.with_name(more)) == f"s3://{plain.with_name(more)}"
    assert pickle.loads(pickle.dumps(url)) == url
    assert url.resolve() == url.absolute() == url


@pytest.mark.parametrize("url", [
    "s3://bucket/a/b", "memory://a/b", "memory:///a/b", "hdfs://host:9000/user/b", "webhdfs://host:1/a/b",
])  # fmt: skip
def test_a_url_is_shown_as_it_was_written(url: str) -> None:
    assert str(place(url)) == url
    assert str(place(url + "/")) == url
    assert str(place(url) / "x") == f"{url}/x"
    assert str(place(url).parent) == url.rpartition("/")[0].rstrip("/")


@pytest.mark.parametrize("text", ["a/b", "./s3://bucket/x", "C:/x", "/x", "s3:/x"])
def test_everything_else_is_a_local_path(text: str) -> None:
    found = place(text)
    assert isinstance(found, Path)
    assert remote(found) is None
    assert str(found) == str(Path(text))


def test_a_home_is_expanded_and_a_remote_path_is_no_local_one() -> None:
    assert place("~/x") == Path("~/x").expanduser()
    with pytest.raises(BadInput, match="must be a path on this machine"):
        os.fspath(place("memory://a/b"))
    with pytest.raises(BadInput, match="memory://a/b"):
        Path("/tmp").joinpath(place("memory://a/b"))


@settings(deadline=None)
@given(name=st.text("./\\ab\0", max_size=8))
def test_a_name_in_a_dump_leads_into_its_folder_or_nowhere(name: str) -> None:
    folder = place("memory://dump/tensors")
    try:
        found = inside(folder, name)
    except DamagedTensor:
        return
    assert str(found).startswith("memory://dump/tensors")
    assert ".." not in str(found).split("/")


def test_text_and_seeking_readers_see_the_same_bytes() -> None:
    path = place("memory://reading/file.txt")
    path.write_text("first\r\nsecond é\n")
    assert path.read_text() == "first\nsecond é\n"
    with path.open(newline="") as file:
        assert file.readlines() == ["first\r\n", "second é\n"]
    with path.open("rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == "é\n".encode()
        assert file.seek(7) == 7
        assert file.read(6) == b"second"
    with pytest.raises(OSError, match="whole"):
        path.open("w")


def test_a_command_sees_what_is_there_now() -> None:
    folder = place("memory://fresh/folder")
    (folder / "one").write_bytes(b"1")
    assert [path.name for path in folder.iterdir()] == ["one"]
    other = place("memory://fresh")  # somebody else's write, past this listing
    other.store.ask("", lambda fs: fs.pipe_file(f"{folder.inner}/two", b"2"))
    assert sorted(path.name for path in place("memory://fresh/folder").iterdir()) == ["one", "two"]


def test_results_appear_together_or_not_at_all(tmp_path: Path) -> None:
    folder = prepare_folder(place(f"memory://{uuid.uuid4().hex}/out"))
    with pytest.raises(ZeroDivisionError), Staging() as staging:
        staging.file(folder / "a.txt").write_text(str(1 // 0))
    assert list(folder.rglob("a.txt")) == []
    with Staging() as staging:
        files = [staging.file(folder / name) for name in ("a.txt", "b.txt")]
        for file in files:
            file.write_text("whole")
        assert not (folder / "a.txt").exists()
    assert sorted(path.read_text() for path in folder.iterdir()) == ["whole", "whole"]
    assert not any(file.exists() for file in files)


@pytest.mark.parametrize("kind", ["statistics", "tensor"])
def test_compare_in_memory(command, tmp_path: Path, kind: str) -> None:
    target, golden = pair_of(kind, tmp_path)
    top = f"memory://{uuid.uuid4().hex}"
    for side in (target, golden):
        for file in side.rglob("*"):
            if file.is_file():
                (place(top) / side.name / file.relative_to(side)).write_bytes(file.read_bytes())
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "out", "--csv", "--quiet").code == 0
    said = command("compare", "-tp", f"{top}/target", "-gp", f"{top}/golden", "-o", f"{top}/out", "--csv", "--quiet")
    assert (said.code, said.err) == (0, "")
    (found,) = (path.read_bytes() for path in place(f"{top}/out").iterdir())
    (expected,) = local_results(tmp_path / "out").values()
    assert found == expected


def test_a_tensor_may_be_opened_for_its_shape_alone() -> None:
    from twinprobe._runs.tensors.tensor_files import open_tensor

    array = np.arange(1_000_000, dtype=np.float32).reshape(1000, 1000)
    path = place("memory://shapes/x.npy")
    import io

    file = io.BytesIO()
    np.save(file, array)
    path.write_bytes(file.getvalue())
    tensor = open_tensor(path, enough=4096)
    assert tensor.shape == (1000, 1000)
    assert tensor.data[:1024].tolist() == list(range(1024))
    assert open_tensor(path).data.tobytes() == array.tobytes()
