"""The benchmark of many ranks prints its figures, whatever its size, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.mark.slow
def test_a_small_run_prints_every_figure_and_clears_up(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    if not BENCH.is_dir():
        pytest.skip("the benchmarks are not here")
    words = ["scale", "--ranks", "4", "--calls", "60", "--tensor-gb", "0.3", "--folder", str(tmp_path)]
    done = subprocess.run([sys.executable, str(BENCH), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for figure in (
        "4 ranks x 60 statistics entries", "lost, processor", "from memory", "from disk", "GB on disk",
        "MB a rank", "10,000 ranks x 20,000 entries", "the benchmark took",
    ):  # fmt: skip
        assert figure in done.stdout
    assert list(tmp_path.iterdir()) == []
