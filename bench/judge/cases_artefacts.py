"""Artefacts: differences that harm nobody. They may be noted, never claimed as the place where the runs part."""

from __future__ import annotations

import contextlib
import types

import torch
from torch import nn
from torch.nn import functional

from judge.cases import artefact
from judge.models import FeedForward, Program


def forward_only(program: Program) -> None:
    """A pass whose result nobody uses."""
    with torch.no_grad(), program.precision():
        program.loss(program)


@artefact("llama")
def warm_up_pass(program: Program) -> None:
    """A warm-up forward is recorded before the step."""
    program.warm_up = forward_only


@artefact("unet")
def warm_up_pass_of_a_denoiser(program: Program) -> None:
    """The same in a convolutional network."""
    program.warm_up = forward_only


@artefact("decoder")
def evaluation_before_the_step(program: Program) -> None:
    """A validation batch of other tokens runs through the model first."""

    def evaluate(one: Program) -> None:
        batch, one.batch = one.batch, {"ids": one.batch["ids"].flip(1)}
        forward_only(one)
        one.batch = batch

    program.warm_up = evaluate


@artefact("decoder")
def addition_of_zero(program: Program) -> None:
    """x + 0 in one block."""
    block = program.model.blocks[1]
    plain = block.forward
    block.forward = lambda x: plain(x + 0)


@artefact("resnet")
def multiplication_by_one(program: Program) -> None:
    """A scale of one, kept for a later experiment."""
    layer = program.model.resnet.encoder.stages[1].layers[0]
    layer.register_forward_hook(lambda _module, _inputs, output: output * 1.0)


@artefact("decoder")
def statistics_for_a_log(program: Program) -> None:
    """Norms and means computed for a log, on one side only."""

    def watch(_module, _inputs, output) -> None:
        with torch.no_grad():
            output.float().norm().item()
            output.abs().max().item()

    for block in program.model.blocks:
        block.register_forward_hook(watch)


@artefact("decoder", notes="uninitialised")
def empty_memory_with_beta_zero(program: Program) -> None:
    """baddbmm on torch.empty with beta=0: what was in the memory does not count."""
    _through_empty(program, fill=None)


@artefact("decoder", notes="uninitialised", dtypes="float32")
def nan_in_empty_memory(program: Program) -> None:
    """The same, and the memory happens to hold NaN."""
    _through_empty(program, fill=float("nan"))


def _through_empty(program: Program, *, fill: float | None) -> None:
    def forward(self: FeedForward, x: torch.Tensor) -> torch.Tensor:
        up = self.up(x)
        rows = torch.empty(x.shape[0], x.shape[1], self.down.weight.shape[0], dtype=up.dtype)
        if fill is not None:
            rows.data.fill_(fill)
        hidden = self.activation(up)
        weight = self.down.weight.t().expand(x.shape[0], -1, -1).to(hidden.dtype)
        return torch.baddbmm(rows, hidden, weight, beta=0.0) + self.down.bias

    mlp = program.model.blocks[2].mlp
    mlp.forward = types.MethodType(forward, mlp)


@artefact("unet", notes="uninitialised")
def copied_into_empty_memory(program: Program) -> None:
    """torch.empty and copy_ instead of cat."""

    def join(up: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        made = torch.empty(up.shape[0], up.shape[1] + skip.shape[1], *up.shape[2:], dtype=up.dtype)
        made[:, : skip.shape[1]].copy_(skip)
        made[:, skip.shape[1] :].copy_(up)
        return made

    program.model.join = join


@artefact("bert", notes="padding input")
def other_tokens_under_the_padding(program: Program) -> None:
    """Padding filled with another token: masked, and nobody reads those places."""
    ids = program.batch["input_ids"]
    program.batch["input_ids"] = torch.where(program.batch["attention_mask"] == 0, 7, ids)


@artefact("bert", notes="padding input")
def longer_padding(program: Program) -> None:
    """The batch padded to a multiple of eight more."""
    for key, value in (("input_ids", 0), ("attention_mask", 0)):
        program.batch[key] = functional.pad(program.batch[key], (0, 8), value=value)


@artefact("resnet")
def relu_in_place(program: Program) -> None:
    """inplace=True saves memory."""
    for module in program.model.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = True


@artefact("unet")
def silu_in_place(program: Program) -> None:
    """inplace=True behind a norm."""
    for block in (program.model.down_1, program.model.down_2, program.model.up_1):
        block.activation.inplace = True


@artefact("llama")
def cache_is_filled(program: Program) -> None:
    """use_cache=True: keys and values are kept, and the loss is the same."""
    program.model.config.use_cache = True


@artefact("gpt2")
def cache_is_filled_in_gpt2(program: Program) -> None:
    """The same in GPT-2."""
    program.model.config.use_cache = True


def evaluated(program: Program) -> None:
    """Evaluation mode: dropout does nothing."""
    program.model.eval()


@artefact("gpt2", base=evaluated, options={"dropout": 0.1})
def other_seed_in_evaluation(program: Program) -> None:
    """Another random state that nothing uses."""
    program.around.append(_other_seed())


@artefact("gpt2", base=evaluated, options={"dropout": 0.1})
def other_dropout_rate_in_evaluation(program: Program) -> None:
    """p=0.3 instead of 0.1, in evaluation."""
    for module in program.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3


@contextlib.contextmanager
def _other_seed():
    torch.manual_seed(4711)
    yield


@artefact("llama", notes="input shift offset missing")
def positions_start_at_one(program: Program) -> None:
    """Position ids counted from one: rotary positions only count by their differences."""
    length = program.batch["input_ids"].shape[1]
    program.batch["position_ids"] = torch.arange(1, length + 1)[None]


@artefact("vit", notes="input permutation order")
def batch_in_another_order(program: Program) -> None:
    """The same pictures in another order: rows change places, the loss is the same."""
    for key in ("pixel_values", "labels"):
        program.batch[key] = program.batch[key].flip(0)


@artefact("llama")
def hidden_states_returned(program: Program) -> None:
    """output_hidden_states=True: more outputs that nobody uses."""
    program.batch["output_hidden_states"] = True


@artefact("decoder")
def unused_branch(program: Program) -> None:
    """A second head is computed, and its result is thrown away."""
    head = nn.Linear(64, 8).to(program.model.norm.weight.dtype)
    program.model.norm.register_forward_hook(lambda _module, _inputs, output: (head(output.detach()), None)[1])


@artefact("whisper", notes="parameter")
def key_bias_that_cancels(program: Program) -> None:
    """A bias on the keys of one layer: softmax takes it out again."""
    attention = program.model.model.encoder.layers[1].self_attn
    size = attention.k_proj.weight.shape[0]
    bias = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(6))
    attention.k_proj.bias = nn.Parameter(bias.to(attention.k_proj.weight.dtype), requires_grad=False)


@artefact("decoder", notes="input extra", options={"rows": 4})
def batch_in_two_halves(program: Program) -> None:
    """Two micro batches with accumulated gradients against one batch: other sums, other shapes."""
    plain, ids = program.loss, program.batch["ids"]

    def loss(one: Program) -> torch.Tensor:
        one.batch = {"ids": ids[:2]}
        first = plain(one) / 2
        one.batch = {"ids": ids[2:]}
        return first + plain(one) / 2

    program.loss = loss
