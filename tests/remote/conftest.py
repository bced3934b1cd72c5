"""A real S3 server on localhost for all tests here, and nothing of the machine's own credentials."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from s3_server import BUCKET, S3Server

from twinprobe._cli import main
from twinprobe._runs.remote.store import store_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "llm"))  # its small inference dumps serve here as well


@pytest.fixture(scope="session")
def s3_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    nothing = tmp_path_factory.mktemp("aws") / "none"
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, str(nothing))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("NO_PROXY", "127.0.0.1")
        server = S3Server()
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        server.client().create_bucket(Bucket=BUCKET)
        yield server
        server.close()


@pytest.fixture
def s3(s3_session: S3Server) -> Iterator[S3Server]:
    """The server, with a clean count."""
    store_of.cache_clear()
    s3_session.traffic.clear()
    yield s3_session
    s3_session.traffic.gone_when_read.clear()
    s3_session.traffic.denied.clear()
    s3_session.traffic.unwritable.clear()
    s3_session.traffic.hang_up_on = ""
    store_of.cache_clear()


@dataclass(frozen=True)
class Said:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run ``twinprobe ...`` in this process."""

    def run(*words: object) -> Said:
        capfd.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run
