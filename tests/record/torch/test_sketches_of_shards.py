"""Sketches of DTensors, recorded on each rank, add up to the sketch of the whole tensor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from twinprobe._cli import main
from twinprobe._measure.sketch import combined, estimate, sketch
from twinprobe._runs.run import open_run
from twinprobe._runs.sketches import PARTIAL, SHARD
from twinprobe._runs.tensors.elements import HostTensor
from warm_python import run_warm

torch = pytest.importorskip("torch")

PROGRAM = """
import os, sys
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from twinprobe.torch import PrecisionDebugger

folder, layout, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
ranks = []
for rank in range(world):
    ranks.append(os.fork())
    if ranks[rank] == 0:
        break
else:
    ends = [os.waitpid(one, 0)[1] for one in ranks]
    sys.exit(any(ends))
os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
torch.manual_seed(0)
weight, tokens = torch.randn(52, 36), torch.randn(2, 30, 36)
model = None
debugger = PrecisionDebugger(dump_path=f"{folder}/dump", level="L1", risk_level="ALL")

if layout == "fsdp":
    from torch.distributed.fsdp import fully_shard
    model = torch.nn.Sequential(torch.nn.Linear(36, 52), torch.nn.Linear(52, 36))
    whole = [one.detach().clone() for one in model.parameters()]
    for part in (*model, model):
        fully_shard(part)
    debugger.start()
    shards = [one * 1 for one in model.parameters()]
elif layout == "rolled":  # one process, and the same numbers in another order
    whole = [tokens.flatten().roll(1).view(2, 30, 36)]
    debugger.start()
    shards = [whole[0] * 1]
elif layout == "sequence":
    mesh = init_device_mesh("cpu", (world,))
    whole = [tokens]
    debugger.start()
    shards = [distribute_tensor(tokens, mesh, [Shard(1)]) * 1]
elif layout == "gathered":  # what a collective still writes to
    from torch.distributed._functional_collectives import AsyncCollectiveTensor
    mesh = init_device_mesh("cpu", (world,))
    whole = [tokens]
    own = tokens.chunk(world, 1)[rank].contiguous()
    debugger.start()
    shards = [DTensor.from_local(AsyncCollectiveTensor(own), mesh, [Shard(1)], run_check=False).view(2, 30, 36)]
elif layout == "partial":
    mesh = init_device_mesh("cpu", (world,))
    parts = [torch.randn(40, 12) for _ in range(world)]
    whole = [sum(parts)]
    debugger.start()
    shards = [DTensor.from_local(parts[rank], mesh, [Partial()]).view(40, 12)]
else:  # columns and rows of a matrix, as tensor parallelism has them
    mesh = init_device_mesh("cpu", (world,))
    whole = [weight, weight, weight]
    debugger.start()
    shards = [distribute_tensor(weight, mesh, [place]) * 1 for place in (Shard(0), Shard(1), Replicate())]
debugger.stop()
debugger.close()
if rank == 0:
    np.savez(f"{folder}/whole.npz", *[one.numpy() for one in whole])
dist.barrier()
dist.destroy_process_group()
os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down
"""


def recorded(folder: Path, layout: str, world: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The whole tensors, and for each of them the sketches that the ranks recorded of the shards."""
    if not hasattr(pytest.importorskip("torch.distributed.tensor"), "DTensor"):
        pytest.skip("this torch has no public DTensor")
    if not (folder / "whole.npz").exists():
        done = run_warm(PROGRAM, str(folder), layout, str(world))
        assert done.returncode == 0, done.stderr
    runs = [open_run(folder / f"dump/step0/rank{rank}") for rank in range(world)]
    with np.load(folder / "whole.npz") as file:
        whole = [file[name] for name in file.files]
    name = "view" if layout in ("partial", "gathered") else "__mul__|mul"
    rows = []
    for run in runs:
        assert run.sketches is not None
        outputs = run.table["name"].str.contains(rf"(?:{name})[._].*forward\.output")
        wanted = outputs & run.table["type"].str.contains("DTensor")
        rows.append(run.sketches.of(np.flatnonzero(wanted.to_numpy())))
    assert {len(one) for one in rows} == {len(whole)}
    return whole, [np.stack([one[at] for one in rows]) for at in range(len(whole))]


CASES = [
    "sequence-2",
    "gathered-2",
    *(pytest.param(case, marks=pytest.mark.slow) for case in ("tensor-2", "tensor-4", "fsdp-2", "partial-2")),
]


@pytest.fixture(scope="module")
def sequence(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sequence")
    recorded(folder, "sequence", 2)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_what_ranks_record_adds_up_to_the_whole(sequence: Path, tmp_path: Path, case: str) -> None:
    layout, _, world = case.partition("-")
    folder = sequence if layout == "sequence" else tmp_path
    for whole, parts in zip(*recorded(folder, layout, int(world)), strict=True):
        expected = sketch(HostTensor("float32", whole.shape, whole.reshape(-1)))
        if (parts["count"] == whole.size).all() and layout != "partial":  # a replica
            assert (parts["flags"] & SHARD == 0).all()
            together = parts[:1]
        else:
            assert (parts["flags"] & (PARTIAL if layout == "partial" else SHARD) != 0).all()
            together = combined(parts)
        assert together["sums"] == pytest.approx(expected["sums"], rel=1e-6, abs=1e-5)
        if layout != "partial":
            assert estimate(together, expected).upper[0] < 1e-6


def test_runs_in_other_layouts_are_compared_by_what_the_sketches_add_up_to(sequence: Path, tmp_path: Path) -> None:
    done = run_warm(PROGRAM, str(tmp_path), "rolled", "1")
    assert done.returncode == 0, done.stderr
    words = ["compare", "-tp", str(sequence / "dump"), "-gp", str(tmp_path / "dump")]
    assert main([*words, "-o", str(tmp_path), "--format", "csv"]) == 0
    table = pl.read_csv(next(tmp_path.glob("step0/*.csv")), infer_schema_length=None)
    output = table.row(by_predicate=pl.col("NPU Name") == "Tensor.__mul__.0.forward.output.0", named=True)
    assert (output["NPU max"], output["NPU min"]) == (output["Bench max"], output["Bench min"])
    assert output["Relative Error"] == pytest.approx(2**0.5, rel=0.3)  # the norms are equal
    low, high = map(float, output["Relative Error Bounds"].split(" to "))
    assert low < 2**0.5 < high
