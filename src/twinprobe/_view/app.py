"""The WSGI app: static files and answers, the same for `twinprobe view` and for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Request, Response

from twinprobe._graph.read.open import IndexingError
from twinprobe._report.reports import SHARED
from twinprobe._runs.whole_files import in_proportion
from twinprobe._view.answers import QUESTIONS, RequestArguments, Workspace, change, files
from twinprobe.errors import TwinProbeError

STATIC = Path(__file__).with_name("static")
_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": POLICY,
}
_LARGEST_BODY = 64 << 20
_SPECIAL = {"/": "/index.html", "/favicon.ico": "/icon.svg"}


class ViewApp:
    """Serves one folder."""

    def __init__(self, place: Path) -> None:
        self._workspace = Workspace(place)

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        return self.respond(Request(environ))(environ, start)

    def respond(self, request: Request) -> Response:
        """Answer one request."""
        request.max_content_length = _LARGEST_BODY
        path = request.path
        try:
            if path.startswith("/api/"):
                return self._answer(request, path.removeprefix("/api/"))
            return _static(request, (_SPECIAL.get(path) or path.removeprefix("/static")).removeprefix("/"))
        except HTTPException as error:
            return _plain(error.description or "", error.code or 500)

    def _answer(self, request: Request, name: str) -> Response:
        try:
            if name == "change":
                return self._change(request)
            if request.method != "GET" or name not in ("files", *QUESTIONS):
                return _json({"error": {"what": "there is no such question"}}, 404)
            if name == "files":
                return _json(files(self._workspace))
            arguments = RequestArguments(request.args)
            with self._workspace.view(arguments) as view:
                return _json(QUESTIONS[name](self._workspace, view, arguments))
        except IndexingError as error:
            return _json({"indexing": error.done}, 202)
        except TwinProbeError as error:
            return _json({"error": {"what": error.what, "hint": error.hint}}, 422)

    def _change(self, request: Request) -> Response:
        # A foreign page can make a browser send a plain form, but not this header.
        if request.method != "POST" or request.headers.get("X-TwinProbe") != "1":
            return _json({"error": {"what": "matches are changed by the page only"}}, 403)
        try:
            values = msgspec.json.decode(in_proportion(request.get_data()), type=dict[str, Any])
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return _json({"error": {"what": f"the request is not a JSON object: {error}"}}, 400)
        return _json(change(self._workspace, values))


def _static(request: Request, name: str) -> Response:
    known = _static_files()
    if request.method not in ("GET", "HEAD") or name not in known:
        return _plain("not found", 404)
    content = known[name].read_bytes()
    response = Response(content, content_type=f"{_TYPES[known[name].suffix]}; charset=utf-8", headers=_HEADERS)
    response.headers["Cache-Control"] = "no-cache"
    response.set_etag(sha256(content).hexdigest()[:32])
    return response.make_conditional(request)


@lru_cache(maxsize=1)
def _static_files() -> dict[str, Path]:
    return {path.name: path for folder in (STATIC, SHARED) for path in folder.iterdir() if path.suffix in _TYPES}


def _json(value: dict[str, Any], status: int = 200) -> Response:
    response = Response(msgspec.json.encode(value), status, content_type="application/json", headers=_HEADERS)
    response.headers["Cache-Control"] = "no-store"
    return response


def _plain(text: str, status: int) -> Response:
    return Response(text, status, content_type="text/plain; charset=utf-8", headers=_HEADERS)
