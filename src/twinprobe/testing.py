"""Tests that fail where numbers move: a pytest plugin with the fixture ``twin``, and two assertions.

The plugin is found by pytest itself once TwinProbe is installed. It imports nothing until a test uses it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import copyfile, rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from twinprobe._api import Comparison, PathLike
    from twinprobe._runs.run import Run

    Source = PathLike | Run | Mapping[str, Any]

__all__ = ["Twin", "assert_models_agree", "assert_runs_agree", "twin"]

STORE = "__twin__"  # the folder beside a test file that holds its baselines
_KEPT = ("dump.json", "construct.json")
_UNFIT = re.compile(r"[^\w.=-]+")
_LEAF = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "norm"}


def assert_runs_agree(
    target: Source, golden: Source, *, noise: float = 64.0, report: PathLike | None = None, **options: Any
) -> Comparison:
    """Fail with the summary and the path of a html report unless two runs agree.

    Each side is whatever ``twinprobe.compare`` takes; so are the options. ``noise`` is how many machine epsilons of
    relative error count as rounding.
    """
    from twinprobe._api import compare

    found = compare(target, golden, rounding=noise, **options)
    if not found:
        pages = found.save(report or mkdtemp(prefix="twinprobe-"), "html")
        _fail(f"{found.summary}\n\nreport: {pages[0]}")
    return found


def assert_models_agree(model: Any, golden: Any, inputs: Any, **options: Any) -> Any:
    """Fail unless two live models compute the same from the same inputs; options are those of ``auto_diff``.

    The weights of ``golden`` are copied to ``model`` first, unless ``auto_weights=False``.
    """
    from twinprobe._live.auto_diff import auto_diff

    found = auto_diff(golden, model, inputs, quiet=True, **options)
    if not found:
        page = found.save(mkdtemp(prefix="twinprobe-"), ("html",))[0]
        _fail(f"{found.summary}\n\nreport: {page}")
    return found


class Twin:
    """Compares what a test computes with what it computed when its baseline was stored."""

    def __init__(self, store: Path, scratch: Path, *, update: bool) -> None:
        self._store, self._scratch, self._update = store, scratch, update
        self._count = 0

    assert_runs_agree = staticmethod(assert_runs_agree)
    assert_models_agree = staticmethod(assert_models_agree)

    @contextmanager
    def record(
        self, model: Any, name: str = "", *, noise: float = 64.0, level: str = "mix", **options: Any
    ) -> Iterator[None]:
        """Record what a model computes inside the ``with`` block, and check it against the baseline."""
        from twinprobe._api import record

        folder = self._scratch / f"run{self._count}"
        with record(model, str(folder), level=level, task="statistics", **options):
            yield
        self.check(folder, name, noise=noise)

    def check(self, source: Source, name: str = "", *, noise: float = 64.0) -> None:
        """Compare a run of statistics, or a dictionary of arrays, with the baseline; store it with --twin-update.

        A test may check several; they are numbered unless they have names.
        """
        self._count += 1
        kept = self._store / (_UNFIT.sub("_", name) or str(self._count))
        fresh = self._scratch / f"fresh{self._count}"
        fresh.mkdir(parents=True)
        _statistics(source, fresh)
        if self._update:
            rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            for file in fresh.iterdir():
                copyfile(file, kept / file.name)
        elif not kept.is_dir():
            _fail(f"no baseline in {kept}\nstore one with: pytest --twin-update")
        else:
            assert_runs_agree(fresh, kept, noise=noise, report=self._scratch / f"report{self._count}")


def _statistics(source: Source, folder: Path) -> None:
    """The statistics of a run, without its tensors, in a folder of their own."""
    from twinprobe._api import open as open_run
    from twinprobe.errors import BadInput

    run = source if not isinstance(source, str | os.PathLike | Mapping) else open_run(source)
    if run.content is None and not run.single_points:
        if run.task != "statistics":
            raise BadInput("a baseline is made of statistics", where=run.path, hint="record with task='statistics'")
        for name in _KEPT:
            if (run.folder / name).is_file():
                copyfile(run.folder / name, folder / name)
        return
    rows = run.table.select("name", "dtype", "shape", *_LEAF.values()).iter_rows(named=True)
    data = {
        row["name"]: {"type": "Tensor", "dtype": row["dtype"], "shape": json.loads(row["shape"]),
                      **{field: row[column] for field, column in _LEAF.items()}}
        for row in rows
    }  # fmt: skip
    header = {"task": "statistics", "level": "debug", "framework": run.framework, "data": data}
    (folder / "debug.json").write_text(json.dumps(header, indent=1))


def _fail(text: str) -> None:
    """Fail the test; where GitHub Actions shows a page for the step, put the words there too."""
    page = os.environ.get("GITHUB_STEP_SUMMARY")
    if page:
        test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
        with Path(page).open("a", encoding="utf-8") as file:
            file.write(f"### {test or 'twinprobe'}\n\n```\n{text}\n```\n")
    pytest.fail(text, pytrace=False)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that stores baselines."""
    group = parser.getgroup("twinprobe", "numbers that must not move")
    group.addoption("--twin-update", action="store_true", help="store what tests compute as their new baselines")


@pytest.fixture
def twin(request: pytest.FixtureRequest, tmp_path: Path) -> Twin:
    """Check what this test computes against its stored baseline: ``twin.record``, ``twin.check``."""
    name = _UNFIT.sub("_", request.node.name)
    store = request.path.parent / STORE / request.path.stem / name
    return Twin(store, tmp_path / "twin", update=request.config.getoption("--twin-update"))
