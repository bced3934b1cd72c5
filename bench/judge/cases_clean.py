"""Clean pairs: two ways to compute the same. Nothing but rounding differs, and nothing may be claimed."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from judge.cases import clean
from judge.models import Attention, Program, Rotary, to_dtype

WIDE = {"width": 512, "layers": 2, "heads": 8, "rows": 1, "length": 48}


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for every operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def eager(program: Program) -> Program:
    """The same weights with attention written out."""
    return program.rebuild(attn_implementation="eager")


# Other kernels


@clean("llama")
def eager_attention(program: Program) -> Program:
    """Eager against sdpa."""
    return eager(program)


@clean("llama", options=WIDE)
def eager_attention_at_width_512(program: Program) -> Program:
    """Eager against sdpa where noise is real."""
    return eager(program)


@clean("bert")
def eager_attention_with_padding(program: Program) -> Program:
    """Eager against sdpa with a mask: another fill value."""
    return eager(program)


@clean("vit")
def eager_attention_over_patches(program: Program) -> Program:
    """Eager against sdpa without a mask."""
    return eager(program)


@clean("mixtral")
def experts_in_a_loop(program: Program) -> Program:
    """Experts one after the other against one grouped product."""
    return program.rebuild(experts_implementation="eager")


@clean("llama", options=WIDE)
def two_threads(program: Program) -> None:
    """Sums split over two threads."""
    program.around.append(threads(2))


@clean("resnet", options={"width": 64})
def two_threads_in_convolutions(program: Program) -> None:
    """The same for convolutions and batch norms."""
    program.around.append(threads(2))


@clean("resnet", options={"width": 64})
def without_onednn(program: Program) -> None:
    """Convolutions of PyTorch itself against oneDNN's."""
    program.around.append(torch.backends.mkldnn.flags(enabled=False))


@clean("llama", options=WIDE)
def products_without_onednn(program: Program) -> None:
    """Matrix products of another library in bf16."""
    program.around.append(torch.backends.mkldnn.flags(enabled=False))


@clean("unet")
def channels_last(program: Program) -> None:
    """Another memory layout."""
    program.model.to(memory_format=torch.channels_last)
    for key in ("x", "noise"):
        program.batch[key] = program.batch[key].contiguous(memory_format=torch.channels_last)


@clean("convnext")
def channels_last_in_convnext(program: Program) -> None:
    """Another memory layout between convolutions and linear layers."""
    program.model.to(memory_format=torch.channels_last)


@clean("decoder", slow=True, dtypes="float32 bf16")
def compiled_block(program: Program) -> None:
    """One block compiled."""
    program.model.blocks[1].mlp = torch.compile(program.model.blocks[1].mlp)


@clean("llama", python="other_transformers")
def another_version_of_transformers(program: Program) -> None:
    """The same model by an older release of its library."""


# Recomputation and accumulation


@clean("llama")
def gradient_checkpointing(program: Program) -> None:
    """Activations computed again in the backward pass."""
    program.model.gradient_checkpointing_enable({"use_reentrant": False})
    program.model.train()


@clean("decoder")
def checkpointed_blocks(program: Program) -> None:
    """The user's own checkpointing of two blocks."""
    for block in program.model.blocks[1:3]:
        plain = block.forward
        block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=False)


# Optimisers


@clean("gpt2")
def foreach_adamw(program: Program) -> None:
    """All parameters in one call."""
    program.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, foreach=True)


@clean("gpt2")
def fused_adamw(program: Program) -> None:
    """One kernel for the whole update."""
    program.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True)


@clean("resnet")
def foreach_sgd(program: Program) -> None:
    """SGD with momentum, all parameters in one call."""
    program.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=True)


# Other types for everything


@clean("llama", dtypes="float32")
def float64_for_everything(program: Program) -> None:
    """The reference in double precision."""
    to_dtype(program, torch.float64)


@clean("llama", dtypes="float32", options=WIDE)
def bf16_for_everything(program: Program) -> None:
    """bf16 against float32 at width 512."""
    to_dtype(program, torch.bfloat16)


@clean("bert", dtypes="float32")
def bf16_with_padding(program: Program) -> None:
    """bf16 against float32 with a mask: another smallest number."""
    to_dtype(program, torch.bfloat16)


@clean("convnext", dtypes="float32")
def bf16_for_convolutions(program: Program) -> None:
    """bf16 against float32 in a convolutional network."""
    to_dtype(program, torch.bfloat16)


@clean("t5", dtypes="float32")
def autocast_against_float32(program: Program) -> None:
    """Autocast against float32."""
    program.dtype = "autocast"


@clean("decoder", dtypes="bf16", options=WIDE)
def float32_against_bf16(program: Program) -> None:
    """The more exact run as target."""
    to_dtype(program, torch.float32)
    program.dtype = "float32"


# Equal reformulations


@clean("decoder")
def split_qkv(program: Program) -> None:
    """Three products instead of one fused product."""

    def project(self: Attention, x: torch.Tensor) -> list[torch.Tensor]:
        rest = self.groups * self.size
        sizes = [self.heads * self.size, rest, rest]
        pairs = zip(self.qkv.weight.split(sizes), self.qkv.bias.split(sizes), strict=True)
        return [functional.linear(x, weight, bias) for weight, bias in pairs]

    for block in program.model.blocks:
        block.attention.project = types.MethodType(project, block.attention)


@clean("decoder", options=WIDE)
def sdpa_in_the_users_model(program: Program) -> None:
    """The fused attention against the one written out."""

    def forward(self: Attention, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (one.view(rows, length, -1, self.size).transpose(1, 2) for one in self.project(x))
        q, k = self.rotary(self.query_norm(q)), self.rotary(self.key_norm(k))
        k, v = (one.repeat_interleave(self.heads // self.groups, dim=1) for one in (k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(out.transpose(1, 2).reshape(rows, length, -1))

    for block in program.model.blocks:
        block.attention.forward = types.MethodType(forward, block.attention)


@clean("decoder")
def scale_divided_instead_of_multiplied(program: Program) -> None:
    """scores / sqrt(size) against scores * size**-0.5, and the queries scaled beforehand."""

    def forward(self: Attention, x: torch.Tensor) -> torch.Tensor:
        rows, length, _ = x.shape
        q, k, v = (one.view(rows, length, -1, self.size).transpose(1, 2) for one in self.project(x))
        q, k = self.rotary(self.query_norm(q)), self.rotary(self.key_norm(k))
        k, v = (one.repeat_interleave(self.heads // self.groups, dim=1) for one in (k, v))
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.size**0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = torch.softmax(torch.where(hidden, float("-inf"), scores), dim=-1)
        return self.out(torch.matmul(weights, v).transpose(1, 2).reshape(rows, length, -1))

    for block in program.model.blocks:
        block.attention.forward = types.MethodType(forward, block.attention)


@clean("decoder")
def linear_as_addmm(program: Program) -> None:
    """torch.addmm on a flattened batch against functional.linear."""

    def forward(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight.t()).view(*x.shape[:-1], -1)

    for block in program.model.blocks:
        for layer in (block.mlp.up, block.mlp.down):
            layer.forward = types.MethodType(forward, layer)


@clean("decoder")
def layer_norm_written_out(program: Program) -> None:
    """Mean, variance and rsqrt against the fused norm."""

    def forward(self: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        centred = wide - wide.mean(-1, keepdim=True)
        normal = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + self.eps)
        return normal.to(x.dtype) * self.weight + self.bias

    for block in program.model.blocks:
        block.norm_1.forward = types.MethodType(forward, block.norm_1)


@clean("decoder")
def loss_from_log_softmax(program: Program) -> None:
    """log_softmax and nll_loss against cross_entropy."""

    def loss(one: Program) -> torch.Tensor:
        ids = one.batch["ids"]
        logits = one.model(ids)[:, :-1].flatten(0, 1).float()
        return functional.nll_loss(functional.log_softmax(logits, dim=-1), ids[:, 1:].flatten())

    program.loss = loss


@clean("unet")
def halved_by_division(program: Program) -> None:
    """noise / 2 against noise * 0.5."""

    def loss(one: Program) -> torch.Tensor:
        noise = one.batch["noise"]
        made = one.model(one.batch["x"] + noise / 2, one.batch["time"].float())
        return (made.float() - noise.float()).square().mean()

    program.loss = loss


@clean("decoder")
def rotary_with_complex_numbers(program: Program) -> None:
    """A rotation by complex numbers, as the first Llama code has it; the layout is that of halves."""

    class Complex(Rotary):
        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            size = x.shape[-1]
            angle = torch.outer(torch.arange(x.shape[-2]).float(), self.base ** (-torch.arange(0, size, 2) / size))
            turn = torch.polar(torch.ones_like(angle), angle)
            one, two = x.float().chunk(2, -1)
            turned = torch.complex(one, two) * turn
            return torch.cat([turned.real, turned.imag], -1).to(x.dtype)

    for block in program.model.blocks:
        block.attention.rotary = Complex()


@clean("lstm")
def head_as_einsum(program: Program) -> None:
    """einsum against a linear layer."""
    head = program.model.head
    head.forward = lambda x: torch.einsum("btw,lw->btl", x, head.weight) + head.bias
