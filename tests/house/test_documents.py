"""What the pages show can be typed: the parser accepts every command, and every file that they name is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from twinprobe._cli.main import _parse

PROJECT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(PROJECT.glob("*.md")), *sorted(PROJECT.glob("docs/*.md"))]
# A line of a code block, after variables and a prompt; several spaces and a # begin a remark.
_COMMAND = re.compile(r"^ +(?:\$ )?(?:[A-Z_]+=\S+ )*(twinprobe .+?)(?: +#.*)?$", re.M)
_INLINE = re.compile(r"`(twinprobe [a-z_]+ [^`]* -[^`]*)`")  # a name alone is no command


def _commands(page: Path) -> list[str]:
    text = re.sub(r"\\\n *", "", page.read_text(encoding="utf-8"))
    found = _COMMAND.findall(text) + [line.replace("\n", " ") for line in _INLINE.findall(text)]
    return [line for line in found if not re.search(r"[\[\]|{}]|\.\.\.", line)]  # syntax, not an example


def test_every_command_on_a_page_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    refused, checked = [], 0
    for page in PAGES:
        for line in _commands(page):
            words = shlex.split(line)[1:]
            if words[-1] == "--help":
                continue
            checked += 1
            try:
                _parse(words, "twinprobe")
            except SystemExit:
                refused.append(f"{page.name}: {line}: {capsys.readouterr().err}")
    assert checked > 40
    assert refused == []


def test_every_file_that_a_page_names_is_there() -> None:
    absent = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"(?<![.\w/-])(?:src|tests|docs|bench|examples)/[\w./*]*\w", text)
        named = [name for name in named if "NAME" not in name]  # a place to fill in
        absent += [f"{page.name}: {name}" for name in named if not any(PROJECT.glob(name))]
    assert absent == []
