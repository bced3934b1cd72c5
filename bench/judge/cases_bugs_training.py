"""Planted bugs in a user's own model, in its backward pass and in the update."""

from __future__ import annotations

import torch
from torch import nn

from judge.cases import bug
from judge.models import Program

WIDE = {"width": 512, "layers": 2, "heads": 8, "rows": 1, "length": 32}


@bug("decoder", "blocks.2:__add__", "blocks.2.norm_2:*", modules=("blocks.2", "blocks.2.norm_2"), kinds="missing")
def residual_forgotten(program: Program) -> None:
    """x = attention(x) instead of x = x + attention(x)."""
    block = program.model.blocks[2]

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = block.attention(block.norm_1(x))
        return x + block.mlp(block.norm_2(x))

    block.forward = forward


def _without_mask(program: Program) -> None:
    for block in program.model.blocks:
        block.attention.diagonal = 1000


@bug("decoder", "blocks.1.attention:softmax", kinds="argument", base=_without_mask)
def softmax_over_the_wrong_axis(program: Program) -> None:
    """dim=-2 on a square matrix of scores; without a mask, so that nothing is infinite."""
    program.model.blocks[1].attention.softmax_axis = -2


@bug("decoder", "blocks.3.attention:masked_fill", "blocks.3.attention:triu", kinds="argument input")
def mask_off_by_one(program: Program) -> None:
    """triu(2): every token sees the next one."""
    program.model.blocks[3].attention.diagonal = 2


@bug("decoder", "blocks.0.attention:repeat*", "blocks.0.attention:matmul", kinds="permutation function input")
def key_heads_tiled(program: Program) -> None:
    """repeat instead of repeat_interleave in grouped-query attention."""
    program.model.blocks[0].attention.tile = True


@bug("decoder", "blocks.1.attention:__rpow__", kinds="argument")
def rotary_base_in_one_layer(program: Program) -> None:
    """A global layer with another base, as newer models have."""
    program.model.blocks[1].attention.rotary.base = 1000000.0


@bug("decoder", "blocks.2.attention:__add__", kinds="argument offset")
def positions_off_by_one_in_one_layer(program: Program) -> None:
    """The cache's length is counted twice. Only the difference of positions matters to attention: values do differ."""
    attention = program.model.blocks[2].attention
    plain = attention.rotary

    class Keys(type(plain)):
        def __call__(self, x):
            self.calls = getattr(self, "calls", 0) + 1
            self.offset = 1 if self.calls % 2 == 0 else 0
            return super().__call__(x)

    attention.rotary = Keys()


@bug("decoder", "blocks.1.mlp.activation:*", kinds="argument", options=WIDE, dtypes="float32")
def exact_gelu_at_width_512(program: Program) -> None:
    """approximate='none' for weights trained with tanh."""
    program.model.blocks[1].mlp.activation.approximate = "none"


@bug("decoder", "blocks.0.mlp.down:*", kinds="parameter part", options=WIDE)
def one_shard_is_stale(program: Program) -> None:
    """An eighth of the columns comes from an older checkpoint."""
    weight = program.model.blocks[0].mlp.down.weight
    with torch.no_grad():
        weight[:, :256] *= 0.8


@bug("decoder", "blocks.1.attention.key_norm:*", "blocks.1.attention.query_norm:*", kinds="parameter")
def query_and_key_norms_exchanged(program: Program) -> None:
    """q_norm and k_norm mixed up."""
    attention = program.model.blocks[1].attention
    attention.query_norm, attention.key_norm = attention.key_norm, attention.query_norm


@bug(
    "decoder",
    ":__mul__",
    modules=("blocks.0", "blocks.0.norm_1", "embedding"),
    kinds="missing factor argument",
)
def embedding_is_not_scaled(program: Program) -> None:
    """The factor sqrt(width) is forgotten."""
    program.model.width = 1.0


# Backward


class WrongGelu(torch.autograd.Function):
    """GELU with a hand-written gradient that forgets a factor."""

    @staticmethod
    def forward(ctx, x):
        """As the built-in one."""
        ctx.save_for_backward(x)
        return nn.functional.gelu(x, approximate="tanh")

    @staticmethod
    def backward(ctx, gradient):
        """1.3 times too large."""
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return 1.3 * torch.autograd.grad(nn.functional.gelu(x, approximate="tanh"), x, gradient)[0]


@bug(
    "decoder",
    "blocks.2.mlp.activation:*",
    "blocks.2.mlp.up:*",
    direction="backward",
    kinds="factor",
    modules=("blocks.2.mlp.activation", "blocks.2.mlp", "blocks.2.mlp.up"),
)
def gradient_of_a_custom_function(program: Program) -> None:
    """A fused kernel with a wrong backward."""

    class Custom(nn.Module):
        def forward(self, x):
            return WrongGelu.apply(x)

    program.model.blocks[2].mlp.activation = Custom()


@bug(
    "decoder",
    "blocks.1.attention.out:*",
    direction="backward",
    kinds="factor",
    modules=("blocks.1.attention.out", "blocks.1.attention"),
)
def gradient_scaled_in_a_hook(program: Program) -> None:
    """A hook that averages the gradient a second time."""

    def halve(_module, _inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient / 2)

    program.model.blocks[1].attention.out.register_forward_hook(halve)


@bug("decoder", "blocks.3:*", "blocks.3.norm_2:*", direction="either", kinds="missing part argument")
def branch_is_detached(program: Program) -> None:
    """detach() on what the feed-forward gets: its gradient never reaches the residual stream."""
    block = program.model.blocks[3]

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = x + block.attention(block.norm_1(x))
        return x + block.mlp(block.norm_2(x.detach()))

    block.forward = forward


@bug(
    "unet",
    "down_1.conv_2:*",
    direction="backward",
    kinds="saturation extra",
    modules=("down_1.conv_2", "down_1"),
)
def gradient_is_clipped_inside(program: Program) -> None:
    """A hook that clips the gradient of an activation."""

    def clip(_module, _inputs, output):
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient.clamp(-1e-4, 1e-4))

    program.model.down_1.conv_2.register_forward_hook(clip)


class ShortRMSNorm(torch.autograd.Function):
    """RMSNorm with a hand-written gradient that leaves out how the mean square depends on the input."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """As transformers writes it."""
        variance = x.float().pow(2).mean(-1, keepdim=True)
        scale = torch.rsqrt(variance + eps)
        ctx.save_for_backward(x, weight, scale)
        return weight * (x.float() * scale).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        """The second term is missing."""
        x, weight, scale = ctx.saved_tensors
        toward = (gradient.float() * weight.float() * scale).to(x.dtype)
        parameter = (gradient.float() * x.float() * scale).flatten(0, -2).sum(0)
        return toward, parameter.to(weight.dtype), None


@bug(
    "llama", "model.layers.2.post_attention_layernorm:*", "model.layers.2:__add__", direction="backward",
    modules=("model.layers.2.post_attention_layernorm", "model.layers.2"), kinds="noise part missing function",
)  # fmt: skip
def gradient_of_a_norm_without_its_second_term(program: Program) -> None:
    """A fused norm whose backward was derived too quickly."""
    norm = program.model.model.layers[2].post_attention_layernorm
    norm.forward = lambda x: ShortRMSNorm.apply(x, norm.weight, norm.variance_epsilon)


@bug("decoder", "embedding:*", direction="either", kinds="argument part")
def padding_token_gets_no_gradient(program: Program) -> None:
    """padding_idx is set to a token that occurs in the text."""
    program.model.embedding.padding_idx = int(program.batch["ids"][0, 3])


@bug(
    "decoder",
    "blocks.0.mlp.up:*",
    direction="backward",
    kinds="sign factor",
    modules=("blocks.0.mlp.up", "blocks.0.mlp"),
)
def gradient_reversed(program: Program) -> None:
    """A gradient-reversal layer that was left in."""

    def reverse(_module, _inputs, output):
        if output.requires_grad:
            output.register_hook(torch.neg)

    program.model.blocks[0].mlp.up.register_forward_hook(reverse)


@bug("lstm", ":__truediv__", ":cross_entropy", kinds="extra factor", levels="mix")
def loss_averaged_twice(program: Program) -> None:
    """The loss is divided by the number of accumulated batches, and there is one."""
    plain = program.loss
    program.loss = lambda one: plain(one) / 4


# Update


@bug("gpt2", "optimizer:mul_", kinds="argument update", levels="mix", dtypes="float32 autocast")
def weight_decay_ten_times(program: Program) -> None:
    """weight_decay 0.1 instead of 0.01; bf16 weights would round both away."""
    program.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, foreach=False)


@bug("gpt2", "optimizer:mul_", "optimizer:addcmul_", kinds="argument update", levels="mix")
def other_betas(program: Program) -> None:
    """betas=(0.9, 0.95), as language models are trained with."""
    program.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95), foreach=False)


@bug("resnet", "optimizer:add*", kinds="argument update extra missing", levels="mix")
def nesterov_forgotten(program: Program) -> None:
    """Nesterov momentum on one side."""
    program.optimizer = lambda parameters: torch.optim.SGD(
        parameters, lr=0.05, momentum=0.9, nesterov=True, foreach=False
    )


@bug("decoder", "optimizer:add_", kinds="argument update factor", levels="mix")
def learning_rate_of_the_next_step(program: Program) -> None:
    """The scheduler is stepped before the optimiser."""
    program.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.045)


@bug(
    "decoder",
    "optimizer:*",
    ":*norm*",
    ":mul*",
    ":clamp*",
    ":*div*",
    kinds="extra factor argument update",
    levels="mix",
)
def gradient_norm_clipped(program: Program) -> None:
    """Gradients clipped on one side only."""
    program.before_update = lambda one: nn.utils.clip_grad_norm_(one.model.parameters(), 0.1, foreach=False)


@bug("decoder", "optimizer:*", kinds="input update extra", levels="mix")
def gradients_not_cleared(program: Program) -> None:
    """zero_grad() is called in the wrong place, so that an earlier gradient is still there."""
    generator = torch.Generator().manual_seed(4)
    for one in program.model.parameters():
        one.grad = (0.01 * torch.randn(one.shape, generator=generator)).to(one.dtype)


@bug("decoder", ":cross_entropy", kinds="argument", levels="mix")
def label_smoothing_left_on(program: Program) -> None:
    """label_smoothing=0.1 on one side."""

    def loss(one: Program) -> torch.Tensor:
        ids = one.batch["ids"]
        logits = one.model(ids)[:, :-1].flatten(0, 1).float()
        return nn.functional.cross_entropy(logits, ids[:, 1:].flatten(), label_smoothing=0.1)

    program.loss = loss
