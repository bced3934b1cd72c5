"""Requests that want memory or time of `twinprobe view`: refused, and the server goes on answering."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from twinprobe._view.app import make

COMMAND = [sys.executable, "-c", "import sys; from twinprobe._cli import main; sys.exit(main())"]
GIGABYTE = 1 << 30
HEADERS = {"X-TwinProbe": "1", "Content-Type": "application/json"}
HALVES = {
    "nothing": b"",
    "half a header": b"GET /api/files HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ",
    "half a body": b"POST /api/change HTTP/1.1\r\nHost: 127.0.0.1\r\nX-TwinProbe: 1\r\nContent-Length: 100\r\n\r\n{",
    "half a chunk": b"POST /api/change HTTP/1.1\r\nHost: 127.0.0.1\r\nX-TwinProbe: 1\r\n"
    b"Transfer-Encoding: chunked\r\n\r\nff\r\n{",
}


@pytest.fixture
def viewing(reference: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """The command as a user runs it, and its port."""
    words = [*COMMAND, "view", str(reference / "graph" / "results"), "--no-browser", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        found = re.search(r"at http://127\.0\.0\.1:(\d+)/ ", process.stdout.readline())
        assert found
        yield process, int(found[1])
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == 0


def peak(process: subprocess.Popen[str]) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) << 10


def answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("GET", "/api/files")
    return len(json.load(connection.getresponse())["files"]) == 5


@pytest.mark.parametrize("chunked", [False, True], ids=["with its length", "in chunks"])
def test_a_body_of_a_gigabyte_is_refused_before_it_is_kept(
    viewing: tuple[subprocess.Popen[str], int], chunked: bool
) -> None:
    process, port = viewing
    assert answers(port)
    before = peak(process)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    piece = b'{"pairs": {"'.ljust(1 << 20, b"x")
    size = {} if chunked else {"Content-Length": str(GIGABYTE)}
    try:
        connection.request(
            "POST",
            "/api/change",
            (piece for _ in range(GIGABYTE // len(piece))),
            HEADERS | size,
            encode_chunked=chunked,
        )
    except ConnectionError:
        pass  # refused while it was still being sent
    else:
        assert connection.getresponse().status in (400, 413)  # one that tells no length is cut off
    assert peak(process) - before < 256 << 20
    assert answers(port)


def test_a_body_of_very_many_small_values_is_refused_before_they_are_made(
    viewing: tuple[subprocess.Popen[str], int],
) -> None:
    process, port = viewing
    assert answers(port)
    before = peak(process)
    body = b'{"pairs": [' + b"[]," * (20 << 20) + b"[]]}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/api/change", body, HEADERS)
    reply = connection.getresponse()
    assert (reply.status, b"out of proportion" in reply.read()) == (400, True)
    assert peak(process) - before < (64 << 20) + 3 * len(body)
    assert answers(port)


def test_a_connection_that_is_left_half_open_is_closed(reference: Path) -> None:
    server = make(reference / "graph" / "results", port=0, idle=2)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    port = urlsplit(server.url).port
    assert port
    try:
        connections = [socket.create_connection(("127.0.0.1", port), timeout=600) for _ in HALVES]
        for connection, half in zip(connections, HALVES, strict=True):
            connection.sendall(HALVES[half])
        for connection in connections:
            while connection.recv(1 << 16):  # until the server closes it; a timeout here is a failure
                pass
            connection.close()
        assert answers(port)
    finally:
        server.wsgi.shutdown()
        thread.join()


@pytest.mark.slow
def test_so_it_is_by_the_command_itself(viewing: tuple[subprocess.Popen[str], int]) -> None:
    process, port = viewing
    connections = [socket.create_connection(("127.0.0.1", port), timeout=600) for _ in range(50)]
    for connection in connections:
        connection.sendall(HALVES["half a body"])
    for connection in connections:
        while connection.recv(1 << 16):
            pass
        connection.close()
    assert answers(port)
    threads = re.search(r"Threads:\s+(\d+)", Path(f"/proc/{process.pid}/status").read_text())
    assert threads
    assert int(threads[1]) < 50
