"""Whatever is wrong with a URL is told in one message, with exit code 2 and in bounded time."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_dumps import statistics_dump
from s3_server import S3Server

from twinprobe._runs.remote import store as asking
from twinprobe._runs.remote.store import store_of

BLOCKED = "import sys; sys.modules['fsspec'] = None; from twinprobe._cli import main; sys.exit(main(sys.argv[1:]))"


def refused(said, *words: str) -> None:
    assert said.code == 2, said.out
    assert said.err.startswith("twinprobe: error: ")
    assert said.err.count("\n") == 1, said.err
    for word in words:
        assert word in said.err


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return statistics_dump(tmp_path / "golden")


def test_without_fsspec_the_extra_is_named(golden: Path) -> None:
    words = ["compare", "-tp", "s3://dumps/x", "-gp", str(golden), "-o", str(golden.parent / "out")]
    done = subprocess.run([sys.executable, "-c", BLOCKED, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "s3://dumps/x" in done.stderr
    assert "pip install 'twinprobe[remote]'" in done.stderr


def test_local_paths_need_no_fsspec(golden: Path) -> None:
    words = ["compare", "-tp", str(golden), "-gp", str(golden), "-o", str(golden.parent / "out"), "--quiet"]
    done = subprocess.run([sys.executable, "-c", BLOCKED, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


PACKAGES = [
    ("gs://bucket/x", "gcsfs"), ("oss://bucket/x", "ossfs"), ("abfs://box/x", "adlfs"), ("hdfs://host:9/x", "pyarrow"),
]  # fmt: skip


@pytest.mark.parametrize(("url", "package"), PACKAGES)
@pytest.mark.parametrize("name", ["-tp", "-o"])
def test_the_package_of_a_kind_is_named(
    command, golden: Path, url: str, package: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    for module in (package, f"{package}.fs"):
        monkeypatch.setitem(sys.modules, module, None)  # not there, whether it is installed here or not
    store_of.cache_clear()
    words = {"-tp": golden, "-gp": golden, "-o": golden.parent / "out"} | {name: url}
    refused(command("compare", *(word for pair in words.items() for word in pair)), url, f"pip install {package}")


def test_without_s3fs_it_is_named(golden: Path) -> None:
    code = BLOCKED.replace("fsspec", "s3fs")
    words = ["merge_result", "-i", "s3://dumps/x", "-o", str(golden.parent), "-config", str(golden)]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "s3://dumps/x" in done.stderr
    assert "pip install s3fs" in done.stderr


@pytest.mark.parametrize("url", ["foo://bucket/x", "zip://a.zip", "simplecache://x", "S4://bucket/x"])
def test_an_unknown_kind_of_url(command, golden: Path, url: str) -> None:
    refused(command("compare", "-tp", url, "-gp", golden), url, "there is no kind of URL", "s3://")


def test_a_url_without_a_bucket_and_a_file_of_another_machine(command, golden: Path) -> None:
    refused(command("compare", "-tp", "s3://", "-gp", golden), "names no bucket")
    refused(command("compare", "-tp", "file://host/x", "-gp", golden), "names another machine", "three slashes")


def test_a_file_url_is_a_plain_path(command, golden: Path, tmp_path: Path) -> None:
    said = command("compare", "-tp", golden.as_uri(), "-gp", golden, "-o", f"file://{tmp_path}/out", "--csv", "--quiet")
    assert (said.code, said.err) == (0, "")
    assert len(list((tmp_path / "out").glob("*.csv"))) == 1


@pytest.mark.parametrize("name", ["-tp", "-gp", "-o"])
def test_a_bucket_that_does_not_exist(s3: S3Server, command, golden: Path, tmp_path: Path, name: str) -> None:
    url = s3.put(golden.parent, "exists/golden")
    words = {"-tp": url, "-gp": url, "-o": tmp_path / "out"} | {name: "s3://no-such-bucket/x"}
    refused(
        command("compare", *(word for pair in words.items() for word in pair)), "s3://no-such-bucket/x", "no bucket"
    )


def test_a_folder_that_does_not_exist(s3: S3Server, command, golden: Path) -> None:
    refused(
        command("compare", "-tp", "s3://dumps/nothing/here", "-gp", golden), "s3://dumps/nothing/here: does not exist"
    )
    config = golden.parent / "config.yaml"
    config.write_text("api: [Torch]\n")
    refused(
        command("merge_result", "-i", "s3://dumps/nothing", "-o", golden.parent, "-config", config), "does not exist"
    )
    refused(command("llm", "compare", "-mp", "s3://dumps/nothing", "-gp", golden), "s3://dumps/nothing: does not exist")
    refused(command("graph_visualize", "-tp", "s3://dumps/nothing", "-o", "s3://dumps/o"), "does not exist")
    refused(command("view", "s3://dumps/nothing"), "does not exist")


@pytest.mark.parametrize("name", ["-tp", "-o"])
def test_missing_credentials(
    s3: S3Server, command, golden: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.put(golden.parent, "secret/golden")
    for variable in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(variable)
    words = {"-tp": golden, "-gp": golden, "-o": tmp_path / "out"} | {name: url}
    said = command("compare", *(word for pair in words.items() for word in pair))
    refused(said, "s3://dumps/secret/golden", "no credentials", "AWS_ACCESS_KEY_ID")


@pytest.mark.parametrize("name", ["-tp", "-o"])
def test_a_place_that_one_may_not_enter(s3: S3Server, command, golden: Path, tmp_path: Path, name: str) -> None:
    s3.traffic.denied.update({"/dumps", "/dumps/closed/x", ".part"})
    words = {"-tp": golden, "-gp": golden, "-o": tmp_path / "out"} | {name: "s3://dumps/closed/x"}
    refused(command("compare", *(word for pair in words.items() for word in pair)), "s3://dumps/closed/x", "denied")


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port where connections are accepted and never answered."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(64)
        yield listening.getsockname()[1]


def test_an_endpoint_that_never_answers(
    s3: S3Server, command, golden: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "PATIENCE", 1.5)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent_port}")
    refused(command("compare", "-tp", "s3://dumps/x", "-gp", golden), "s3://dumps/x", "does not answer", "endpoint")


def test_an_endpoint_that_refuses_and_a_host_that_is_unknown(
    s3: S3Server, command, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setattr(asking, "PATIENCE", 3.0)
    for endpoint in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        store_of.cache_clear()
        refused(command("compare", "-tp", "s3://dumps/x", "-gp", golden), "s3://dumps/x", "does not answer")


def test_a_silent_endpoint_ends_a_command_of_its_own_process_in_time(golden: Path, silent_port: int) -> None:
    code = (
        "import sys; from twinprobe._runs.remote import store as asking; asking.PATIENCE = 1.5\n"
        "from twinprobe._cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["compare", "-tp", "s3://dumps/x", "-gp", str(golden), "-o", str(golden.parent / "out")]
    settings = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{silent_port}", "AWS_ACCESS_KEY_ID": "x",
                "AWS_SECRET_ACCESS_KEY": "x", "PATH": "", "NO_PROXY": "127.0.0.1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, check=False, timeout=600, env=settings
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "does not answer" in done.stderr


def test_recording_stays_on_this_machine(command) -> None:
    said = command("llm", "dump", "--exec", "true", "-o", "memory://x")
    refused(said, "memory://x", "must be a path on this machine")


def test_the_memory_of_one_process_is_not_given_to_others(command, tmp_path: Path) -> None:
    for side in ("t", "g"):
        for rank in (0, 1):
            statistics_dump(tmp_path / side / f"rank{rank}")
    words = ("compare", "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", "memory://out", "--csv", "--quiet")
    refused(command(*words, "--engine", "process"), "memory://out", "memory of one process", "--engine inline")
    assert command(*words, "--engine", "inline").code == 0
