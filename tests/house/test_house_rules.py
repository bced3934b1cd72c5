"""The rules of the house that a machine can check: style, types, layers, files."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import grimp
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


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports inside functions and for types only count as well: such modules cannot be read one after the other."""
    graph = grimp.build_graph("twinprobe", include_external_packages=False, exclude_type_checking_imports=False)
    imported = {
        module: graph.find_modules_directly_imported_by(module) - {"twinprobe"}  # rooms ask it for the version alone
        for module in graph.modules - {"twinprobe"}
    }
    assert len(imported) > 250
    assert _in_circles(imported) == set()
    bottom, top = "twinprobe._lazy", "twinprobe._report.tables"
    assert bottom in imported[top]
    assert _in_circles(imported | {bottom: {top}}) >= {bottom, top}  # the proof can fail


def _in_circles(imported: dict[str, set[str]]) -> set[str]:
    """What is left once all that imports nothing else that is left has gone, and all that nothing imports."""
    left = set(imported)
    while True:
        read = {other for module in left for other in imported[module]}
        gone = {module for module in left if module not in read or not imported[module] & left}
        if not gone:
            return left
        left -= gone


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


def test_documents_link_to_what_exists_and_import_nothing_private() -> None:
    pages = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/*.md"), PROJECT / "compat/README.md"]
    broken = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            linked = page.parent / path if path else page
            if not linked.exists() or (anchor and anchor not in _anchors(linked)):
                broken.append(f"{page.name}: {target}")
        broken += [f"{page.name}: {name}" for name in re.findall(r"\btwinprobe\._\w+", text)]
    assert broken == []


def test_the_index_lists_every_page() -> None:
    index = (PROJECT / "docs/index.md").read_text(encoding="utf-8")
    pages = sorted(page.name for page in (PROJECT / "docs").glob("*.md") if page.name != "index.md")
    assert len(pages) > 20
    assert [name for name in pages if f"({name})" not in index] == []


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
