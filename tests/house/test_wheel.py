"""What is handed out: the package's own sources and pages, nothing else; and what it asks for."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from oldest_versions import oldest_versions

PROJECT = Path(__file__).resolve().parents[2]
# Sources, the page's files, and what belongs to a wheel.
SUFFIXES = {".py", ".js", ".css", ".html", ".svg", ".typed", ".yaml", ".json", ".txt"}
WHEEL_FILES = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "LICENSE"}
LARGEST_FILE = 200_000
# As few as the design names; a new one is a decision, made here too.
NEEDED = {"llvmlite", "msgspec", "numba", "numpy", "polars", "pyyaml", "rich", "rich-argparse", "werkzeug"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="the wheel is built with hatchling, which is not installed")
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = target.glob("*.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "twinprobe/__init__.py" in names
    strange = [
        name
        for name in names
        if not (
            (name.startswith("twinprobe/") and Path(name).suffix in SUFFIXES)
            or (".dist-info/" in name and Path(name).name in WHEEL_FILES)
        )
    ]
    assert strange == []
    ours = {str(path.relative_to(PROJECT / "src")) for path in (PROJECT / "src" / "twinprobe").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == ours


def test_the_wheel_holds_no_tests_no_data_and_no_binaries(wheel: zipfile.ZipFile) -> None:
    for info in wheel.infolist():
        assert not re.search(r"(^|/)(tests?|data|fixtures|__pycache__)/", info.filename), info.filename
        assert info.file_size < LARGEST_FILE, f"{info.filename} has {info.file_size} bytes: data?"
        wheel.read(info).decode("utf-8")  # a binary is no text
        assert b"\0" not in wheel.read(info), info.filename


def test_the_wheel_is_pure_and_asks_for_as_little_as_the_design_names(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename is not None
    assert wheel.filename.endswith("-py3-none-any.whl")
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    asked = re.findall(r"^Requires-Dist: ([A-Za-z0-9-]+)[^;\n]*$", wheel.read(metadata).decode(), re.MULTILINE)
    assert {name.lower() for name in asked} == NEEDED


def test_every_requirement_has_a_lower_bound_that_is_tested() -> None:
    """``./test --oldest`` installs exactly these."""
    text = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    bounds = oldest_versions(text)
    assert set(bounds) >= NEEDED | {"torch", "tensorboard", "ray", "fsspec"}
    block = re.search(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    assert len(re.findall(r'"[^"]+"', block[1])) == len(re.findall(r'"[^"]+>=[^"]+"', block[1]))
