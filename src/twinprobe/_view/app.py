"""The WSGI app: static files and answers, the same for TensorBoard and for the server of `twinprobe view`."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
from werkzeug.exceptions import HTTPException
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response

from twinprobe._graph.read.open import IndexingError
from twinprobe._report.reports import SHARED
from twinprobe._runs.whole_files import in_proportion
from twinprobe._view.answers import QUESTIONS, RequestArguments, Workspace, change, files
from twinprobe.errors import BadInput, TwinProbeError

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


# `twinprobe view`: the app on its own port, for this machine only unless a token is asked for.

_FIRST_PORT, _PORTS = 6060, 40
_IDLE = 30.0  # seconds that a client may take to send or take the next bytes
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


@dataclass(frozen=True)
class Server:
    """A server that is bound to its port; ``url`` opens it."""

    url: str
    token: str
    wsgi: BaseWSGIServer

    def run(self) -> None:
        """Serve until interrupted."""
        try:
            self.wsgi.serve_forever()
        finally:
            self.wsgi.server_close()


def make(place: Path, *, host: str = "127.0.0.1", port: int | None = None, idle: float = _IDLE) -> Server:
    """Bind the app to a port: the one given or, by default, the first free one from 6060 on.

    A connection over which nothing comes for ``idle`` seconds is closed.
    """
    token = "" if is_loopback(host) else secrets.token_urlsafe(18)
    guard = Guard(ViewApp(place), host=host, token=token)
    ports = [port] if port is not None else [*range(_FIRST_PORT, _FIRST_PORT + _PORTS), 0]
    wsgi = _bind(guard, host, ports, type("Handler", (_QuietHandler,), {"timeout": idle}))
    guard.port = wsgi.server_port
    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else f"[{host}]" if ":" in host else host
    return Server(f"http://{shown}:{wsgi.server_port}/" + (f"?token={token}" if token else ""), token, wsgi)


class Guard:
    """Lets in only requests that were meant for this server: by the name they use and, from outside, by a token."""

    def __init__(self, app: ViewApp, *, host: str, token: str) -> None:
        self._app, self._host, self._token = app, host, token
        self.port = 0

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        request = Request(environ)
        cookie = f"twinprobe_{self.port}"  # cookies are shared by all ports of a host
        token = request.args.get("token") or request.cookies.get(cookie, "")
        if not self._names_us(request.headers.get("Host", "")):
            response = _refusal("This server does not answer to that name.", 421)
        elif not _same_origin(request):
            response = _refusal("Requests from other pages are not answered.", 403)
        elif self._token and not self._is_token(token):
            response = _refusal("A token is needed: use the address that twinprobe view printed.", 403)
        else:
            response = self._app.respond(request)
            if self._token and self._is_token(request.args.get("token", "")):
                response.set_cookie(cookie, self._token, httponly=True, samesite="Strict")
        return response(environ, start)

    def _names_us(self, header: str) -> bool:
        """Against DNS rebinding: a page of another site whose name points at this machine still sends that name."""
        name = header.rsplit(":", 1)[0] if not header.endswith("]") else header
        if not self._token:
            return name.lower() in _LOOPBACK_NAMES
        machine = {self._host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
        return name.lower() in _LOOPBACK_NAMES | machine or _address(name) is not None

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    address = _address(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return None


class _QuietHandler(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


def _bind(app: Guard, host: str, ports: list[int], handler: type[WSGIRequestHandler]) -> BaseWSGIServer:
    for index, port in enumerate(ports):
        if port and index + 1 < len(ports) and not _is_free(host, port):
            continue
        try:
            with redirect_stderr(StringIO()):  # werkzeug prints its own advice and leaves when a port is taken
                return make_server(host.strip("[]"), port, app, threaded=True, request_handler=handler)
        except (OSError, SystemExit) as error:
            if index + 1 < len(ports):
                continue  # somebody else took it just now
            raise BadInput(f"port {port} of {host} cannot be used", hint="choose another one with --port") from error
    raise BadInput("no free port was found", hint="choose one with --port")


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
    return True


def _same_origin(request: Request) -> bool:
    origin = request.headers.get("Origin")
    matches = origin is None or origin.split("://", 1)[-1] == request.headers.get("Host")
    return matches or request.method in ("GET", "HEAD")


def _refusal(text: str, status: int) -> Response:
    headers = {"X-Content-Type-Options": "nosniff"}
    return Response(text, status, content_type="text/plain; charset=utf-8", headers=headers)
