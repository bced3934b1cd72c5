"""Cases written from the public documentation alone, by somebody who had not seen how the judge works.

Mistakes that people who port or scale models report, on the families of models.py and models_blind.py.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from judge import models_blind  # noqa: F401  its families register themselves
from judge.cases import artefact, bug, clean
from judge.models import Program


def regroup(one: nn.Parameter, *shape: int, order: tuple[int, ...]) -> None:
    """The rows of a weight in another order."""
    with torch.no_grad():
        one.copy_(one.view(*shape, *one.shape[1:]).permute(*order, *range(len(shape), len(shape) + one.dim() - 1))
                  .reshape(one.shape).clone())  # fmt: skip


def option(program: Program, **options: Any) -> None:
    """Other options of the optimiser."""
    made = program.optimizer

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = made(parameters)
        for group in optimizer.param_groups:
            group.update(options)
        return optimizer

    program.optimizer = make


# Bugs: the vision transformer


@bug("patches", "layers.1.heads.qkv:*", kinds="parameter permutation")
def weights_ordered_by_head(program: Program) -> None:
    """The checkpoint has q, k, v of each head together; the model wants all q first."""
    qkv = program.model.layers[1].heads.qkv
    regroup(qkv.weight, 3, 4, 16, order=(1, 0, 2))
    regroup(qkv.bias, 3, 4, 16, order=(1, 0, 2))


@bug("patches", ":__add__", kinds="parameter input shift permutation")
def positions_off_by_one(program: Program) -> None:
    """The position table was cut for a class token that this model does not have."""
    program.model.places.data = program.model.places.data.roll(1, 0)


@bug("patches", "layers.2.heads:__mul__", kinds="argument factor")
def scale_of_the_whole_width(program: Program) -> None:
    """1 / sqrt(width) in place of 1 / sqrt(width of a head)."""
    program.model.layers[2].heads.scale = 64**-0.5


@bug("patches", "stem:*", kinds="input permutation")
def pictures_in_bgr(program: Program) -> None:
    """Another library reads the pictures."""
    program.batch["x"] = program.batch["x"].flip(1)


@bug("patches", "layers.0.heads:__add__", kinds="parameter input transposition permutation")
def relative_positions_transposed(program: Program) -> None:
    """Rows and columns exchanged in the index of the bias table."""
    for layer in program.model.layers:
        layer.heads.index = layer.heads.index.view(4, 4, 4, 4).permute(1, 0, 3, 2).reshape(16, 16)


@bug("patches", "layers.1.drop:*", kinds="argument random")
def dropout_of_the_old_recipe(program: Program) -> None:
    """One dropout is on."""
    program.model.layers[1].drop.p = 0.2


@bug("patches", "layers.0.act:*", kinds="argument function", dtypes="float32", options={"width": 512, "layers": 2})
def approximate_gelu(program: Program) -> None:
    """The other framework's default GELU is the approximation by tanh."""
    for layer in program.model.layers:
        layer.act.approximate = "tanh"


@bug("patches", ":cross_entropy", kinds="argument")
def labels_not_smoothed(program: Program) -> None:
    """The smoothing got lost on the way into the loss."""
    program.loss = lambda one: functional.cross_entropy(one.model(one.batch["x"]).float(), one.batch["labels"])


@bug("patches", "layers.1.heads:softmax", "layers.1.heads:to", "layers.1.heads:bfloat16", kinds="dtype",
     dtypes="float32", options={"width": 512, "layers": 2})  # fmt: skip
def softmax_in_half_precision(program: Program) -> None:
    """A kernel keeps the scores in bf16."""
    heads = program.model.layers[1].heads

    def attend(q, k, v, bias):
        scores = q @ k.transpose(-2, -1) * heads.scale + bias
        return torch.softmax(scores.bfloat16(), dim=-1).to(v.dtype) @ v

    heads.attend = attend


class _QuickGelu(torch.autograd.Function):
    """x sigmoid(1.702 x), with its derivative written by hand."""

    inner = 1.702

    @classmethod
    def forward(cls, ctx, x):
        """Keeps x."""
        ctx.save_for_backward(x)
        return x * torch.sigmoid(1.702 * x)

    @classmethod
    def backward(cls, ctx, gradient):
        """The product rule."""
        (x,) = ctx.saved_tensors
        part = torch.sigmoid(1.702 * x)
        return gradient * part * (1 + cls.inner * x * (1 - part))


class _WrongQuickGelu(_QuickGelu):
    inner = 1.0


class _Kernel(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call the kernel."""
        return self.function.apply(x)


def with_kernels(program: Program) -> None:
    """Activations are kernels with their own backward."""
    for layer in program.model.layers:
        layer.act = _Kernel(_QuickGelu)


@bug("patches", "layers.1.act:*", "layers.1.fc1:*", direction="backward", base=with_kernels, kinds="noise")
def inner_derivative_forgotten(program: Program) -> None:
    """The backward of one kernel lacks the factor 1.702; its forward is right."""
    program.model.layers[1].act = _Kernel(_WrongQuickGelu)


@bug("patches", "optimizer:*", kinds="argument update factor", dtypes="float32")
def weight_decay_of_another_recipe(program: Program) -> None:
    """0.3 in place of 0.05."""
    option(program, weight_decay=0.3)


@bug("patches", "optimizer:*", kinds="function missing extra argument update", dtypes="float32")
def decay_added_to_the_gradient(program: Program) -> None:
    """Adam with L2 regularisation in place of AdamW."""
    program.optimizer = lambda ones: torch.optim.Adam(ones, lr=1e-3, weight_decay=0.05, foreach=False)


# Bugs: convolutions over time


@bug("wavenet", "levels.1.filter:*", kinds="argument shift")
def one_filter_sees_the_future(program: Program) -> None:
    """Padding "same" in place of padding on the left."""
    program.model.levels[1].filter.ahead = 2


@bug("wavenet", "levels.2.gate:*", kinds="parameter permutation")
def kernel_not_flipped(program: Program) -> None:
    """Convolution and correlation are each other's mirror image."""
    gate = program.model.levels[2].gate
    gate.weight.data = gate.weight.data.flip(-1)


@bug("wavenet", "levels.0:hardsigmoid", "levels.0:sigmoid", kinds="function")
def hard_sigmoid_for_speed(program: Program) -> None:
    """The deployed gate is piecewise linear."""
    level = program.model.levels[0]

    def forward(x):
        skip = level.mix(torch.tanh(level.filter(x)) * functional.hardsigmoid(level.gate(x)))
        return x + skip, skip

    level.forward = forward


@bug("wavenet", "norm:batch_norm", kinds="argument parameter", levels="mix")
def momentum_the_other_way_round(program: Program) -> None:
    """0.9 of the other framework is 0.1 here: only the running statistics are wrong."""
    program.model.norm.momentum = 0.9


@bug("wavenet", "optimizer:*", kinds="argument update factor")
def decay_of_rmsprop(program: Program) -> None:
    """rho is 0.9 in the other framework and 0.99 here."""
    option(program, alpha=0.9)


# Bugs: the recommender


@bug("ranker", "bags.0:*", kinds="argument factor")
def bag_is_summed(program: Program) -> None:
    """Sum in place of mean."""
    program.model.bags[0].mode = "sum"


@bug("ranker", "bags.1:*", kinds="argument part padding")
def padding_counts(program: Program) -> None:
    """The padded places of one bag take part in its mean."""
    program.model.bags[1].padding_idx = None


@bug("ranker", "bags.2:*", kinds="parameter permutation shift")
def vocabulary_moved_by_one(program: Program) -> None:
    """The table was saved with a row for unknown ids in front."""
    program.model.bags[2].weight.data = program.model.bags[2].weight.data.roll(1, 0)


@bug("ranker", "top.0:*", kinds="input permutation")
def products_come_first(program: Program) -> None:
    """Dense features and products concatenated the other way round."""
    program.model.join = lambda dense, products: torch.cat([products, dense], 1)


@bug("ranker", "optimizer:*", kinds="argument input parameter update")
def accumulator_starts_at_a_tenth(program: Program) -> None:
    """Adagrad's initial accumulator is 0.1 in the other framework and 0 here."""
    program.optimizer = lambda ones: torch.optim.Adagrad(ones, lr=0.01, initial_accumulator_value=0.1, foreach=False)


# Bugs: message passing


@bug("molecule", "rounds.0.message:*", "rounds.0:index_add", kinds="input permutation argument")
def edges_point_backwards(program: Program) -> None:
    """Source and goal of every edge exchanged."""
    program.batch["edges"] = program.batch["edges"].flip(0)


@bug("molecule", "rounds.1:__truediv__", "rounds.1.update:*", kinds="missing factor part input")
def sum_in_place_of_mean(program: Program) -> None:
    """One round does not divide by the number of neighbours."""
    program.model.rounds[1].mean = False


@bug("molecule", "rounds.2.update:*", kinds="parameter permutation")
def gates_in_another_order(program: Program) -> None:
    """Reset and update gate exchanged in the recurrent cell."""
    cell = program.model.rounds[2].update
    order = torch.cat([torch.arange(48, 96), torch.arange(48), torch.arange(96, 144)])
    for one in cell.parameters():
        one.data = one.data[order]


@bug("molecule", ":__add__", ":sqrt", direction="either", kinds="nan argument")
def root_of_zero(program: Program) -> None:
    """Atoms have distance zero to themselves: the forward is right, the gradient is NaN."""
    program.model.eps = 0.0


@bug("molecule", "rounds.1.message:*", "rounds.1:Round", "rounds.0.update:*", direction="backward",
     kinds="missing part noise")  # fmt: skip
def messages_without_gradient(program: Program) -> None:
    """A detach left over from an experiment."""
    program.model.rounds[1].gather = lambda x, source: x.detach()[source]


# Bugs: models of the other families


@bug("llama", "model.layers.2.self_attn.q_proj:*", "model.layers.2.self_attn.k_proj:*", kinds="parameter permutation")
def rotary_layout_not_converted(program: Program) -> None:
    """Queries and keys of the original checkpoint turn pairs, those of transformers halves."""
    attention = program.model.model.layers[2].self_attn
    for one in (attention.q_proj, attention.k_proj):
        regroup(one.weight, 4, 2, 8, order=(0, 2, 1))


@bug("llama", ":cross_entropy", ":__truediv__", kinds="argument factor")
def loss_of_another_batch_size(program: Program) -> None:
    """With gradient accumulation the sum is divided by the tokens of all batches; the count is that of one row."""
    program.batch["num_items_in_batch"] = 15


@bug("llama", "model.layers.0.input_layernorm:__add__", kinds="argument", dtypes="float32",
     modules="model.layers.0.input_layernorm")  # fmt: skip
def epsilon_of_the_older_config(program: Program) -> None:
    """1e-5 in place of 1e-6, in every norm."""
    for module in program.model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-5


@bug("llama", "model.layers.1.mlp.down_proj:*", kinds="parameter noise dtype", dtypes="float32",
     options={"width": 512, "layers": 2})  # fmt: skip
def one_weight_was_quantised(program: Program) -> None:
    """A weight went through eight bits with one scale for each row."""
    weight = program.model.model.layers[1].mlp.down_proj.weight
    scale = weight.data.abs().amax(1, keepdim=True) / 127
    weight.data = (weight.data / scale).round() * scale


@bug("llama", "model.layers.1.self_attn.v_proj:*", kinds="parameter")
def adapter_merged_twice(program: Program) -> None:
    """A low-rank update was added to a weight that already had it."""
    weight = program.model.model.layers[1].self_attn.v_proj.weight
    generator = torch.Generator().manual_seed(1)
    left, right = torch.randn(64, 2, generator=generator), torch.randn(2, 64, generator=generator)
    weight.data += (0.01 * left @ right).to(weight.dtype)


@bug("gpt2", "transformer.h.1.attn.c_proj:*", kinds="parameter transposition")
def square_weight_transposed(program: Program) -> None:
    """GPT-2 keeps weights as [in, out]; a square one does not complain."""
    weight = program.model.transformer.h[1].attn.c_proj.weight
    weight.data = weight.data.T.contiguous()


@bug("bert", "bert.pooler.dense:*", kinds="input argument shift")
def last_token_pooled(program: Program) -> None:
    """The pooler takes the last token in place of the first."""
    pooler = program.model.bert.pooler
    pooler.forward = lambda states: pooler.activation(pooler.dense(states[:, -1]))


@bug("t5", ":__setitem__", "decoder.embed_tokens:*", "shared:*", kinds="argument input part",
     modules="decoder.embed_tokens")  # fmt: skip
def another_start_token(program: Program) -> None:
    """The decoder starts with the end token in place of the padding token."""
    program.model.config.decoder_start_token_id = 2


@bug("whisper", "model.encoder.embed_positions:*", kinds="parameter permutation")
def sines_and_cosines_interleaved(program: Program) -> None:
    """The table of positions has sine, cosine, sine ... in place of all sines first."""
    table = program.model.model.encoder.embed_positions.weight
    table.data = table.data.view(-1, 2, 32).transpose(1, 2).reshape(table.shape).contiguous()


@bug("mixtral", "model.layers.1.mlp.experts:_grouped_mm", kinds="parameter permutation part")
def two_experts_exchanged(program: Program) -> None:
    """The files of two experts were read in alphabetical order."""
    experts = program.model.model.layers[1].mlp.experts
    for one in (experts.gate_up_proj, experts.down_proj):
        one.data = one.data[[0, 2, 1, 3]]


@bug("mixtral", "model.layers.2.mlp.gate:__itruediv__", "model.layers.2.mlp.gate:sum", kinds="missing factor part",
     modules="model.layers.2.mlp.gate")  # fmt: skip
def expert_weights_not_normalised(program: Program) -> None:
    """The weights of the chosen experts do not add up to one."""
    gate = program.model.model.layers[2].mlp.gate

    def forward(states):
        logits = functional.linear(states.reshape(-1, gate.hidden_dim), gate.weight)
        value, index = torch.topk(functional.softmax(logits.float(), dim=-1), gate.top_k, dim=-1)
        return logits, value, index

    gate.forward = forward


@bug("clip", "vision_model.encoder.layers.0.mlp.activation_fn:*", kinds="function missing extra", dtypes="float32 bf16")
def gelu_in_place_of_quick_gelu(program: Program) -> None:
    """The config does not say which GELU the weights were trained with."""
    for tower in (program.model.vision_model, program.model.text_model):
        for layer in tower.encoder.layers:
            layer.mlp.activation_fn = nn.GELU()


@bug("convnext", "convnext.encoder.stages.1.layers.1:__mul__", "convnext.encoder.stages.1.layers.1:__add__",
     kinds="missing factor")  # fmt: skip
def layer_scale_dropped(program: Program) -> None:
    """One layer's scale was not in the checkpoint, and the port leaves it out."""
    program.model.convnext.encoder.stages[1].layers[1].layer_scale_parameter = None


@bug("unet", "down_1.time:*", kinds="input permutation")
def cosines_first(program: Program) -> None:
    """Sines and cosines of the time concatenated the other way round."""
    plain = program.model.embed
    program.model.embed = lambda time: plain(time).roll(8, -1)


@bug("lstm", "lstm:*", kinds="parameter permutation")
def gates_as_the_exporter_has_them(program: Program) -> None:
    """Input, output, forget, cell in place of input, forget, cell, output."""
    order = torch.cat([torch.arange(48) + 48 * gate for gate in (0, 3, 1, 2)])
    for one in program.model.lstm.parameters():
        one.data = one.data[order]


@bug("mamba", "backbone.layers.1.mixer:conv1d", "backbone.layers.1.mixer.conv1d:*", kinds="parameter permutation",
     modules="backbone.layers.1.mixer*")  # fmt: skip
def scan_kernel_flipped(program: Program) -> None:
    """The short convolution runs backwards in time."""
    weight = program.model.backbone.layers[1].mixer.conv1d.weight
    weight.data = weight.data.flip(-1)


@bug("decoder", "blocks.2:__add__", kinds="input")
def residual_after_the_norm(program: Program) -> None:
    """The residual is taken from the normed input."""
    block = program.model.blocks[2]

    def forward(x):
        normed = block.norm_1(x)
        x = normed + block.attention(normed)
        return x + block.mlp(block.norm_2(x))

    block.forward = forward


@bug("decoder", "optimizer:*", kinds="input update")
def gradients_of_the_last_step_remain(program: Program) -> None:
    """Nobody called zero_grad: the update uses this step's and the last step's gradient."""

    def add_old(one: Program) -> None:
        generator = torch.Generator().manual_seed(1)
        for parameter in one.model.parameters():
            old = 0.5 * parameter.grad.float().std() * torch.randn(parameter.shape, generator=generator)
            parameter.grad.data = parameter.grad.data + old.to(parameter.dtype)

    program.before_update = add_old


# Clean pairs


@clean("patches")
def patches_by_unfolding(program: Program) -> None:
    """The convolution of the patches as one matrix product."""
    model = program.model

    def embed(x):
        parts = functional.unfold(x, 8, stride=8).transpose(1, 2)
        return functional.linear(parts, model.stem.weight.flatten(1), model.stem.bias)

    model.embed = embed


@clean("patches")
def fused_attention(program: Program) -> None:
    """scaled_dot_product_attention with the bias as its mask."""
    for layer in program.model.layers:
        heads = layer.heads
        heads.attend = lambda q, k, v, bias, scale=heads.scale: functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.expand(len(q), -1, -1, -1), scale=scale
        )


@clean("patches", options={"width": 512, "layers": 2})
def fused_attention_when_wide(program: Program) -> None:
    """The same where rounding is real."""
    fused_attention(program)


@clean("patches", options={"width": 512, "layers": 2})
def queries_scaled_before_the_product(program: Program) -> None:
    """(q * scale) @ k in place of (q @ k) * scale."""
    for layer in program.model.layers:
        layer.heads.attend = lambda q, k, v, bias, scale=layer.heads.scale: (
            torch.softmax((q * scale) @ k.transpose(-2, -1) + bias, dim=-1) @ v
        )


@clean("patches")
def optimiser_in_one_kernel(program: Program) -> None:
    """The foreach implementation of AdamW."""
    program.optimizer = lambda ones: torch.optim.AdamW(ones, lr=1e-3, weight_decay=0.05, foreach=True)


@clean("patches", options={"width": 512, "layers": 2})
def wide_layer_in_two_halves(program: Program) -> None:
    """The second matrix of the feed-forward is multiplied in two parts, as two ranks would."""
    for layer in program.model.layers:
        fc2 = layer.fc2
        fc2.forward = lambda x, one=fc2: (
            functional.linear(x[..., :1024], one.weight[:, :1024])
            + functional.linear(x[..., 1024:], one.weight[:, 1024:], one.bias)
        )


@clean("wavenet")
def padding_on_both_sides_then_cut(program: Program) -> None:
    """Causal convolution as the convolution's own padding and a slice."""
    for level in program.model.levels:
        for one in (level.filter, level.gate):
            width = 2 * one.dilation[0]
            one.forward = lambda x, one=one, width=width: functional.conv1d(
                x, one.weight, one.bias, padding=width, dilation=one.dilation
            )[..., :-width]


@clean("wavenet")
def convolutions_without_onednn(program: Program) -> None:
    """Another library computes the convolutions."""
    program.around.append(torch.backends.mkldnn.flags(enabled=False))


@clean("wavenet")
def gate_through_tanh(program: Program) -> None:
    """sigmoid(x) as (1 + tanh(x / 2)) / 2."""
    for level in program.model.levels:

        def forward(x, level=level):
            skip = level.mix(torch.tanh(level.filter(x)) * (0.5 * torch.tanh(0.5 * level.gate(x)) + 0.5))
            return x + skip, skip

        level.forward = forward


@clean("ranker")
def bags_by_hand(program: Program) -> None:
    """Embedding, mask, sum and division in place of EmbeddingBag."""
    for bag in program.model.bags:

        def forward(ids, bag=bag):
            real = (ids != 0)[..., None].to(bag.weight.dtype)
            return (functional.embedding(ids, bag.weight, padding_idx=0) * real).sum(1) / real.sum(1).clamp(min=1)

        bag.forward = forward


@clean("ranker")
def products_by_einsum(program: Program) -> None:
    """einsum in place of bmm, one pair after the other."""
    pairs = list(zip(*torch.tril_indices(4, 4, -1).tolist(), strict=True))
    program.model.products = lambda x: torch.stack([torch.einsum("rw,rw->r", x[:, i], x[:, j]) for i, j in pairs], 1)


@clean("molecule")
def sums_by_matrix_product(program: Program) -> None:
    """The sum over neighbours as a product with the incidence matrix."""
    for one in program.model.rounds:
        one.add_up = lambda messages, goal, count: (
            functional.one_hot(goal, count).to(messages.dtype).transpose(0, 1) @ messages
        )


@clean("molecule")
def sums_by_scatter(program: Program) -> None:
    """scatter_add in place of index_add."""
    for one in program.model.rounds:
        one.add_up = lambda messages, goal, count: messages.new_zeros(count, messages.shape[1]).scatter_add(
            0, goal[:, None].expand_as(messages), messages
        )


@clean("gpt2")
def linear_in_place_of_conv1d(program: Program) -> None:
    """Weights as [out, in], multiplied by linear."""
    for block in program.model.transformer.h:
        for one in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj):
            one.forward = lambda x, one=one: functional.linear(x, one.weight.T.contiguous(), one.bias)


@clean("llama", options={"width": 512, "layers": 2})
def norms_in_one_kernel(program: Program) -> None:
    """The framework's own RMS norm."""
    for module in program.model.modules():
        if hasattr(module, "variance_epsilon"):
            module.forward = lambda x, one=module: functional.rms_norm(
                x, one.weight.shape, one.weight, one.variance_epsilon
            )


@clean("lstm")
def gru_unrolled(program: Program) -> None:
    """The recurrent layer as a loop over its cell."""
    gru = program.model.gru

    def forward(x, _state=None):
        state, found = x.new_zeros(len(x), 48), []
        for at in range(x.shape[1]):
            state = torch.gru_cell(x[:, at], state, *(getattr(gru, f"{one}_l0") for one in WEIGHTS))
            found.append(state)
        return torch.stack(found, 1), state

    gru.forward = forward


WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")

# Artefacts


@artefact("whisper", notes="parameter argument extra")
def keys_with_a_bias_of_zero(program: Program) -> None:
    """Whisper's keys have no bias; the port gives them one that is zero."""
    for one in (program.model.model.encoder, program.model.model.decoder):
        for layer in one.layers:
            key = layer.self_attn.k_proj
            key.bias = nn.Parameter(torch.zeros_like(key.weight[:, 0]))


@artefact("molecule", notes="permutation input")
def edges_in_another_order(program: Program) -> None:
    """The loader sorts the edges by their goal."""
    order = program.batch["edges"][1].argsort(stable=True)
    for key in ("edges", "kind", "length"):
        program.batch[key] = program.batch[key][..., order] if key == "edges" else program.batch[key][order]


@artefact("ranker", notes="parameter argument")
def tables_padded_for_the_hardware(program: Program) -> None:
    """Tables have 256 rows in place of 200; nobody reads the others."""
    for bag in program.model.bags:
        bag.table = nn.Parameter(torch.cat([bag.weight.data, torch.zeros_like(bag.weight.data[:56])]))
        del bag.weight
        bag.forward = lambda ids, one=bag: functional.embedding_bag(ids, one.table, mode="mean", padding_idx=0)


@artefact("patches", notes="extra")
def watch_for_nan(program: Program) -> None:
    """Every layer is asked whether its output is finite."""

    def watch(_module, _inputs, output) -> None:
        if not torch.isfinite(output).all():
            raise FloatingPointError("not finite")

    for layer in program.model.layers:
        layer.register_forward_hook(watch)


@artefact("patches", notes="factor extra")
def loss_scaling(program: Program) -> None:
    """The loss is multiplied by 1024 and the gradients are divided by it, as with mixed precision."""
    program.backward = lambda loss: (loss * 1024).backward()

    def unscale(one: Program) -> None:
        for parameter in one.model.parameters():
            parameter.grad.div_(1024)

    program.before_update = unscale


@artefact("gpt2", notes="argument")
def dropout_of_a_model_that_evaluates(program: Program) -> None:
    """Dropout has another rate, but is off."""
    program.model.eval()
    for module in program.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.1


@artefact("resnet", notes="parameter input argument")
def batches_counted_from_elsewhere(program: Program) -> None:
    """The counter of batches goes on from a checkpoint; with a fixed momentum nothing reads it."""
    for module in program.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.num_batches_tracked.fill_(1000)


@artefact("lstm", notes="input argument extra")
def state_of_zeros_given(program: Program) -> None:
    """The initial state is given, as zeros, in place of left out."""
    program.model.state = torch.zeros(1, 2, 48, dtype=program.model.head.weight.dtype)


@artefact("t5", notes="input argument extra")
def mask_of_ones_given(program: Program) -> None:
    """A mask that hides nothing."""
    program.batch["attention_mask"] = torch.ones_like(program.batch["input_ids"])


@artefact("vit", notes="extra")
def hidden_states_returned(program: Program) -> None:
    """All hidden states are returned too."""
    program.batch["output_hidden_states"] = True


@artefact("wavenet", notes="random extra")
def noise_drawn_for_a_picture(program: Program) -> None:
    """Random numbers are drawn for a plot, from the generator that the model would use."""

    def draw(_module, _inputs) -> None:
        torch.randn(16)

    program.model.levels[0].register_forward_pre_hook(draw)


@artefact("patches", notes="order")
def parameters_updated_in_two_groups(program: Program) -> None:
    """Biases and norms are updated after all matrices, with the same options."""
    program.optimizer = lambda ones: torch.optim.AdamW(
        [{"params": [one for one in ones if one.dim() > 1]}, {"params": [one for one in ones if one.dim() == 1]}],
        lr=1e-3, weight_decay=0.05, foreach=False,
    )  # fmt: skip


@artefact("decoder", notes="extra")
def copies_for_an_offloader(program: Program) -> None:
    """Each block's input is copied out of place first."""
    for block in program.model.blocks:
        plain = block.forward
        block.forward = lambda x, plain=plain: plain(x.clone().contiguous())
