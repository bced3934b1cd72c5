"""Two processes that talk to each other on the CPU: a folder for each rank, and the collective among their calls."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import sys

import paddle
import paddle.distributed as dist
from twinprobe.paddle import record


def work(folder):
    dist.init_parallel_env()
    paddle.seed(0)
    net = paddle.nn.Sequential(paddle.nn.Linear(4, 3), paddle.nn.ReLU())
    with record(net, folder, level="mix"):
        y = net(paddle.ones([2, 4]) * (dist.get_rank() + 1))
        dist.all_reduce(y)


if __name__ == "__main__":
    dist.spawn(work, args=(sys.argv[1],), nprocs=2, backend="gloo")
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks recorded."""
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(folder / "dump")], capture_output=True, text=True, check=False, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert sorted(path.name for path in (folder / "dump" / "step0").iterdir()) == ["rank0", "rank1"]
    files = [folder / "dump" / "step0" / f"rank{rank}" / "dump.json" for rank in (0, 1)]
    return [json.loads(file.read_text())["data"] for file in files]


def test_both_ranks_have_the_same_calls(dumps: list[dict[str, Any]]) -> None:
    assert dumps[0].keys() == dumps[1].keys()
    assert any(name.startswith("Module.0.Linear") for name in dumps[0])


def test_the_sum_over_the_ranks_is_what_both_hold_afterwards(dumps: list[dict[str, Any]]) -> None:
    calls = [next(value for name, value in data.items() if "all_reduce" in name) for data in dumps]
    given = [call["input_args"][0]["Norm"] for call in calls]
    assert given[1] > given[0] > 0
    results = [call["output"][0] for call in calls]
    assert results[0]["Norm"] == results[1]["Norm"] > given[1]
