"""Do PaDiff's own tests pass with our padiff?

    git clone https://github.com/PaddlePaddle/PaDiff checkout
    python bench/compat/padiff_suites.py checkout [--suite v0.2.0] [--suite develop] [--details]

Takes the tests of both versions out of a clone of PaDiff (nothing of it is part of this repository), runs each file
in a process of its own, as PaDiff does, and prints a table. Run it with a Python that has paddle, torch and pytest.
Exit code 1 if a test fails.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[2]
SUITES = ("v0.2.0", "develop")
PASS, FAIL, OUT = "pass", "fail", "left out"


def main() -> int:
    """Run the suites, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, help="a clone of PaDiff, with its tags")
    parser.add_argument("--suite", action="append", help="a tag or branch; v0.2.0 and develop by default")
    parser.add_argument("--details", action="store_true", help="print what failing tests said")
    arguments = parser.parse_args()
    rows: list[tuple[str, str, str, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for suite in arguments.suite or SUITES:
            tests = take_out(arguments.checkout, suite, Path(folder, suite))
            for file in sorted(tests.glob("test_*.py")):
                for name, outcome, why in run_file(file, details=arguments.details):
                    rows.append((suite, f"{file.stem}::{name}", outcome, why))
                    print(f"{outcome:9}{suite} {rows[-1][1]}  {why}", flush=True)
    print(f"\n| suite | {PASS} | {FAIL} | {OUT} |\n| --- | --- | --- | --- |")
    for suite in dict.fromkeys(row[0] for row in rows):
        counts = Counter(row[2] for row in rows if row[0] == suite)
        print(f"| {suite} | {counts[PASS]} | {counts[FAIL]} | {counts[OUT]} |")
    named = [row for row in rows if row[2] != PASS]
    if named:
        print(f"\n| not passed | suite | {OUT} or {FAIL} | reason |\n| --- | --- | --- | --- |")
        for suite, name, outcome, why in named:
            print(f"| `{name}` | {suite} | {outcome} | {why} |")
    return int(any(row[2] == FAIL for row in rows))


def take_out(checkout: Path, suite: str, folder: Path) -> Path:
    """The tests of one version, in a folder of their own."""
    for name in (suite, f"origin/{suite}"):
        done = subprocess.run(["git", "-C", checkout, "archive", name, "tests"], capture_output=True, check=False)
        if done.returncode == 0:
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                archive.extractall(folder, filter="data")
            return folder / "tests"
    sys.exit(f"{checkout}: {done.stderr.decode().strip()}")


def run_file(file: Path, *, details: bool) -> list[tuple[str, str, str]]:
    """(test, outcome, reason) for each test of a file."""
    source = file.read_text(encoding="utf-8")
    tests = [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test")
    ]
    reason = why_left_out(source)
    if reason:
        return [(name, OUT, reason) for name in tests]
    report = file.with_suffix(".xml")
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT / "compat/src"), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", file.name],
        cwd=file.parent, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    found = []
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = next((one for one in case if one.tag in ("failure", "error")), None)
        found.append((case.get("name") or "", PASS if wrong is None else FAIL, _message(wrong)))
    if details and any(outcome == FAIL for _, outcome, _ in found):
        print(done.stdout)
    return found


def why_left_out(source: str) -> str:
    """Why a file cannot be asked of another implementation; empty where it can."""
    inner = re.findall(r"^(?:from|import) (padiff\.[\w.]+)", source, re.MULTILINE)
    if inner:
        return f"imports PaDiff's inner modules ({', '.join(dict.fromkeys(inner))})"
    if ".report." in source:
        return "counts the items of PaDiff's inner report"
    if "import torchvision" in source and importlib.util.find_spec("torchvision") is None:
        return "needs torchvision, which is not installed"
    return ""


def _message(wrong: ElementTree.Element | None) -> str:
    return "" if wrong is None else (wrong.get("message") or "").partition("\n")[0][:150].replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
