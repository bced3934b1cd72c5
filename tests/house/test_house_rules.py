"""The rules of the house that a machine can check: style, types, layers, files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[2]


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=["ruff check", "ruff format", "mypy --strict"],
)
def test_code_is_clean(command: tuple[str, ...]) -> None:
    run(*command)


def test_a_package_imports_only_from_those_below_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        cwd=PROJECT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_file_holds_a_path_of_a_machine_or_the_host_of_a_registry() -> None:
    forbidden = re.compile(
        "|".join(["/" + "root/", "/" + "work/", "pypi" + r"\.org", "files" + r"\.pythonhosted", "npm" + r"js\.org"])
    )
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    found = []
    for name in filter(None, listed):
        path = PROJECT / name
        if path.suffix in {".png", ".pt", ".npy", ".xlsx", ".db"} or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if forbidden.search(line):
                found.append(f"{name}:{number}")
    assert found == []


def test_what_contributing_names_is_there() -> None:
    text = (PROJECT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"(?<![.\w/-])(?:src|tests|docs|bench)/[\w./]*\w", text)
    assert len(named) > 10
    assert [name for name in named if not (PROJECT / name).exists()] == []
    for room in re.findall(r"`(_?[a-z]+)/`", text):
        assert any((PROJECT / place / room).is_dir() for place in ("src/twinprobe", ".")), room
    for table, file in re.findall(r"`(\w+)` (?:in |\()`((?:src|tests)/[\w./]+)`", text):
        assert re.search(rf"^(class )?{table}\b", (PROJECT / file).read_text(encoding="utf-8"), re.M), (table, file)
