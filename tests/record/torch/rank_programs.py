"""Programs for two real ranks, one process each."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import all_reduce as imported_early

from warm_python import run_warm


def start_ranks(program: str, folder: Path, *words: str) -> list[subprocess.CompletedProcess[str]]:
    """Run a program on two ranks and wait for both; their dump goes to ``folder / "dump"``.

    Several programs (``one+another``) run in one pair of processes, each with a folder of its name in there: starting
    takes longer than all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import rank_programs; rank_programs.main()"
    done = run_warm(code, program, str(folder), *words)
    texts = [[(folder / f"rank{rank}.{kind}").read_text() for kind in ("out", "error")] for rank in range(2)]
    assert done.returncode == 0, done.stderr + "".join(error for _, error in texts)
    return [subprocess.CompletedProcess(program, 0, *both) for both in texts]


def collectives(dump: str, *words: str) -> None:
    """Every kind of exchange. The word ``fault`` makes rank 1 scale its activations wrongly before they are summed."""
    from twinprobe.torch import PrecisionDebugger

    rank = dist.get_rank()
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    debugger = PrecisionDebugger(dump_path=dump, level="mix", risk_level="ALL" if "all" in words else "FOCUS")
    debugger.start(model=model)
    y = model(torch.linspace(-1, 1, 12).reshape(3, 4) * (rank + 1))
    z = torch.mul(y, FaultyScale.value if "fault" in words and rank == 1 else torch.full((1,), 0.5))
    part = z.detach().clone()
    dist.all_reduce(part, op=dist.ReduceOp.SUM)
    dist.all_reduce(part, group=dist.group.WORLD)
    pieces = [torch.zeros_like(part) for _ in range(2)]
    dist.all_gather(pieces, part)
    dist.broadcast(part, src=0)
    if rank == 0:
        dist.send(part, dst=1)
    else:
        dist.recv(torch.zeros_like(part), src=0)
    other = 1 - rank
    box = torch.zeros_like(part)
    exchange = [dist.P2POp(dist.isend, part, other), dist.P2POp(dist.irecv, box, other)]
    for request in dist.batch_isend_irecv(exchange):
        request.wait()
    whole = torch.zeros(6, 2)
    dist.all_gather_into_tensor(whole, part)
    waiting = dist.all_reduce(torch.ones(2), async_op=True)
    waiting.wait()
    torch.abs(box).sum()
    z.sum().backward()
    debugger.stop()
    debugger.step()
    debugger.close()


class FaultyScale:
    value = torch.full((1,), 0.75)


class Kernel(torch.autograd.Function):
    """A kernel that the recorder does not see into."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        return torch.from_numpy(x.detach().numpy() * scale)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return torch.from_numpy(gradient.numpy() * ctx.scale), None


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Kernel.apply(x, self.scale)


class Ring(nn.Module):
    """A layer whose activations are summed over the ranks."""

    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.scaled = Scaled(2.0 if faulty else 1.0)
        self.second = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.scaled(torch.tanh(self.first(x)))
        total = h.detach().clone()
        dist.all_reduce(total)
        return self.second(h + total)


class Wrapped(nn.Module):
    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.ring = Ring(faulty)
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.ring(x))


def ring(dump: str, *words: str) -> None:
    """A model with an exchange inside, recorded for each word; ``target`` doubles rank 1's activations before it."""
    from twinprobe.torch import record

    rank = dist.get_rank()
    for side in words:
        torch.manual_seed(3)
        model = Wrapped(side == "target" and rank == 1)
        with record(model, f"{dump}/{side}", level="mix") as recording:
            for _ in range(2):
                model(torch.linspace(-1, 1, 8).reshape(2, 4) + rank).sum().backward()
                recording.step()


def ddp(dump: str, *words: str) -> None:
    """DistributedDataParallel, three steps; prints a digest of everything that training changed."""
    from contextlib import nullcontext

    from twinprobe.torch import record

    torch.manual_seed(3)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    level = "mix" if "mix" in words else "L0"
    with record(model, dump, level=level) if "record" in words else nullcontext():
        for _ in range(3):
            model(torch.randn(5, 4, generator=generator)).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    numbers = [one.detach().reshape(-1) for one in model.parameters()]
    numbers += [one.reshape(-1) for state in optimizer.state.values() for one in state.values()]
    print("digest", torch.cat(numbers).numpy().tobytes().hex())


def _fsdp2(model: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    for block in model:
        fully_shard(block)
    fully_shard(model)
    return model


def _fsdp2_mixed(model: nn.Sequential) -> nn.Module:
    """bfloat16 parameters, and parameters that stay whole between forward and backward."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model:
        fully_shard(block, mp_policy=policy, reshard_after_forward=False)
    fully_shard(model, mp_policy=policy)
    return model


def _fsdp1(model: nn.Sequential) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    for at, block in enumerate(model):
        model[at] = FullyShardedDataParallel(block, device_id=torch.device("cpu"), use_orig_params=True)
    return FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)


def _ddp(model: nn.Sequential) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def _tensor_parallel(model: nn.Sequential) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (2,))
    for block in model:
        parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return model


SPLIT = {one.__name__.strip("_"): one for one in (_fsdp2, _fsdp2_mixed, _fsdp1, _ddp, _tensor_parallel)}


def split(dump: str, kind: str, *runs: str) -> None:
    """Three steps of a training that is split over the ranks, once unwatched and once for each run, a word such as
    ``mix:tensor:statistics`` (level, task, summary_mode). Prints a digest of everything that training changed."""
    from contextlib import nullcontext

    from twinprobe.torch import record

    for run in ("", *runs):
        torch.manual_seed(3)
        model = SPLIT[kind](nn.Sequential(*(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in "ab")))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        # With tensor parallelism both ranks see the same data; otherwise each has its own.
        generator = torch.Generator().manual_seed(0 if kind == "tensor_parallel" else dist.get_rank())
        options: dict[str, Any] = dict(zip(("level", "task", "summary_mode"), run.split(":"), strict=bool(run)))
        losses = []
        with record(model, f"{dump}/{run.replace(':', '_')}", **options) if run else nullcontext() as recording:
            for _ in range(3):
                loss = model(torch.randn(5, 4, generator=generator)).float().pow(2).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
                if recording is not None:
                    recording.step()
        numbers = [torch.stack(losses)]
        for one in (*model.parameters(), *(item for state in optimizer.state.values() for item in state.values())):
            numbers.append((one.to_local() if hasattr(one, "to_local") else one).detach().float().reshape(-1))
        print("digest", run or "plain", torch.cat(numbers).numpy().tobytes().hex())


def dtensor(dump: str, *_words: str) -> None:
    """A sharded tensor goes through a recorded module."""
    from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor

    from twinprobe.torch import record

    mesh = DeviceMesh("cpu", torch.arange(2))
    model = nn.Sequential(nn.Identity())
    with record(model, dump, level="L0", task="tensor"):
        model(distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0)]))
        model(distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Replicate()]))


def more_collectives(dump: str, *_words: str) -> None:
    """The rarer exchanges, a direct isend, and a function that was imported before the recorder came."""
    from twinprobe.torch import record

    rank = dist.get_rank()
    with record(None, dump, level="L1"):
        imported_early(torch.full((2,), float(rank + 1)))
        if rank == 0:
            dist.isend(torch.ones(2), 1).wait()
        else:
            dist.irecv(torch.zeros(2), 0).wait()
        dist.reduce(torch.ones(2), dst=0)
        parts = [torch.zeros(2), torch.zeros(2)]
        dist.gather(torch.full((2,), float(rank)), parts if rank == 0 else None, dst=0)
        dist.scatter(torch.zeros(2), [torch.ones(2), torch.ones(2)] if rank == 0 else None, src=0)
        dist.all_to_all_single(torch.zeros(4), torch.arange(4.0))
        dist.reduce_scatter_tensor(torch.zeros(2), torch.arange(4.0))
        dist.barrier()


PROGRAMS: dict[str, Callable[..., None]] = {
    "collectives": collectives,
    "more_collectives": more_collectives,
    "ring": ring,
    "ddp": ddp,
    "split": split,
    "dtensor": dtensor,
}


def main() -> None:
    """Fork both ranks, which write what they print to files of the folder, and wait for them."""
    program, folder, *words = sys.argv[1:]
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if ranks[rank] == 0:
            run_rank(rank, program, Path(folder), words)
    ends = [os.waitpid(one, 0)[1] for one in ranks]
    sys.exit(any(ends))


def run_rank(rank: int, program: str, folder: Path, words: list[str]) -> None:
    for number, name in ((1, "out"), (2, "error")):
        os.dup2(os.open(folder / f"rank{rank}.{name}", os.O_CREAT | os.O_WRONLY), number)
    signal.alarm(600)  # ends a hang
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    programs, dump = program.split("+"), f"{folder}/dump"
    for name in programs:
        PROGRAMS[name](f"{dump}/{name}" if len(programs) > 1 else dump, *words)
    dist.barrier()
    gc.collect()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down
