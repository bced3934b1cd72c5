"""Cases of two ranks: a tensor-parallel model, and replicas that average their gradients."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from judge.cases import artefact, bug, clean
from judge.models import Block, Decoder, Program, family, next_token_loss, tokens

RANKS = {"framework": "ranks", "dtypes": "float32 bf16"}


class SumForward(torch.autograd.Function):
    """Adds up what the ranks computed."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Every rank gets the whole gradient."""
        return gradient


class SumBackward(torch.autograd.Function):
    """Adds up the gradients that the ranks computed."""

    @staticmethod
    def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Nothing to do."""
        return x.view_as(x)

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        """The sum over ranks."""
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class ParallelFeedForward(nn.Module):
    """The feed-forward of a block, its inner axis split over the ranks."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        rank, inner = dist.get_rank(), whole.up.out_features // dist.get_world_size()
        own = slice(rank * inner, (rank + 1) * inner)
        width = whole.up.in_features
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width, bias=False)
        self.bias = nn.Parameter(whole.down.bias.detach().clone())
        with torch.no_grad():
            self.up.weight.copy_(whole.up.weight[own])
            self.up.bias.copy_(whole.up.bias[own])
            self.down.weight.copy_(whole.down.weight[:, own])
        self.reduces = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank its part; then the sum."""
        part = self.down(functional.gelu(self.up(SumBackward.apply(x)), approximate="tanh"))
        return (SumForward.apply(part) if self.reduces else part) + self.bias


@family
def parallel(width: int = 64, layers: int = 3) -> Program:
    """Tensor parallelism over two ranks: both see the same tokens."""
    model = Decoder(width, layers, 4)
    for block in model.blocks:
        assert isinstance(block, Block)
        block.mlp = ParallelFeedForward(block.mlp)
    return Program(model, {"ids": tokens()}, loss=next_token_loss)


@family
def replicas(width: int = 64, layers: int = 3) -> Program:
    """Data parallelism over two ranks: each its own tokens, gradients averaged by hand before the update."""
    ids = tokens(4)[2 * dist.get_rank() :][:2]
    program = Program(Decoder(width, layers, 4), {"ids": ids}, loss=next_token_loss)

    def average(one: Program) -> None:
        for parameter in one.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    program.before_update = average
    return program


@family
def distributed(width: int = 64, layers: int = 3) -> Program:
    """The same by DistributedDataParallel, whose collectives are not recorded."""
    program = replicas(width, layers)
    program.before_update = None
    # Wrapped when the step runs: until then a case may change the model and its type.
    program.warm_up = _wrap
    program.watched = program.model
    return program


def _wrap(program: Program, **more: Any) -> None:
    program.model = DistributedDataParallel(program.model, **more)


def on_rank_one() -> bool:
    """Whether this process is the guilty one."""
    return dist.get_rank() == 1


@bug("parallel", "rank1/blocks.1.mlp.down:*", kinds="parameter shard", **RANKS)
def stale_shard(program: Program) -> None:
    """Rank 1 loads its part of a weight from an older checkpoint."""
    if on_rank_one():
        program.model.blocks[1].mlp.down.weight.data.mul_(1.2)


@bug("parallel", "rank1/blocks.2.mlp.up:*", kinds="parameter shard", **RANKS)
def shard_of_the_other_rank(program: Program) -> None:
    """Rank 1 loads the part of rank 0."""
    weight = program.model.blocks[2].mlp.up.weight.data
    dist.broadcast(other := weight.clone(), src=0)
    if on_rank_one():
        weight.copy_(other)


@bug(
    "parallel",
    "rank?/blocks.0.mlp:*",
    "rank?/blocks.0:__add__",
    modules=("rank?/blocks.0.mlp", "rank?/blocks.0"),
    kinds="missing shard",
    **RANKS,
)
def sum_over_ranks_forgotten(program: Program) -> None:
    """A row-parallel layer without its all-reduce."""
    program.model.blocks[0].mlp.reduces = False


@bug(
    "replicas", "rank1/blocks.1.attention:__mul__", modules="rank1/blocks.1.attention", kinds="argument factor", **RANKS
)
def one_replica_has_another_scale(program: Program) -> None:
    """A setting that only one node has: both end with wrong gradients."""
    if on_rank_one():
        program.model.blocks[1].attention.scale *= 1.3


@bug("distributed", "rank1/blocks.0.mlp.activation:*", kinds="argument function", **RANKS)
def one_replica_has_another_activation(program: Program) -> None:
    """The same with collectives that nobody recorded: rank 0 is innocent."""
    if on_rank_one():
        program.model.blocks[0].mlp.activation.approximate = "none"


@bug("distributed", "rank1/embedding:*", kinds="input", **RANKS)
def one_replica_reads_another_batch(program: Program) -> None:
    """The sampler of rank 1 has another epoch."""
    if on_rank_one():
        program.batch["ids"] = program.batch["ids"].roll(1, dims=1)


@clean("distributed", **RANKS)
def small_buckets(program: Program) -> None:
    """Gradients sent in many small buckets."""
    program.warm_up = lambda one: _wrap(one, bucket_cap_mb=0.01)


@clean("distributed", **RANKS)
def gradients_as_views_of_buckets(program: Program) -> None:
    """gradient_as_bucket_view saves a copy."""
    program.warm_up = lambda one: _wrap(one, gradient_as_bucket_view=True)


@clean("replicas", **RANKS)
def divided_before_the_sum(program: Program) -> None:
    """Gradients halved first, then added up."""

    def average(one: Program) -> None:
        for parameter in one.model.parameters():
            parameter.grad /= dist.get_world_size()
            dist.all_reduce(parameter.grad)

    program.before_update = average


@artefact("parallel", **RANKS)
def loss_gathered_for_a_log(program: Program) -> None:
    """One more collective, whose result is printed."""

    def loss(one: Program) -> torch.Tensor:
        value = next_token_loss(one)
        seen = value.detach().clone()
        dist.all_reduce(seen)
        return value

    program.loss = loss
