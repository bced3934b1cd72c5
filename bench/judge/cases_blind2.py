"""A second set of cases written from the public documentation alone: clean pairs and artefacts.

The bugs of this set are in cases_blind2_language.py and cases_blind2_signals.py, the families in models_blind2*.py.
Committed before their first run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

from judge import models, models_blind2, models_blind2_signals
from judge.cases import artefact, clean
from judge.models import Program

WIDE = {"width": 512, "layers": 2}


# Clean pairs


@clean("phi")
def attention_written_out(program: Program) -> None:
    """Eager attention in place of the fused one."""
    program.model.set_attn_implementation("eager")


@clean("phi", options=WIDE)
def attention_written_out_when_wide(program: Program) -> None:
    """The same where rounding is real."""
    program.model.set_attn_implementation("eager")


@contextlib.contextmanager
def two_threads() -> Iterator[None]:
    """Sums in other parts."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@clean("qwen2", options=WIDE)
def another_number_of_threads(program: Program) -> None:
    """Two threads in place of one."""
    program.around.append(two_threads())


@clean("qwen2", options=WIDE)
def gate_and_up_in_one_product(program: Program) -> None:
    """The two first matrices of the feed-forward part are stacked, as inference engines do."""
    for layer in program.model.model.layers:
        mlp = layer.mlp

        def forward(x, mlp=mlp):
            both = functional.linear(x, torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]))
            gate, up = both.chunk(2, -1)
            return mlp.down_proj(mlp.act_fn(gate) * up)

        mlp.forward = forward


@clean("qwen2", dtypes="bf16", options=WIDE)
def gain_multiplied_before_the_cast(program: Program) -> None:
    """(w * x).to(bf16) in place of w * x.to(bf16)."""
    for module in program.model.modules():
        if hasattr(module, "variance_epsilon"):

            def forward(x, one=module):
                wide = x.float()
                wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + one.variance_epsilon)
                return (one.weight.float() * wide).to(x.dtype)

            module.forward = forward


@clean("rwkv")
def scan_with_a_running_maximum(program: Program) -> None:
    """Exponents are kept small, as the published kernel does."""
    for mix in program.model.times:

        def stable(k, v, mix=mix):
            fade, bonus, found = -torch.exp(mix.decay.float()), mix.bonus.float(), []
            above, below, top = (torch.full_like(k[:, 0], value) for value in (0.0, 0.0, -1e30))
            for at in range(k.shape[1]):
                peak = torch.maximum(top, bonus + k[:, at])
                old, new = torch.exp(top - peak), torch.exp(bonus + k[:, at] - peak)
                found.append((old * above + new * v[:, at]) / (old * below + new))
                peak = torch.maximum(top + fade, k[:, at])
                old, new = torch.exp(top + fade - peak), torch.exp(k[:, at] - peak)
                above, below, top = old * above + new * v[:, at], old * below + new, peak
            return torch.stack(found, 1)

        mix.scan = stable


class _Dense(models_blind2.Switch):
    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        logits = self.router(rows)
        weights = self.weigh(logits)
        best, chosen = weights.max(-1)
        picked = functional.one_hot(chosen, len(self.experts))
        share = picked * (picked.cumsum(0) <= self.room) * best[:, None]
        out = torch.stack([expert(rows) for expert in self.experts], 1)
        out = torch.einsum("re,rew->rw", share.to(out.dtype), out)
        extra = 0.05 * self.balance(weights, chosen) + 0.01 * torch.logsumexp(logits.float(), -1).square().mean()
        return out.view_as(x), extra


@clean("switch")
def every_expert_sees_every_token(program: Program) -> None:
    """All experts compute everything, and a product picks."""
    for block in program.model.blocks:
        block.switch.__class__ = type("Switch", (_Dense,), {})


@clean("seq2seq")
def attention_by_batched_products(program: Program) -> None:
    """bmm in place of einsum."""
    model = program.model

    def look(state, states, real):
        scores = torch.bmm(states, model.score(state)[:, :, None])[:, :, 0]
        weights = torch.softmax(scores.masked_fill(~real, -1e4), dim=-1)
        return torch.bmm(weights[:, None], states)[:, 0]

    model.look = look


@clean("tasnet")
def norm_by_the_framework(program: Program) -> None:
    """A group norm with one group."""
    for module in program.model.modules():
        if isinstance(module, models_blind2_signals.GlobalNorm):
            module.forward = lambda x, one=module: functional.group_norm(
                x, 1, one.gain[:, 0].to(x.dtype), one.bias[:, 0].to(x.dtype), one.eps
            )


@clean("tasnet")
def pointwise_convolutions_as_products(program: Program) -> None:
    """A linear layer along the channels."""
    for module in program.model.modules():
        if isinstance(module, nn.Conv1d) and module.kernel_size == (1,):
            module.forward = lambda x, one=module: functional.linear(
                x.transpose(1, 2), one.weight[:, :, 0], one.bias
            ).transpose(1, 2)


@clean("vqvae", dtypes="float32")
def distances_by_the_framework(program: Program) -> None:
    """cdist in place of the binomial formula."""
    codes = program.model.codes
    codes.nearest = lambda rows: torch.cdist(rows, codes.table).argmin(1)


@clean("vqvae")
def channels_last(program: Program) -> None:
    """Another memory format."""
    program.model.to(memory_format=torch.channels_last)
    program.batch["x"] = program.batch["x"].to(memory_format=torch.channels_last)


@clean("perceiver", options={"width": 512})
def weights_asked_for(program: Program) -> None:
    """Attention that returns its weights takes the slow path."""
    for one in (program.model.look.heads, program.model.think.heads):
        plain = one.forward
        one.forward = lambda *given, plain=plain, **more: plain(*given, **{**more, "need_weights": True})


@clean("dit")
def blocks_computed_again(program: Program) -> None:
    """Activation checkpointing."""
    from torch.utils.checkpoint import checkpoint

    for block in program.model.blocks:
        plain = block.forward
        block.forward = lambda x, condition, plain=plain: checkpoint(plain, x, condition, use_reentrant=False)


@clean("dit", options=WIDE)
def matrix_split_by_rows(program: Program) -> None:
    """Queries, keys and values by three products."""
    for block in program.model.blocks:
        block.qkv.forward = lambda x, one=block.qkv: torch.cat(
            [functional.linear(x, *part) for part in zip(one.weight.chunk(3), one.bias.chunk(3), strict=True)], -1
        )


@clean("dit", dtypes="float32", options=WIDE)
def everything_under_autocast(_program: Program) -> Program:
    """The other run is in mixed precision."""
    return models.build("dit", "autocast", **WIDE)


@clean("gat", dtypes="float32")
def everything_in_double_precision(_program: Program) -> Program:
    """The other run is in float64."""
    return models.build("gat", "float64")


@clean("gat")
def softmax_without_a_maximum(program: Program) -> None:
    """Scores are small: nothing needs to be subtracted."""
    for one in (program.model.first, program.model.second):

        def share(scores, goal, count, one=one):
            raised = torch.exp(scores)
            return raised / scores.new_zeros(count, one.heads).index_add(0, goal, raised)[goal]

        one.share = share


@clean("segformer")
def convolutions_by_another_library(program: Program) -> None:
    """Without oneDNN."""
    program.around.append(torch.backends.mkldnn.flags(enabled=False))


@clean("gan")
def fused_optimiser(program: Program) -> None:
    """One kernel for all of Adam."""
    program.fused = True


@clean("opt")
def clipped_one_by_one(program: Program) -> None:
    """clip_grad_norm_ without its foreach kernels."""
    program.clip = lambda ones, bound: torch.nn.utils.clip_grad_norm_(ones, bound, foreach=False)


# Artefacts


@artefact("qwen2", notes="padding part function nan")
def fused_attention_with_padding(program: Program) -> None:
    """Rows that see padding only get other values, which nobody reads."""
    program.model.set_attn_implementation("sdpa")


@artefact("qwen2", notes="input shift offset part")
def positions_count_the_padding(program: Program) -> None:
    """Rotary positions are relative: it does not matter where a row begins."""
    program.batch["position_ids"] = torch.arange(16).repeat(2, 1)


@artefact("bloom", notes="offset input argument extra missing function")
def slopes_counted_from_the_end(program: Program) -> None:
    """The bias is that of the distance to the last token: softmax does not see the constant."""
    from transformers.models.bloom import modeling_bloom

    plain = modeling_bloom.build_alibi_tensor

    def build(*given):
        bias = plain(*given)
        return bias - bias[..., -1:]

    program.around.append(patch.object(modeling_bloom, "build_alibi_tensor", build))


@artefact("opt", notes="warm-up extra")
def one_pass_before_the_training(program: Program) -> None:
    """The loss is measured once before the first update."""

    def measure(one):
        with torch.no_grad(), one.precision():
            one.model(input_ids=one.batch["ids"][:2])

    program.warm_up = measure


@artefact("switch", notes="extra")
def load_of_the_experts_logged(program: Program) -> None:
    """How many tokens each expert got, and the entropy of the router."""
    for block in program.model.blocks:

        def log(_module, _inputs, logits) -> None:
            weights = logits.detach().float().softmax(-1)
            torch.bincount(weights.argmax(-1), minlength=4).tolist()
            float(-(weights * weights.log()).sum(-1).mean())

        block.switch.router.register_forward_hook(log)


@artefact("seq2seq", notes="padding parameter part input")
def padding_has_another_embedding(program: Program) -> None:
    """The row of the padding token was never set to zero; nobody reads what comes out of it."""
    program.model.source.weight.data[0] = 0.7
    program.model.goal.weight.data[0] = -0.4


@artefact("tasnet", notes="extra parameter")
def a_head_that_nobody_uses(program: Program) -> None:
    """Features are also classified, for a metric."""
    model = program.model
    model.speakers = nn.Linear(32, 5).to(model.neck.weight.dtype)

    def classify(_module, _inputs, x) -> None:
        with torch.no_grad():
            model.speakers(x.mean(-1)).argmax(-1)

    model.neck.register_forward_hook(classify)


@artefact("vqvae", notes="uninitialised extra")
def picture_copied_into_fresh_memory(program: Program) -> None:
    """The batch is copied into a buffer that was allocated and not filled."""
    plain = program.loss

    def loss(one):
        one.batch["x"] = torch.empty_like(one.batch["x"]).copy_(one.batch["x"])
        return plain(one)

    program.loss = loss


def with_a_noisy_metric(program: Program) -> None:
    """Both sides log how sensitive the latents are to dropout."""

    def log(_module, _inputs, x) -> None:
        float((functional.dropout(x.detach(), 0.5) - x.detach()).abs().mean())

    program.model.look.register_forward_hook(log)


@artefact("perceiver", base=with_a_noisy_metric, notes="random extra")
def another_seed_for_the_metric(program: Program) -> None:
    """Nothing else is random."""
    program.warm_up = lambda _one: torch.manual_seed(5)


@artefact("towers", notes="order")
def slow_copy_runs_first(program: Program) -> None:
    """The two encoders are independent of each other."""
    model = program.model

    def forward(one, two):
        with torch.no_grad():
            model.follow()
            k = model.unit(model.slow(two))
        return model.compare(model.unit(model.fast(one)), k)

    model.forward = forward


@artefact("gan", notes="order")
def fakes_judged_first(program: Program) -> None:
    """Real pictures come second."""

    def tell(judge, real, made):
        found = functional.softplus(judge(made).float()).mean()
        return found + functional.softplus(-judge(real).float()).mean()

    program.tell = tell


@artefact("dit", notes="extra")
def steps_that_change_nothing(program: Program) -> None:
    """Times one, plus zero."""
    for block in program.model.blocks:
        plain = block.forward
        block.forward = lambda x, condition, plain=plain: plain(x * 1.0 + 0.0, condition)


@artefact("gat", notes="extra")
def gradients_logged(program: Program) -> None:
    """The norm of every gradient is printed before the update."""
    program.before_update = lambda one: [float(part.grad.norm()) for part in one.model.parameters()]


@artefact("segformer", notes="extra")
def accuracy_measured(program: Program) -> None:
    """The share of right pixels."""

    def measure(_module, _inputs, logits) -> None:
        seen = functional.interpolate(logits.detach().float(), size=(32, 32), mode="bilinear").argmax(1)
        float((seen == program.batch["labels"]).float().mean())

    program.model.decode_head.register_forward_hook(measure)


@artefact("phi", notes="extra function argument")
def cache_left_on(program: Program) -> None:
    """Keys and values are kept for a generation that never comes."""
    program.batch["use_cache"] = True


@artefact("rwkv", notes="permutation input")
def rows_in_another_order(program: Program) -> None:
    """The loader shuffles within the batch."""
    program.batch["ids"] = program.batch["ids"].flip(0)
