"""Two processes that talk to each other on the CPU: a folder for each rank, and the collective among their calls."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import sys

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_rank, init

from twinprobe.mindspore import record

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
init()
ms.set_seed(0)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense, self.all_reduce = nn.Dense(4, 3, has_bias=False), ops.AllReduce()

    def construct(self, x):
        return self.all_reduce(self.dense(x))


net = Net()
with record(net, sys.argv[1], level="mix"):
    net(ms.Tensor(np.ones((2, 4), np.float32) * (get_rank() + 1)))
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the two ranks recorded."""
    folder = tmp_path_factory.mktemp("ranks")
    program = folder / "program.py"
    program.write_text(PROGRAM)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    scripts = Path(sys.executable).parent
    command = [str(scripts / "msrun"), "--worker_num=2", "--local_worker_num=2", f"--master_port={port}", "--join=True"]
    done = subprocess.run(
        [*command, f"--log_dir={folder / 'log'}", str(program), str(folder / "dump")],
        capture_output=True, text=True, check=False, timeout=1800,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "GLOG_v": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert sorted(path.name for path in (folder / "dump" / "step0").iterdir()) == ["rank0", "rank1"]
    files = [folder / "dump" / "step0" / f"rank{rank}" / "dump.json" for rank in (0, 1)]
    return [json.loads(file.read_text())["data"] for file in files]


def test_both_ranks_have_the_same_calls(dumps: list[dict[str, Any]]) -> None:
    assert dumps[0].keys() == dumps[1].keys()
    assert any(name.startswith("Cell.dense.Dense") for name in dumps[0])


def test_the_sum_over_the_ranks_is_what_both_hold_afterwards(dumps: list[dict[str, Any]]) -> None:
    calls = [next(value for name, value in data.items() if "AllReduce" in name) for data in dumps]
    given = [call["input_args"][0]["Norm"] for call in calls]
    results = [call["output"][0]["Norm"] for call in calls]
    assert given[1] == pytest.approx(2 * given[0])
    assert results == pytest.approx([3 * given[0]] * 2)
