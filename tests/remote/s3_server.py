"""A real S3 server on this machine, which counts what it sends."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "dumps"


@dataclass
class Traffic:
    """The requests since the last ``clear``: method, path, range, and bytes sent."""

    requests: list[tuple[str, str, str, int]] = field(default_factory=list)
    gone_when_read: set[str] = field(default_factory=set)
    """Objects that vanish the moment their first byte is asked for."""
    denied: set[str] = field(default_factory=set)
    """Objects that nobody may read or write."""
    unwritable: set[str] = field(default_factory=set)
    """Objects that nobody may write."""
    hang_up_on: str = ""
    """The server hangs up on everybody who wants an object that ends so."""

    def clear(self) -> None:
        self.requests.clear()

    @property
    def fetched(self) -> int:
        """Bytes of objects, not of listings."""
        return sum(size for method, path, _, size in self.requests if method == "GET" and path.count("/") > 1)

    def of(self, name: str) -> list[tuple[str, str, str, int]]:
        return [request for request in self.requests if request[1].endswith(name)]


class S3Server:
    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self.traffic = Traffic()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method == "GET" and any(path.endswith(name) for name in self.traffic.gone_when_read):
            self.client().delete_object(Bucket=path.split("/")[1], Key="/".join(path.split("/")[2:]))
        forbidden = self.traffic.denied | (self.traffic.unwritable if method == "PUT" else set())
        if any(path.endswith(name) for name in forbidden):
            self.traffic.requests.append((method, path, environ.get("HTTP_RANGE", ""), 0))
            start_response("403 Forbidden", [("Content-Type", "application/xml")])
            said = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            return [] if method == "HEAD" else [said]
        if method == "GET" and self.traffic.hang_up_on and path.endswith(self.traffic.hang_up_on):
            raise ConnectionError("hung up")
        body = b"".join(self._app(environ, start_response))
        self.traffic.requests.append((method, path, environ.get("HTTP_RANGE", ""), len(body)))
        return [body]

    def client(self) -> Any:
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1")

    def put(self, folder: Path, prefix: str) -> str:
        """Copy a local file or folder into the bucket; the URL of it."""
        client = self.client()
        for file in [folder] if folder.is_file() else sorted(folder.rglob("*")):
            if file.is_file():
                below = "" if file == folder else f"/{file.relative_to(folder).as_posix()}"
                client.put_object(Bucket=BUCKET, Key=f"{prefix}{below}", Body=file.read_bytes())
        return f"s3://{BUCKET}/{prefix}"

    def names(self, prefix: str) -> list[str]:
        """The objects below a prefix."""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{prefix}/")
        return [found["Key"][len(prefix) + 1 :] for page in pages for found in page.get("Contents", ())]

    def get(self, key: str) -> bytes:
        body: bytes = self.client().get_object(Bucket=BUCKET, Key=key)["Body"].read()
        return body

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
