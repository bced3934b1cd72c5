"""Importing TwinProbe is cheap and brings in no framework."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("torch", "mindspore", "paddle", "numba", "polars", "numpy", "rich", "ray", "tensorboard", "fsspec")


def loaded_after(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_twinprobe_imports_nothing_heavy() -> None:
    assert loaded_after("import twinprobe") == set()


def test_the_proof_above_can_fail() -> None:
    assert loaded_after("import twinprobe, numpy") == {"numpy"}


def test_reading_measuring_judging_and_reporting_import_no_framework(tmp_path: object) -> None:
    code = "import twinprobe._compare.job, twinprobe._report.columns, twinprobe._judge.verdicts, twinprobe._cli"
    assert loaded_after(code) <= {"numpy"}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import contextlib, io\n"
        "from twinprobe._cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main(['--help'])"
    )
    assert loaded_after(code) == set()
