"""One small language model trained in any parallel layout on gloo, recorded, with or without a planted fault.

    python parallel_training.py OUTPUT LAYOUT RANKS LEVEL TASK DTYPE FAULT

Every layout starts from the same weights, sees the same words and computes the same function as ``single``. A fault is
one of the words below; it is planted on the last rank unless its name says otherwise. ``scaled:1:PATH:1.5`` multiplies
what rank 1 holds of a parameter, ``frozen:0:PATH`` keeps it from being trained there. The losses are printed.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, INNER, HEADS, LAYERS, WORDS, BATCH, LENGTH, EXPERTS, STEPS = 16, 32, 4, 2, 32, 4, 8, 4, 2


class Layout:
    """What a layer needs to know: its rank, how many there are, and the fault."""

    kind, rank, ranks, fault, layers, experts = "single", 0, 1, "none", LAYERS, "experts"

    @classmethod
    def has(cls, fault: str, *, rank: int = -1) -> bool:
        return cls.fault == fault and (rank == -2 or cls.rank == (rank if rank >= 0 else cls.ranks - 1))


def summed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x)
    return x


def gathered(x: torch.Tensor, dim: int) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(Layout.ranks)]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, dim)


def own_part(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.chunk(Layout.ranks, dim)[Layout.rank].clone()


class Exchange(torch.autograd.Function):
    """A function of all ranks' tensors forward, and its mirror backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, there: Callable[..., Any] | None, back: Callable[..., Any] | None) -> Any:
        ctx.back = back
        return there(x) if there is not None else x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return (ctx.back(grad) if ctx.back is not None else grad), None, None


def copy_in(x: torch.Tensor) -> torch.Tensor:
    """The same input on all ranks; the gradients of their parts add up."""
    return Exchange.apply(x, None, None if Layout.fault == "no_gradient_reduce" else summed)


def sum_out(x: torch.Tensor) -> torch.Tensor:
    """The sum of the ranks' partial outputs."""
    return Exchange.apply(x, summed, None)


def to_sequence(x: torch.Tensor) -> torch.Tensor:
    """The sum of the partial outputs, of which each rank keeps a part of the sequence."""
    return Exchange.apply(x, lambda y: own_part(summed(y), 1), lambda y: gathered(y, 1))


def from_sequence(x: torch.Tensor) -> torch.Tensor:
    return Exchange.apply(x, lambda y: gathered(y, 1), lambda y: own_part(summed(y), 1))


class ColumnParallelLinear(nn.Linear):
    """Rows of the weight, so a part of the outputs, on each rank."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = from_sequence(x) if Layout.kind == "sp" else copy_in(x)
        return super().forward(x)


class Row(nn.Linear):
    """A layer that tensor parallel ranks cut along its inputs: its bias is added to the sum."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if Layout.biased:  # all at once, as one process may
            return super().forward(x)
        return functional.linear(x, self.weight) + self.bias


class RowParallelLinear(nn.Linear):
    """Columns of the weight on each rank; the partial outputs add up."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, self.weight)
        bias = self.bias
        if Layout.has("bias_every_rank", rank=-2) and self.first:
            y = y + bias
        if Layout.fault == "no_all_reduce" and self.first:
            y = Exchange.apply(y, None, None)
        elif Layout.fault == "world_scale" and self.first:
            y = sum_out(y) / Layout.ranks
        elif Layout.fault == "double_reduce" and self.first:
            y = sum_out(sum_out(y))
        else:
            y = to_sequence(y) if Layout.kind == "sp" else sum_out(y)
        if Layout.has("bias_dropped") and self.first:
            return y
        return y + bias


class VocabParallelEmbedding(nn.Embedding):
    """Rows of the table on each rank; words of other ranks give zeros."""

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        own = WORDS // Layout.ranks
        start = own * Layout.rank
        inside = (words >= start) & (words < start + own)
        shift = 1 if Layout.has("vocabulary_offset") else 0
        y = super().forward(((words - start + shift) % own) * inside) * inside.unsqueeze(-1)
        return to_sequence(y) if Layout.kind == "sp" else sum_out(y)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        if Layout.fused:
            self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        else:
            self.q = nn.Linear(WIDTH, WIDTH, bias=False)
            self.k = nn.Linear(WIDTH, WIDTH, bias=False)
            self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o = Row(WIDTH, WIDTH)
        self.last = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).chunk(3, -1) if Layout.fused else [one(x) for one in (self.q, self.k, self.v)]
        q, k, v = map(self.heads, parts)
        length = q.shape[2]
        places = torch.arange(length)
        seen = places
        if Layout.kind == "cp":
            k, v = (Exchange.apply(one, lambda y: gathered(y, 2), part_of_sum) for one in (k, v))
            places, seen = zigzag(Layout.rank), torch.cat([zigzag(rank) for rank in range(Layout.ranks)])
            if Layout.fault == "kv_order":
                seen = torch.arange(LENGTH)
            if Layout.has("mask_shifted", rank=0) and self.last:
                places = places + 1
        scores = torch.matmul(q, k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5
        scores = scores.masked_fill(seen.unsqueeze(0) > places.unsqueeze(1), -1e4)
        y = torch.matmul(torch.softmax(scores, -1), v)
        return self.o(y.transpose(1, 2).flatten(2))

    @staticmethod
    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(2, (-1, WIDTH // HEADS)).transpose(1, 2)


def zigzag(rank: int) -> torch.Tensor:
    """The places of a rank's two chunks of every sequence: one from the front, one from the back."""
    chunks = torch.arange(LENGTH).chunk(2 * Layout.ranks)
    return torch.cat([chunks[rank], chunks[2 * Layout.ranks - 1 - rank]])


def part_of_sum(x: torch.Tensor) -> torch.Tensor:
    return own_part(summed(x), 2)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER)
        self.down = Row(INNER, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x)))


class Expert(Mlp):
    pass


class Experts(nn.Module):
    """Each word goes to one expert, chosen by its router. With expert parallel each rank holds some of them."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.add_module(Layout.experts, nn.ModuleList(Expert() for _ in range(EXPERTS)))
        self.last = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        gates = torch.softmax(self.router(flat), -1)
        gate, chosen = gates.max(-1)
        if Layout.kind != "ep":
            y = torch.zeros_like(flat)
            for number, expert in enumerate(getattr(self, Layout.experts)):
                at = (chosen == number).nonzero().squeeze(1)
                y = y.index_copy(0, at, expert(flat[at]))
            return (y * gate.unsqueeze(1)).view_as(x)
        order = torch.argsort(chosen, stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS)
        there = torch.empty_like(counts)
        dist.all_to_all_single(there, counts)
        local = EXPERTS // Layout.ranks
        sent = counts.view(Layout.ranks, local).sum(1).tolist()
        got = there.view(Layout.ranks, local).sum(1).tolist()
        arrived = AllToAll.apply(flat[order], sent, got)
        number = torch.cat([torch.arange(local).repeat_interleave(one) for one in there.view(Layout.ranks, local)])
        if Layout.has("expert_moved"):
            number = (number + 1) % local
        y = torch.zeros_like(arrived)
        for at_expert, expert in enumerate(getattr(self, Layout.experts)):
            at = (number == at_expert).nonzero().squeeze(1)
            y = y.index_copy(0, at, expert(arrived[at]))
        y = AllToAll.apply(y, got, sent)
        if Layout.has("returned_in_order", rank=0) and self.last:
            order = torch.arange(len(order))  # as if the words had come back where they left from
        return (torch.zeros_like(flat).index_copy(0, order, y) * gate.unsqueeze(1)).view_as(x)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], got: list[int]) -> torch.Tensor:
        ctx.counts = sent, got
        y = x.new_empty(sum(got), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), got, sent)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        sent, got = ctx.counts
        x = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(x, grad.contiguous(), sent, got)
        return x, None, None


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp: nn.Module = Experts() if Layout.moe else Mlp()
        self.dropout = nn.Dropout(Layout.dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.position = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(Layout.layers))
        self.layers[-1].attention.last = self.layers[-1].mlp.last = True
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = words
        if self.embedding is not None:
            x = self.embedding(words)
            places = torch.arange(words.shape[1])
            if Layout.kind == "cp":
                places = zigzag(Layout.rank)
                if Layout.has("position_offset"):
                    places = (places + 1) % LENGTH
            if Layout.kind == "sp":
                places = own_part(torch.arange(words.shape[1]), 0)
            x = x + self.position(places)
        for layer in self.layers:
            x = layer(x)
        if self.head is None:
            return x
        x = self.norm(x)
        if Layout.kind == "sp":
            x = from_whole_sequence(x)
        return self.head(x)


def from_whole_sequence(x: torch.Tensor) -> torch.Tensor:
    """All parts of the sequence on every rank, which computes the same with them."""
    return Exchange.apply(x, lambda y: gathered(y, 1), lambda y: own_part(y, 1))


Layout.moe, Layout.dropout, Layout.fused, Layout.biased = False, 0.0, False, False  # type: ignore[attr-defined]


def loss_of(logits: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1).float(), words.flatten())


# -- the layouts: what becomes of the model, and of the words of a step ------------------------------------------------


def split_weights(model: Model) -> None:
    """Tensor parallel by hand, as Megatron does it: rows or columns of the weights on each rank."""

    def become(layer: Any, kind: type, dim: int) -> None:
        layer.__class__ = kind
        layer.weight = nn.Parameter(own_part(layer.weight.data, dim))
        layer.first = False
        if layer.bias is not None if hasattr(layer, "bias") else False:
            layer.bias = nn.Parameter(own_part(layer.bias.data, 0) if dim == 0 else layer.bias.data)

    become(model.embedding, VocabParallelEmbedding, 0)
    for at, block in enumerate(model.layers):
        if Layout.fused:  # each rank has its own queries, keys and values, one behind the other
            fused = block.attention.qkv
            thirds = [one.chunk(Layout.ranks) for one in fused.weight.data.chunk(3)]
            fused.weight.data = torch.cat([third[rank] for rank in range(Layout.ranks) for third in thirds])
        for name in ["qkv"] if Layout.fused else "qkv":
            become(getattr(block.attention, name), ColumnParallelLinear, 0)
        become(block.attention.o, RowParallelLinear, 1)
        become(block.mlp.up, ColumnParallelLinear, 0)
        become(block.mlp.down, RowParallelLinear, 1)
        block.attention.o.first = at == 0
    if Layout.has("shard_scaled"):
        model.layers[0].mlp.up.weight.data *= 1.5
    if Layout.fault == "shard_swapped":
        weight = model.layers[0].mlp.up.weight
        other = weight.data.clone()
        parts = [torch.empty_like(other) for _ in range(Layout.ranks)]
        dist.all_gather(parts, other)
        weight.data.copy_(parts[Layout.ranks - 1 - Layout.rank])


def tensor_parallel(model: Model, mesh: Any = None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = mesh or init_device_mesh("cpu", (Layout.ranks,), mesh_dim_names=("tp",))
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate())}
    for at in range(Layout.layers):
        plan |= {f"layers.{at}.attention.{name}": ColwiseParallel() for name in "qkv"}
        plan[f"layers.{at}.attention.o"] = RowwiseParallel()
        plan |= {f"layers.{at}.mlp.up": ColwiseParallel(), f"layers.{at}.mlp.down": RowwiseParallel()}
    parallelize_module(model, mesh, plan)


def fully_sharded(model: Model, mesh: Any = None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if Layout.mixed else MixedPrecisionPolicy()
    if Layout.kind == "hsdp":  # copies of the shards
        mesh = init_device_mesh("cpu", (2, Layout.ranks // 2), mesh_dim_names=("replicate", "shard"))
    for block in model.layers:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if Layout.fault == "no_replica_reduce":
        model.set_requires_all_reduce(False)


def two_dimensions(model: Model) -> None:
    """Tensor parallel pairs of ranks, each pair with its own part of the batch and of the parameters."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (Layout.ranks // 2, 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(model, mesh["tp"])
    fully_sharded(model, mesh["dp"])


def fully_sharded_first(model: Model) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel

    shard = functools.partial(FullyShardedDataParallel, device_id=torch.device("cpu"), use_orig_params=not Layout.flat)
    model.layers = nn.ModuleList(map(shard, model.layers))
    return shard(model)


def spread_experts(model: Model) -> None:
    local = EXPERTS // Layout.ranks
    for block in model.layers:
        own = list(getattr(block.mlp, Layout.experts))[Layout.rank * local : (Layout.rank + 1) * local]
        setattr(block.mlp, Layout.experts, nn.ModuleList(own))


def own_stage(model: Model) -> None:
    share = Layout.layers // Layout.ranks
    if Layout.rank > 0:
        model.embedding = model.position = None
    if Layout.rank < Layout.ranks - 1:
        model.norm = model.head = None
    model.layers = nn.ModuleList(list(model.layers)[Layout.rank * share : (Layout.rank + 1) * share])


DATA_PARALLEL = ("ddp", "fsdp1", "fsdp2", "hsdp", "ep")


def plant(model: nn.Module) -> None:
    """Faults that sit in the modules of one rank."""
    word, _, rest = Layout.fault.partition(":")
    rank, path, *factor = f"{rest}::".split(":")
    if word in ("scaled", "frozen") and int(rank) == Layout.rank:
        parameter = next(p for name, p in model.named_parameters() if name.endswith(path))
        if word == "frozen":
            parameter.requires_grad_(requires_grad=False)
        else:
            own = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            own.detach().mul_(float(factor[0]))
    if Layout.has("other_epsilon", rank=0):
        model.layers[1].norm1.eps = 0.5
    if Layout.has("second_call", rank=0):
        calls: list[int] = []  # the first is that of a stage that asks for shapes

        def scaled(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return output * 1.25 if len(calls) % 2 == 0 else output

        model.layers[0].norm2.register_forward_hook(scaled)


def words_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 + step)
    words = torch.randint(0, WORDS, (BATCH, LENGTH + 1), generator=generator)
    if Layout.kind in DATA_PARALLEL:  # dealt: as a DistributedSampler does it
        words = words[Layout.rank :: Layout.ranks] if Layout.dealt else own_part(words, 0)
    if Layout.kind == "2d":
        words = words.chunk(Layout.ranks // 2)[Layout.rank // 2]
    return words


def finish_gradients(model: nn.Module, micro: int) -> None:
    """What layouts by hand do between backward and the optimizer."""
    shared = {"cp": model.parameters(), "sp": (p for n, p in model.named_parameters() if "norm" in n or "position" in n
              or n.endswith(("o.bias", "down.bias")))}.get(Layout.kind, ())  # fmt: skip
    if Layout.kind == "ep":
        shared = [p for n, p in model.named_parameters() if f".{Layout.experts}." not in n]
        for name, parameter in model.named_parameters():
            if f".{Layout.experts}." in name and parameter.grad is not None:
                parameter.grad /= Layout.ranks
    for at, parameter in enumerate(shared):
        if Layout.fault in ("sp_gradient", "no_gradient_reduce") and at < 2:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)
        if Layout.kind in ("cp", "ep") and Layout.fault != "gradient_scale":
            parameter.grad /= Layout.ranks


def clip(model: nn.Module) -> None:
    if not Layout.clip or Layout.has("no_clip", rank=-2):
        return
    if Layout.has("clip_first", rank=-2):  # of a model without DDP
        torch.nn.utils.clip_grad_norm_(model.parameters(), Layout.clip)
        for parameter in model.parameters():
            parameter.grad = summed(parameter.grad) / Layout.ranks
    elif Layout.kind == "fsdp1":
        model.clip_grad_norm_(Layout.clip)
    else:
        torch.nn.utils.clip_grad_norm_(model.parameters(), Layout.clip)


Layout.clip, Layout.mixed, Layout.flat, Layout.dealt = 0.0, False, False, False  # type: ignore[attr-defined]


def train(rank: int, output: Path, kind: str, ranks: int, level: str, task: str, dtype: str, fault: str) -> None:
    torch.set_num_threads(1)
    base, *options = kind.split("+")
    Layout.kind, Layout.rank, Layout.ranks, Layout.fault = base, rank, ranks, fault
    Layout.moe, Layout.fused, Layout.biased = "moe" in options or base == "ep", "fused" in options, "biased" in options
    Layout.dropout = 0.25 if "dropout" in options else 0.0
    Layout.experts = "branches" if "branches" in options else "experts"
    Layout.layers = 2 * LAYERS if "deep" in options else LAYERS
    Layout.clip, Layout.flat, Layout.dealt = 0.5 * ("clip" in options), "flat" in options, "dealt" in options
    micro, Layout.mixed = 2 if base == "pp" or "micro" in options else 1, "mixed" in options
    grouped = ranks > 1 or base == "fsdp2"  # of one rank
    if grouped:
        dist.init_process_group("gloo", init_method=f"file://{output}.meet", rank=rank, world_size=ranks)
    torch.manual_seed(7)
    model: Any = Model().to(getattr(torch, dtype))
    prepare: dict[str, Callable[[Any], Any]] = {
        "megatron": split_weights, "sp": split_weights, "tp": tensor_parallel, "fsdp2": fully_sharded,
        "fsdp1": fully_sharded_first, "ddp": nn.parallel.DistributedDataParallel, "ep": spread_experts, "pp": own_stage,
        "2d": two_dimensions, "hsdp": fully_sharded,
    }  # fmt: skip
    if "checkpoint" in options:
        for block in model.layers:
            block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)
    if base in prepare and fault != "clip_first":
        model = prepare[base](model) or model
    if "hook" in options:
        model.register_comm_hook(None, fp16_compress_hook)
    if "compile" in options:
        model = torch.compile(model, backend="aot_eager")
    if Layout.has("replica_differs"):
        inner = model.module if base == "ddp" else model
        inner.layers[-1].norm1.weight.data[0] += 0.25
    plant(model)
    rate = 2e-2 if Layout.has("wrong_rate") else 1e-2
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=rate)
    if "zero" in options:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=rate)
        if Layout.fault == "no_broadcast":
            optimizer._sync_params = lambda: None
    from twinprobe.torch import record

    stale = None
    watched = record(model, output, level=level, task=task) if level != "off" else nullcontext()
    with watched as recording:
        for step in range(STEPS):
            loss = steps_loss(model, step, micro)
            if base not in ("pp",):
                loss.backward() if micro == 1 else None
            finish_gradients(model, micro)
            clip(model)
            if Layout.has("stale_parameter") and step == 0:
                stale = [one.detach().clone() for one in model.parameters()]
            optimizer.step()
            if stale is not None and step == 0:
                with torch.no_grad():
                    for parameter, old in list(zip(model.parameters(), stale, strict=True))[:4]:
                        parameter.copy_(old)
            optimizer.zero_grad()
            if loss is not None:
                say(f"loss {rank} {step} {loss.detach().item():.9g}")
            if recording is not None:
                recording.step()
    digest = [p.detach().to_local() if hasattr(p, "to_local") else p.detach() for p in model.parameters()]
    say(f"digest {rank} {torch.cat([one.double().reshape(-1) for one in digest]).sum().item().hex()}")
    if grouped:
        dist.barrier()
        dist.destroy_process_group()


def say(line: str) -> None:
    """Print a line at once: two ranks share the output."""
    os.write(1, f"{line}\n".encode())


def steps_loss(model: Any, step: int, micro: int) -> Any:
    words = words_of(step)
    if Layout.dropout:
        torch.manual_seed(1000 * step + (Layout.rank if Layout.fault == "random_not_split" else 0))
    x, y = words[:, :-1], words[:, 1:]
    if Layout.kind == "cp":
        own = zigzag(Layout.rank)
        x, y = x[:, own], y[:, own]
    if Layout.kind == "pp":
        return pipeline(model, x, y, micro)
    if micro == 1:
        loss = loss_of(model(x), y)
        return loss * Layout.ranks if Layout.fault == "sum_not_mean" else loss
    losses = []
    for at, (part, goal) in enumerate(zip(x.chunk(micro), y.chunk(micro), strict=True)):
        last = at == micro - 1 and Layout.fault != "never_synced"
        with nullcontext() if last or Layout.kind != "ddp" else model.no_sync():
            loss = loss_of(model(part), goal) / (1 if Layout.fault == "micro_scale" else micro)
            loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def pipeline(model: Any, x: torch.Tensor, y: torch.Tensor, micro: int) -> Any:
    stage = PipelineStage(model, Layout.rank, Layout.ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, micro, loss_fn=loss_of, scale_grads=Layout.fault != "micro_scale")
    losses: list[torch.Tensor] = []
    if Layout.rank == 0:
        schedule.step(x)
    elif Layout.rank == Layout.ranks - 1:
        schedule.step(target=y, losses=losses)
    else:
        schedule.step()
    return torch.stack(losses).mean() if losses else None


def main(output: Path, kind: str, ranks: int, *words: str) -> None:
    if ranks == 1:
        train(0, output, kind, 1, *words)
        return
    torch.multiprocessing.start_processes(
        train, (output.absolute(), kind, ranks, *words), nprocs=ranks, start_method="fork"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
