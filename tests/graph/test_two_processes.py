"""Large graphs are drawn by two processes: the file is the same, and so are the errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from graph_drawing import draw, only, table

from support import forward, tensor, value, write_dump

TABLES = ("tb_nodes", "tb_stack", "tb_config", "tb_twinprobe", "tb_twinprobe_summary")
CALLS = 5000


def large_dump(folder: Path, seed: int) -> Path:
    """A dump of more than 2 MB, half of whose numbers depend on the seed."""
    same, own = np.random.default_rng(0), np.random.default_rng(seed)
    data, parents, top = {}, {}, "Module.net.Net.forward.0"
    for at in range(CALLS):
        name = f"Functional.op{at % 7}.{at // 7}.forward"
        rng = own if at % 2 else same
        size = 10.0 ** rng.uniform(-9, 9)
        leaf = tensor(high=size, low=-size, mean=float(rng.normal()), norm=float(rng.random()))
        data[name] = forward([leaf, None, value("it's"), value("torch.float32", "torch.dtype")], [leaf], dim=value(1))
        parents[name] = top if at % 5 else None
    data[top] = forward([], [tensor()])
    parents[top] = None
    path = write_dump(folder, data, level="mix", parents=parents, stacks={"0": [list(data), ["File a.py, line 1"]]})
    assert path.stat().st_size > 2 << 20
    return folder


def command(target: Path, golden: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Draw in a process of its own, which may fork since nothing heavy is loaded there yet."""
    words = ["graph_visualize", "-tp", str(target), "-gp", str(golden), "-o", str(out), "-oc"]
    program = "import sys; from twinprobe._cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("large")
    return large_dump(folder / "target", 1), large_dump(folder / "golden", 2)


def test_two_processes_write_what_one_would(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    done = command(*dumps, tmp_path / "two")
    assert done.returncode == 0, done.stderr
    two = only(tmp_path / "two", "*.vis.db")
    (one,) = draw(*dumps, tmp_path / "one", overflow_check=True).files
    for name in TABLES:
        assert table(two, name) == table(one, name), name
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [two.name, "index.html"]


def test_an_error_of_the_trusted_run_is_told_as_ever(dumps: tuple[Path, Path], tmp_path: Path) -> None:
    bad = large_dump(tmp_path / "bad", 3)
    (bad / "construct.json").write_text("{}")
    done = command(dumps[0], bad, tmp_path / "out")
    assert done.returncode == 2
    assert "construct.json is empty" in done.stderr
    assert "Traceback" not in done.stderr
    (bad / "dump.json").write_text((bad / "dump.json").read_text().replace('"statistics"', '"nothing"'))
    done = command(dumps[0], bad, tmp_path / "out")
    assert done.returncode == 2
    assert "nothing" in done.stderr
