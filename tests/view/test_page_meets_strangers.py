"""Foreign files, foreign pages and foreign names: nothing of theirs runs, and nothing of ours reaches them."""

from __future__ import annotations

import http.client
import http.server
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from evil_files import EVIL, evil_file
from page_tools import becomes, show
from werkzeug.test import Client
from werkzeug.wrappers import Response

from support import forward, tensor, write_dump
from twinprobe._cli import main
from twinprobe._view.answers import QUESTIONS
from twinprobe._view.app import STATIC, ViewApp

PLACES = ["http://stranger.example/x.png", "//stranger.example/y.js", "url(http://stranger.example/z.css)"]


class Stranger(http.server.BaseHTTPRequestHandler):
    """Another site: an empty page, and a list of what was asked of it."""

    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        # A browser asks for a site's icon at any time, also when the site is gone at the test's end.
        self.wfile.write(b"<!doctype html><title>stranger</title><link rel='icon' href='data:,'>")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[tuple[str, list[str]]]:
    Stranger.asked = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", Stranger.asked
    server.shutdown()
    thread.join()


def evil_database(folder: Path) -> Path:
    """A real ``.vis.db`` in which names, stacks, values and settings are attacks."""
    names = [f"Module.{text}.Linear.forward.0" for text in (*EVIL[:4], *PLACES)]
    data = {name: forward([tensor()], [tensor()]) for name in names}
    stacks = {str(at): [[name], [name, *PLACES]] for at, name in enumerate(names)}
    for side in "ab":
        write_dump(folder / side / "rank0", data, parents=dict.fromkeys(names), stacks=stacks)
    words = ["-tp", str(folder / "a"), "-gp", str(folder / "b"), "-o", str(folder / "out")]
    assert main(["graph_visualize", *words]) == 0
    (path,) = (folder / "out").glob("*.vis.db")
    with sqlite3.connect(path) as database:
        values = json.dumps({EVIL[0]: {"type": EVIL[1], "shape": PLACES[0], PLACES[2]: EVIL[2]}})
        database.execute("UPDATE tb_nodes SET input_data=?, precision_index=1", (values,))
        database.execute("UPDATE tb_config SET tool_tip=?, task=?", (json.dumps({EVIL[0]: EVIL[1]}), EVIL[0]))
    database.close()
    return path


def _open_everything(page: Any) -> None:
    page.wait_for_selector(".pane-target .box .name")
    for row in page.locator(".pane-target .box:not(.open) > .head").all():
        row.click()
        page.wait_for_selector(".details .stack li")


@pytest.mark.parametrize("kind", ["vis.db", "vis"])
def test_a_hostile_file_runs_nothing_and_asks_nobody(
    page: Any, serve: Callable[..., str], tmp_path: Path, kind: str
) -> None:
    place = evil_database(tmp_path).parent if kind == "vis.db" else evil_file(tmp_path / "compare_1.vis").parent
    url = serve(place)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, url)
    _open_everything(page)
    assert asked
    assert {f"{urlsplit(one).scheme}://{urlsplit(one).netloc}/" for one in asked} == {url}
    tags = "document.querySelectorAll('img, iframe, object, embed, script:not([src]), a[href^=javascript]').length"
    assert page.evaluate(tags) == 0


def test_even_a_script_in_the_page_could_not_reach_another_site(
    page: Any, serve: Callable[..., str], tmp_path: Path, stranger: tuple[str, list[str]]
) -> None:
    """The policy, not only the care taken with texts: as if an attack had succeeded."""
    elsewhere, asked = stranger
    evil_file(tmp_path / "compare_1.vis")
    show(page, serve(tmp_path))
    fetched = "url => fetch(url).then(() => 'reached', () => 'refused')"
    assert page.evaluate(fetched, elsewhere) == "refused"
    page.evaluate(
        """url => {
            window.refusals = []
            document.addEventListener('securitypolicyviolation', event => refusals.push(event.effectiveDirective))
            for (const [tag, key] of [['img', 'src'], ['script', 'src'], ['iframe', 'src'], ['link', 'href']]) {
                const element = document.createElement(tag)
                element.rel = 'stylesheet'
                element[key] = url + tag
                document.body.append(element)
            }
            const inline = document.createElement('script')
            inline.textContent = 'window.ran = 1'
            document.body.append(inline)
            document.body.setAttribute('onclick', 'window.ran = 2')
            document.body.click()
        }""",
        elsewhere,
    )
    refused = {"img-src", "script-src-elem", "frame-src", "style-src-elem", "script-src-attr"}
    becomes(page, lambda: set(page.evaluate("refusals")), lambda found: found >= refused)
    assert page.evaluate("window.ran") is None
    assert asked == []
    page.complaints.clear()  # these were wanted


def test_a_page_of_another_site_reads_nothing(
    page: Any, serve: Callable[..., str], tmp_path: Path, stranger: tuple[str, list[str]]
) -> None:
    elsewhere, _ = stranger
    evil_file(tmp_path / "compare_1.vis")
    url = serve(tmp_path)
    page.goto(elsewhere)
    for path, options in (
        ("api/files", {}),
        ("api/files", {"headers": {"X-TwinProbe": "1"}}),
        ("api/change", {"method": "POST", "body": "{}", "headers": {"X-TwinProbe": "1"}}),
        ("static/index.js", {}),
    ):
        asked = "([url, options]) => fetch(url, options).then(reply => reply.text(), () => 'refused')"
        assert page.evaluate(asked, [url + path, options]) == "refused"
    embedded = "url => new Promise(done => { const e = document.createElement('script'); e.src = url;"
    embedded += " e.onload = () => done('loaded'); e.onerror = () => done('refused'); document.body.append(e) })"
    assert page.evaluate(embedded, url + "api/files") == "refused"
    assert all("stranger" in text or "127.0.0.1" in text for text in page.complaints)
    page.complaints.clear()  # the browser says that it refused


def _request(url: str, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    connection.request(method, path, headers=headers)
    reply = connection.getresponse()
    reply.read()
    connection.close()
    return reply


def test_no_answer_invites_other_sites(serve: Callable[..., str], tmp_path: Path) -> None:
    evil_file(tmp_path / "compare_1.vis")
    url = serve(tmp_path)
    foreign = {"Origin": "http://stranger.example", "Access-Control-Request-Method": "POST"}
    for method, path in (("GET", "/"), ("GET", "/api/files"), ("OPTIONS", "/api/change"), ("POST", "/api/change")):
        reply = _request(url, method, path, **foreign)
        assert [name for name in reply.headers if name.lower().startswith("access-control")] == []
        if method != "GET":
            assert reply.status in (403, 404, 405)


def test_a_name_that_was_turned_to_this_machine_gets_no_file_of_any_kind(
    serve: Callable[..., str], tmp_path: Path
) -> None:
    evil_file(tmp_path / "compare_1.vis")
    url = serve(tmp_path)
    for path in ("/", "/static/index.js", "/api/files", "/api/open?file=compare_1.vis", "/api/change"):
        for method in ("GET", "POST"):
            assert _request(url, method, path, Host="rebound.example").status == 421


def test_tensorboards_validator_is_content_with_every_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    validator = pytest.importorskip("tensorboard.backend.security_validator", reason="tensorboard is not installed")
    evil_file(tmp_path / "compare_1.vis")
    client = Client(validator.SecurityValidatorMiddleware(ViewApp(tmp_path)))
    paths = ["/", "/index.html", "/favicon.ico", "/nothing", "/static/nothing.js", "/api/nothing", "/api/change"]
    paths += [f"/static/{file.name}" for file in STATIC.iterdir() if file.is_file()]
    paths += [f"/api/{name}" for name in ("files", *QUESTIONS)]
    paths += [f"/api/{name}?file={quote(EVIL[0])}&side=x&step=-1" for name in ("files", *QUESTIONS)]
    with caplog.at_level(logging.WARNING):
        for path in paths:
            for ask in (client.get, client.post, client.head, client.options):
                assert ask(path).status_code < 500
    assert "will become an error" not in caplog.text
    caplog.clear()
    Client(validator.SecurityValidatorMiddleware(Response("bare"))).get("/")
    assert "will become an error" in caplog.text  # the validator does speak up
