"""Importing TwinProbe is cheap and brings in no framework."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from symtable import symtable

import pytest

PROJECT = Path(__file__).resolve().parents[2]
DEMO = PROJECT / "examples" / "demo"
FRAMEWORKS = {"torch", "mindspore", "paddle"}
HEAVY = ("torch", "mindspore", "paddle", "numba", "polars", "numpy", "rich", "ray", "tensorboard", "fsspec")


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_twinprobe_imports_nothing_heavy() -> None:
    assert loaded_after("import twinprobe") == set()


def test_the_proof_above_can_fail() -> None:
    assert loaded_after("import twinprobe, numpy") == {"numpy"}


def test_reading_measuring_judging_and_reporting_import_no_framework() -> None:
    code = "import twinprobe._compare.job, twinprobe._report.tables, twinprobe._judge.verdicts, twinprobe._cli"
    assert loaded_after(code) <= {"numpy"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import contextlib, io\n"
        "from twinprobe._cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])"
    )
    assert loaded_after(code) == set()


def command(*arguments: object) -> str:
    """A command run to its end, its output not shown."""
    return (
        "import contextlib, io\n"
        "from twinprobe._cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()):\n    assert main({[str(one) for one in arguments]!r}) == 0"
    )


def test_drawing_and_viewing_graphs_import_no_framework(tmp_path: Path) -> None:
    sides = ("-tp", DEMO / "target", "-gp", DEMO / "golden")
    draw = command("graph_visualize", *sides, "-o", tmp_path)
    assert not loaded_after(draw) & FRAMEWORKS
    assert len(list(tmp_path.glob("*.vis.db"))) == 1
    view = (
        "from pathlib import Path\n"
        "from werkzeug.test import Client\n"
        "from twinprobe._view.app import ViewApp\n"
        f"answer = Client(ViewApp(Path({str(tmp_path)!r}))).get('/api/open')\n"
        "assert answer.json['first']['sentence'], answer.text"
    )
    assert not loaded_after(view) & FRAMEWORKS


def test_aligning_two_runs_imports_no_framework(tmp_path: Path) -> None:
    align = command("align", DEMO / "target", DEMO / "golden", "-o", tmp_path)
    assert not loaded_after(align) & FRAMEWORKS


def names_of(module: str) -> set[str]:
    """What can be imported of a module, as its source has it."""
    path = PROJECT / "src" / Path(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return set()
    inside = {entry.stem for entry in path.glob("*")} if path.is_dir() else set()
    symbols = symtable(file.read_text(encoding="utf-8"), file.name, "exec").get_symbols()
    return inside | {one.get_name() for one in symbols if one.is_assigned() or one.is_imported()}


def test_whatever_benchmarks_tests_and_pages_import_is_there() -> None:
    """Programs that stand in a text count too: nothing else reads those of the slow tests and of the benchmarks."""
    found: set[tuple[str, str]] = set()
    pages = [path for folder in ("bench", "tests", "docs", "examples") for path in (PROJECT / folder).rglob("*")]
    for path in (path for path in pages if path.suffix in (".py", ".md", ".ipynb")):
        text = path.read_text(encoding="utf-8")
        for module, listed in re.findall(r"\bfrom (twinprobe\._[\w.]*) import (\([^()]*\)|[\w, ]+)", text):
            words = re.findall(r"\w+(?: as \w+)?", re.sub(r"#.*", "", listed))
            found |= {(module, word.partition(" ")[0]) for word in words}
    assert len(found) > 300
    own = {module: names_of(module) for module in {module for module, _ in found}}
    assert [f"{module}: {name}" for module, name in sorted(found) if name not in own[module]] == []


@pytest.mark.slow
def test_each_module_can_be_the_first_to_be_imported() -> None:
    """One interpreter, which forgets all of TwinProbe before each module: what other packages hold stays loaded."""
    program = (
        "import importlib, pkgutil, sys\n"
        "import twinprobe\n"
        "names = [found.name for found in pkgutil.walk_packages(twinprobe.__path__, 'twinprobe.')]\n"
        "assert len(names) > 250\n"
        "for name in names:\n"
        "    for known in [known for known in sys.modules if known.partition('.')[0] == 'twinprobe']:\n"
        "        del sys.modules[known]\n"
        "    try:\n"
        "        importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        if 'partially initialized' in str(error) or str(error.name).startswith('twinprobe'):\n"
        "            print(name, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == ""
