"""A second set of cases written from the public documentation alone: bugs in language models.

Mistakes as people make them when they port, rewrite or train a model. Committed before their first run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional

from judge import models_blind2
from judge.cases import bug
from judge.models import Program

WIDE = {"width": 512, "layers": 2}


def attend_with(program: Program, name: str, layers: list[Any], attend: Callable[..., Any]) -> None:
    """These layers of a model of transformers use another attention function; the masks stay."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    for layer in layers:
        layer.self_attn.config = copy.copy(program.model.config)
        layer.self_attn.config._attn_implementation_internal = name


def eager(q: Any, k: Any, v: Any, mask: Any, scaling: float) -> tuple[torch.Tensor, None]:
    """Attention written out, for keys that are repeated already."""
    scores = torch.matmul(q, k.transpose(2, 3)) * scaling
    if mask is not None:
        scores = scores + mask
    weights = functional.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
    return torch.matmul(weights, v).transpose(1, 2).contiguous(), None


# Bugs: Qwen2


@bug("qwen2", "model.rotary_emb:*", kinds="parameter")
def base_of_the_older_model(program: Program) -> None:
    """The rotary base is 10,000 in place of 1,000,000."""
    rotary = program.model.model.rotary_emb
    rotary.inv_freq = 1.0 / 10000 ** (torch.arange(0, 16, 2).float() / 16)


@bug("qwen2", *(f"model.layers.1.self_attn:{api}" for api in ("matmul", "expand", "reshape", "repeat")),
     kinds="permutation input function missing extra part")  # fmt: skip
def keys_repeated_in_turn(program: Program) -> None:
    """repeat in place of repeat_interleave: heads get the other group's key."""
    attend_with(
        program, "in_turn", [program.model.model.layers[1]],
        lambda _, q, k, v, mask, scaling, **__: eager(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), mask, scaling),
    )  # fmt: skip


@bug("qwen2", "model.layers.2.self_attn:__add__", kinds="input argument part")
def mask_of_one_layer_is_not_causal(program: Program) -> None:
    """One layer gets the mask of the padding only."""
    attend_with(
        program, "not_causal", [program.model.model.layers[2]],
        lambda _module, q, k, v, mask, scaling, **_: eager(
            q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), mask[..., -1:, :], scaling
        ),
    )  # fmt: skip


@bug("qwen2", "model.layers.0.self_attn.v_proj:*", kinds="parameter offset")
def bias_of_the_values_not_loaded(program: Program) -> None:
    """The converter knows biases of queries and keys only."""
    program.model.model.layers[0].self_attn.v_proj.bias.data.zero_()


@bug("qwen2", "model.rotary_emb:*", kinds="dtype", dtypes="float32")
def rotary_angles_in_half_precision(program: Program) -> None:
    """Positions times frequencies in bf16."""
    rotary = program.model.model.rotary_emb

    def forward(x, position_ids):
        angles = (position_ids[..., None].bfloat16() * rotary.inv_freq.bfloat16()).float()
        angles = torch.cat((angles, angles), -1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)

    rotary.forward = forward


@bug("qwen2", "model.layers.1.post_attention_layernorm:__mul__", kinds="parameter offset", options=WIDE)
def gain_decayed_to_zero(program: Program) -> None:
    """A gain was stored as its distance from one."""
    program.model.model.layers[1].post_attention_layernorm.weight.data.sub_(1.0)


# Bugs: Gemma 2


@bug("gemma2", *(f"model.layers.1.self_attn:{api}" for api in ("__truediv__", "tanh", "__mul__", "__add__")),
     kinds="missing saturation")  # fmt: skip
def scores_not_capped(program: Program) -> None:
    """One layer runs a kernel that knows no soft cap."""
    program.model.model.layers[1].self_attn.attn_logit_softcapping = None


@bug("gemma2", "model.layers.0.self_attn:__add__", "model.layers.0:*", kinds="input argument part permutation order")
def windows_in_the_odd_layers(program: Program) -> None:
    """Local and global layers change places."""
    config = program.model.model.config
    config.layer_types = config.layer_types[1:] + config.layer_types[:1]


@bug("gemma2", "model.layers.2.pre_feedforward_layernorm:*", kinds="missing offset factor function argument")
def gain_without_the_one(program: Program) -> None:
    """x * w in place of x * (1 + w)."""
    norm = program.model.model.layers[2].pre_feedforward_layernorm
    norm.forward = lambda x: (norm._norm(x.float()) * norm.weight.float()).type_as(x)


@bug("gemma2", "model.embed_tokens:*", kinds="parameter argument factor input")
def embeddings_not_scaled(program: Program) -> None:
    """Nobody multiplies by the root of the width."""
    program.model.model.embed_tokens.embed_scale.fill_(1.0)


@bug("gemma2", "model.layers.0.mlp.act_fn:*", kinds="argument function", dtypes="float32")
def exact_gelu(program: Program) -> None:
    """The exact GELU in place of its approximation by tanh, in every layer."""
    for layer in program.model.model.layers:
        layer.mlp.act_fn = nn.GELU()


@bug("gemma2", ":__truediv__", kinds="argument factor", levels="mix")
def cap_of_the_logits_is_thirty(program: Program) -> None:
    """The default of the config in place of the checkpoint's value."""
    program.model.config.final_logit_softcapping = 30.0


# Bugs: Bloom


@bug("bloom", "transformer:*", "transformer.h.0.self_attention:baddbmm", kinds="permutation input parameter",
     modules=("transformer", "transformer.h.0*"))  # fmt: skip
def slopes_of_the_heads_reversed(program: Program) -> None:
    """The steepest slope belongs to the last head."""
    from transformers.models.bloom import modeling_bloom

    plain = modeling_bloom._get_alibi_slopes
    program.around.append(patch.object(modeling_bloom, "_get_alibi_slopes", lambda *given: plain(*given).flip(0)))


@bug("bloom", "transformer.h.1.self_attention.query_key_value:*", kinds="parameter permutation")
def rows_in_the_order_of_gpt2(program: Program) -> None:
    """All queries, all keys, all values; Bloom wants them head by head."""
    linear = program.model.transformer.h[1].self_attention.query_key_value
    for one in linear.parameters():
        one.data = one.data.unflatten(0, (4, 3, 16)).transpose(0, 1).flatten(0, 2).contiguous()


@bug("bloom", "transformer.h.2.self_attention:__add__", "transformer.h.2:*", kinds="input argument")
def residual_of_the_normed_states(program: Program) -> None:
    """One block has the option of the smaller model."""
    program.model.transformer.h[2].apply_residual_connection_post_layernorm = True


@bug("bloom", ":cross_entropy", ":pad", ":BloomForCausalLM", kinds="input shift", levels="mix")
def labels_moved_twice(program: Program) -> None:
    """The data loader moves the labels by one, and so does the model."""
    labels = program.batch["labels"]
    program.batch["labels"] = torch.cat([labels[:, 1:], torch.full_like(labels[:, :1], -100)], 1)


# Bugs: Phi


@bug("phi", *(f"model.layers.1{place}" for place in (".mlp*:*", ".input_layernorm:*", ":__add__")),
     kinds="input order extra missing")  # fmt: skip
def feed_forward_after_attention(program: Program) -> None:
    """One layer runs its parts one after the other, not side by side."""
    layer = program.model.model.layers[1]

    def forward(states, *rest, **more):
        states = states + layer.resid_dropout(layer.self_attn(layer.input_layernorm(states), *rest, **more)[0])
        return states + layer.resid_dropout(layer.mlp(layer.input_layernorm(states)))

    layer.forward = forward


@bug("phi", "model.layers.2:__add__", "model.layers.2:PhiDecoderLayer", kinds="missing offset input")
def residual_dropped(program: Program) -> None:
    """The last layer forgets what came in."""
    layer = program.model.model.layers[2]

    def forward(states, *rest, **more):
        normed = layer.input_layernorm(states)
        found, _ = layer.self_attn(normed, *rest, **more)
        return layer.resid_dropout(found) + layer.resid_dropout(layer.mlp(normed))

    layer.forward = forward


@bug("phi", "model.embed_dropout:*", kinds="argument random part factor")
def dropout_of_the_embeddings_left_on(program: Program) -> None:
    """The fine-tuning recipe has it off."""
    program.model.model.embed_dropout.p = 0.1


@bug("phi", "model.layers.1.self_attn.dense:*", kinds="parameter transposition")
def square_matrix_transposed(program: Program) -> None:
    """The old checkpoint keeps [in, out]."""
    weight = program.model.model.layers[1].self_attn.dense.weight
    weight.data = weight.data.T.contiguous()


# Bugs: OPT and its training


@bug("opt", "optimizer:*", kinds="argument update factor")
def schedule_begins_at_zero(program: Program) -> None:
    """The warm-up counts from zero."""
    program.schedule = lambda step: step / 4


@bug("opt", "optimizer:*", "clip_grad:*", kinds="input update", direction="either")
def gradients_not_cleared(program: Program) -> None:
    """The second update sees the gradients of the first."""
    program.clear = lambda _optimizer: None


@bug("opt", "optimizer:*", "clip_grad:*", kinds="function missing extra update argument saturation",
     direction="either")  # fmt: skip
def clipped_by_value(program: Program) -> None:
    """Each element is cut off, where the norm should be."""
    program.bound, program.clip = 0.01, torch.nn.utils.clip_grad_value_


@bug("opt", "optimizer:*", kinds="argument update order", dtypes="float32 autocast")
def norms_decay_too(program: Program) -> None:
    """Biases and norms are in the group that decays."""
    program.optimizer = lambda model: models_blind2.without_decay_of_norms(model, bare=0)


@bug("opt", ":__truediv__", kinds="argument factor missing", levels="mix")
def accumulated_loss_not_divided(program: Program) -> None:
    """The sum over small batches in place of their mean."""
    program.accumulated = 1


@bug("opt", "model.decoder.embed_positions:*", kinds="argument input shift")
def positions_without_their_offset(program: Program) -> None:
    """OPT's table has two rows in front that the port does not skip."""
    program.model.model.decoder.embed_positions.offset = 0


@bug("opt", "optimizer:*", kinds="input argument update parameter factor")
def count_of_updates_restored_alone(program: Program) -> None:
    """A resumed run has the number of updates, but not the moments: nothing corrects their bias."""
    made = program.optimizer

    def resume(model):
        optimizer = made(model)
        for one in model.parameters():
            zero = {key: torch.zeros_like(one) for key in ("exp_avg", "exp_avg_sq")}
            optimizer.state[one] = {"step": torch.tensor(500.0), **zero}
        return optimizer

    program.optimizer = resume


# Bugs: the recurrent language model


@bug("rwkv", *(f"times.1:{api}" for api in ("exp", "__neg__", "__mul__", "float")), kinds="missing function order")
def decay_is_not_an_exponent(program: Program) -> None:
    """exp(-w) in place of exp(-exp(w))."""
    mix = program.model.times[1]
    mix.scan = lambda k, v: scan(k, v, torch.exp(-mix.decay.float()), mix.bonus.float())


def scan(k: torch.Tensor, v: torch.Tensor, fade: torch.Tensor, bonus: torch.Tensor, *, late: bool = False) -> Any:
    """The scan of models_blind2, with what may be wrong."""
    found, above, below = [], torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
    for at in range(k.shape[1]):
        own, now = torch.exp(bonus + k[:, at]), torch.exp(k[:, at])
        if late:
            above, below = fade * above + now * v[:, at], fade * below + now
        found.append((above + own * v[:, at]) / (below + own))
        if not late:
            above, below = fade * above + now * v[:, at], fade * below + now
    return torch.stack(found, 1)


@bug("rwkv", "times.0:*", kinds="order input extra missing offset")
def state_moves_before_it_is_read(program: Program) -> None:
    """The present token counts twice."""
    mix = program.model.times[0]
    mix.scan = lambda k, v: scan(k, v, torch.exp(-torch.exp(mix.decay.float())), mix.bonus.float(), late=True)


@bug("rwkv", *(f"times.1:{api}" for api in ("pad", "roll", "__mul__")), kinds="function part shift input missing extra")
def first_token_sees_the_last(program: Program) -> None:
    """roll in place of a shift with zeros."""
    program.model.times[1].earlier = lambda x: x.roll(1, 1)


@bug("rwkv", "times.0:*", kinds="dtype", dtypes="float32")
def state_kept_in_half_precision(program: Program) -> None:
    """The sums of one layer are bf16."""
    mix = program.model.times[0]
    mix.scan = lambda k, v: scan(
        k.bfloat16(), v.bfloat16(), torch.exp(-torch.exp(mix.decay.float())).bfloat16(), mix.bonus.bfloat16()
    ).float()


@bug("rwkv", "times.0.norm:*", kinds="argument")
def one_group_for_all_heads(program: Program) -> None:
    """The norm has one group in place of four."""
    program.model.times[0].norm.num_groups = 1


# Bugs: experts


class _NoWeight(models_blind2.Switch):
    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        logits = self.router(rows)
        weights = self.weigh(logits)
        _, chosen = weights.max(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            (mine,) = torch.where(chosen == number)
            mine = mine[: self.room]
            out = out.index_add(0, mine, expert(rows[mine]).to(out.dtype))
        extra = 0.05 * self.balance(weights, chosen) + 0.01 * torch.logsumexp(logits.float(), -1).square().mean()
        return out.view_as(x), extra


@bug("switch", *(f"blocks.1.switch:{api}" for api in ("__mul__", "index_add", "to")), kinds="missing factor part input")
def experts_not_weighted(program: Program) -> None:
    """The probability of the chosen expert is not multiplied in."""
    program.model.blocks[1].switch.__class__ = type("Switch", (_NoWeight,), {})


@bug("switch", "blocks.0.switch.experts.*:*", *(f"blocks.0.switch:{api}" for api in ("index_add", "__mul__")),
     modules=("blocks.0.switch", "blocks.0.switch.experts.*"), kinds="argument part missing input")  # fmt: skip
def experts_have_less_room(program: Program) -> None:
    """The capacity is rounded down before it is multiplied."""
    program.model.blocks[0].switch.room = 6


@bug("switch", "head:*", "embed:*", "optimizer:*", direction="either", kinds="parameter missing extra part update")
def head_not_tied(program: Program) -> None:
    """The head has a copy of the embeddings: only the gradients differ."""
    program.model.head.weight = nn.Parameter(program.model.head.weight.detach().clone())


@bug("switch", "blocks.1.switch.router:*", *(f"blocks.1.switch:{api}" for api in ("softmax", "mean", "__mul__", "max")),
     direction="either", kinds="missing part noise argument")  # fmt: skip
def balance_without_gradient(program: Program) -> None:
    """The probabilities are detached, so nothing balances."""
    switch = program.model.blocks[1].switch
    plain = switch.balance
    switch.balance = lambda weights, chosen: plain(weights.detach(), chosen)


@bug("switch", *(f"blocks.0.switch:{api}" for api in ("softmax", "float", "bfloat16", "to")), kinds="dtype",
     dtypes="float32", options=WIDE)  # fmt: skip
def router_in_half_precision(program: Program) -> None:
    """Experts are chosen by logits in bf16."""
    program.model.blocks[0].switch.weigh = lambda logits: torch.softmax(logits.bfloat16(), dim=-1).float()


@bug("switch", "blocks.1:scaled_dot_product_attention", kinds="argument")
def one_block_sees_the_future(program: Program) -> None:
    """is_causal got lost."""
    program.model.blocks[1].causal = False


# Bugs: translation


@bug("seq2seq", "reader:*", *(f":{api}" for api in ("_pack_padded_sequence", "sum", "__ne__", "sort", "index_select")),
     modules=("reader", ""), kinds="missing input part padding function")  # fmt: skip
def padding_is_read(program: Program) -> None:
    """The backward reader starts with padding: nobody packs the sentences."""
    model = program.model

    def read(ids):
        states, last = model.reader(model.source(ids))
        return states, model.join(last)

    model.read = read


@bug("seq2seq", ":masked_fill", ":softmax", kinds="missing part padding input")
def attention_to_padding(program: Program) -> None:
    """Scores of padding are not masked."""
    model = program.model

    def look(state, states, _real):
        weights = torch.softmax(torch.einsum("rw,rtw->rt", model.score(state), states), dim=-1)
        return torch.einsum("rt,rtw->rw", weights, states)

    model.look = look


@bug("seq2seq", ":cat", "bridge:*", kinds="order permutation input argument", modules=("", "bridge"))
def backward_state_comes_first(program: Program) -> None:
    """The two ways are joined the other way round."""
    program.model.join = lambda last: torch.cat([last[1], last[0]], -1)


@bug("seq2seq", ":cross_entropy", kinds="argument", levels="mix")
def padding_counts_in_the_loss(program: Program) -> None:
    """ignore_index has its default."""

    def loss(one):
        goal = one.batch["goal"]
        logits = one.model(one.batch["source"], goal[:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), goal[:, 1:].flatten(), label_smoothing=0.1)

    program.loss = loss


@bug("seq2seq", "bridge:*", "reader:*", ":cat", direction="either", kinds="missing part noise argument")
def decoder_begins_without_gradient(program: Program) -> None:
    """The encoder's last state is detached."""
    model = program.model
    model.begin = lambda last: (torch.tanh(model.bridge(last.detach())), torch.zeros_like(last))


@bug("seq2seq", "cell:*", kinds="parameter offset part")
def forget_bias_of_one_added(program: Program) -> None:
    """The other framework adds one to the forget gate; the converter adds it too."""
    program.model.cell.bias_ih.data[48:96] += 1.0
