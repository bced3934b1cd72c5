"""Planted bugs in language models: what goes wrong when a model is ported, converted or configured by hand."""

from __future__ import annotations

import types

import torch
from torch import nn

from judge.cases import bug
from judge.models import Program

WIDE = {"width": 512, "layers": 2, "heads": 8, "rows": 1, "length": 48}


@torch.no_grad()
def swap(one: torch.Tensor | nn.Module, two: torch.Tensor | nn.Module) -> None:
    """Exchange the values of two parameters, or of all parameters of two modules."""
    if isinstance(one, nn.Module):
        for first, second in zip(one.parameters(), two.parameters(), strict=True):
            swap(first, second)
        return
    kept = one.clone()
    one.copy_(two)
    two.copy_(kept)


def after(module: nn.Module, change) -> None:
    """Run the module's output through a function, as an inserted line of code would."""
    module.register_forward_hook(lambda _module, _inputs, output: change(output))


# Llama


@bug("llama", "model.layers.2.self_attn:scaled_dot_product_attention", kinds="argument")
def attention_scale_is_too_large(program: Program) -> None:
    """A softmax scale that the port reads from another key of the config."""
    program.model.model.layers[2].self_attn.scaling *= 1.3


@bug("llama", "model.layers.1.self_attn:scaled_dot_product_attention", kinds="argument", options=WIDE)
def attention_scale_at_width_512(program: Program) -> None:
    """The scale of another head size, in a model that is wide enough for real noise."""
    program.model.model.layers[1].self_attn.scaling = 48**-0.5


@bug("llama", "model.rotary_emb:*", kinds="parameter input argument")
def rope_base_of_another_version(program: Program) -> None:
    """rope_theta 500000 instead of 10000."""
    rotary = program.model.model.rotary_emb
    size = 2 * len(rotary.inv_freq)
    with torch.no_grad():
        rotary.inv_freq.copy_(500000.0 ** -(torch.arange(0, size, 2) / size))


@bug(
    "llama",
    "model.layers.1.self_attn:__*__",
    "model.layers.1.self_attn:stack",
    kinds="permutation function extra missing order",
)
def rotary_layout_of_pairs(program: Program) -> None:
    """Interleaved rotary layout for weights that were written for halves, in one layer."""
    from transformers.models.llama import modeling_llama

    attention = program.model.model.layers[1].self_attn
    plain, usual = attention.forward, modeling_llama.rotate_half

    def turn_pairs(x: torch.Tensor) -> torch.Tensor:
        return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)

    def forward(*args, **kwargs):
        modeling_llama.rotate_half = turn_pairs
        try:
            return plain(*args, **kwargs)
        finally:
            modeling_llama.rotate_half = usual

    attention.forward = forward


@bug("llama", "model.layers.0.input_layernorm:*", kinds="argument", dtypes="float32")
def rms_eps_1e_5(program: Program) -> None:
    """rms_norm_eps 1e-5 instead of 1e-6."""
    program.model.model.layers[0].input_layernorm.variance_epsilon = 1e-5


@bug("llama", "model.layers.1.self_attn.q_proj:*", kinds="parameter")
def query_and_key_weights_swapped(program: Program) -> None:
    """A checkpoint converter that mixed up two names."""
    attention = program.model.model.layers[1].self_attn
    swap(attention.q_proj, attention.k_proj)


@bug("llama", "model.layers.1.input_layernorm:*", kinds="parameter")
def layers_one_and_two_swapped(program: Program) -> None:
    """Pipeline stages that were put together in the wrong order."""
    swap(program.model.model.layers[1], program.model.model.layers[2])


@bug("llama", "model.layers.3.mlp.gate_proj:*", kinds="parameter")
def gate_and_up_swapped(program: Program) -> None:
    """A fused gate_up weight that was split the wrong way round."""
    mlp = program.model.model.layers[3].mlp
    swap(mlp.gate_proj, mlp.up_proj)


@bug("llama", "model.layers.1.mlp.act_fn:*", kinds="function extra missing")
def gelu_instead_of_silu(program: Program) -> None:
    """hidden_act of another model."""
    program.model.model.layers[1].mlp.act_fn = nn.GELU()


@bug("llama", "lm_head:*", kinds="parameter", options={"tied": True})
def head_is_not_tied(program: Program) -> None:
    """The head keeps the weights that the embedding had before it was fine-tuned."""
    weight = program.model.get_input_embeddings().weight.detach()
    noise = 0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(1))
    program.model.lm_head.weight = nn.Parameter(weight + noise.to(weight.dtype))


@bug(
    "llama", "model.layers.1:*", "model.layers.2.input_layernorm:*", modules=("model.layers.1", "model.layers.2*"),
    kinds="dtype extra", dtypes="float32",
)  # fmt: skip
def cast_to_bf16_between_layers(program: Program) -> None:
    """Activations that are sent to the next stage in bf16."""
    after(program.model.model.layers[1], lambda output: output.bfloat16().float())


@bug("llama", "model.layers.2.self_attn.q_proj:*", kinds="parameter permutation part")
def two_heads_exchanged(program: Program) -> None:
    """Heads 1 and 2 of the queries changed places when tensor-parallel shards were merged."""
    weight = program.model.model.layers[2].self_attn.q_proj.weight
    swap(weight[16:32], weight[32:48])


@bug("llama", "model.layers.0.self_attn.o_proj:*", kinds="parameter transposition", options=WIDE)
def square_weight_is_transposed(program: Program) -> None:
    """A square weight of a framework that stores it as [in, out]."""
    weight = program.model.model.layers[0].self_attn.o_proj.weight
    weight.data = weight.data.t().contiguous()


@bug("llama", "model.layers.3.self_attn:scaled_dot_product_attention", kinds="argument input")
def last_layer_is_not_causal(program: Program) -> None:
    """A layer that was taken for a bidirectional one."""
    program.model.model.layers[3].self_attn.is_causal = False


# GPT-2


@bug("gpt2", "transformer.h.1.mlp.act:*", kinds="function extra missing", dtypes="float32")
def gelu_erf_instead_of_tanh(program: Program) -> None:
    """The exact GELU for weights trained with the approximation."""
    program.model.transformer.h[1].mlp.act = nn.GELU()


@bug("gpt2", "transformer.h.0.attn.c_proj:*", kinds="parameter offset")
def projection_bias_not_loaded(program: Program) -> None:
    """A key that the loader skipped, so that the bias stays zero."""
    nn.init.zeros_(program.model.transformer.h[0].attn.c_proj.bias)


@bug("gpt2", "transformer.h.1.mlp.dropout:*", kinds="argument random")
def dropout_left_on(program: Program) -> None:
    """eval() does not reach a dropout that was put in later."""
    program.model.transformer.h[1].mlp.dropout.p = 0.1


@bug("gpt2", "transformer.h.2.ln_2:*", kinds="argument", dtypes="float32")
def layer_norm_eps_1e_3(program: Program) -> None:
    """The default epsilon of another framework."""
    program.model.transformer.h[2].ln_2.eps = 1e-3


@bug(
    "gpt2", "transformer.wpe:*", "transformer:__add__", modules=("transformer.wpe", "transformer"),
    kinds="input shift offset argument missing",
)  # fmt: skip
def position_embedding_off_by_one(program: Program) -> None:
    """Positions that count the begin-of-text token."""
    length = program.batch["input_ids"].shape[1]
    program.batch["position_ids"] = torch.arange(1, length + 1)[None]


@bug("gpt2", ":cross_entropy", ":pad", kinds="input shift", levels="mix")
def labels_shifted_twice(program: Program) -> None:
    """The data loader shifts the labels, and so does the model."""
    program.batch["labels"] = program.batch["labels"].roll(-1, dims=1)


@bug("gpt2", ":cross_entropy", ":__truediv__", kinds="argument factor extra", levels="mix")
def loss_divided_by_the_wrong_count(program: Program) -> None:
    """Gradient accumulation that counts sequences instead of tokens."""
    program.batch["num_items_in_batch"] = 16


# BERT


@bug("bert", "bert.encoder.layer.1.output.LayerNorm:*", kinds="parameter")
def norm_weights_not_loaded(program: Program) -> None:
    """gamma and beta instead of weight and bias in an old checkpoint: ones and zeros stay."""
    program.model.bert.encoder.layer[1].output.LayerNorm.reset_parameters()


@bug(
    "bert", "bert:*", "bert.encoder.layer.0.attention.self:scaled_dot_product_attention",
    modules=("bert", "bert.encoder", "bert.encoder.layer.0", "bert.encoder.layer.0.attention*"),
    kinds="input argument missing extra function",
)  # fmt: skip
def padding_is_not_masked(program: Program) -> None:
    """A batch without its attention mask."""
    program.batch["attention_mask"] = torch.ones_like(program.batch["attention_mask"])


@bug("bert", "bert.embeddings.token_type_embeddings:*", "bert.embeddings:*", "bert:*", kinds="input missing")
def token_types_of_a_pair(program: Program) -> None:
    """Token types given on one side, left at zero on the other."""
    program.batch["token_type_ids"] = (torch.arange(16) >= 8).long().expand(2, -1).contiguous()


@bug(
    "bert", "bert.encoder.layer.2.intermediate:*", "bert.encoder.layer.2:*clamp*",
    "bert.encoder.layer.2.output.dense:*", kinds="extra saturation",
)  # fmt: skip
def activations_are_clamped(program: Program) -> None:
    """A guard against overflow in fp16 that cuts off healthy values."""
    after(program.model.bert.encoder.layer[2].intermediate, lambda output: output.clamp(-0.3, 0.3))


@bug(
    "bert", "bert.embeddings.position_embeddings:*", "bert.embeddings:*", kinds="input parameter shift offset argument"
)
def stale_position_buffer(program: Program) -> None:
    """position_ids of a RoBERTa checkpoint, which begin at two."""
    program.model.bert.embeddings.position_ids.add_(2)


# T5 and Whisper


@bug("t5", "encoder.block.0.layer.0.SelfAttention:__truediv__", kinds="argument")
def relative_positions_of_another_distance(program: Program) -> None:
    """relative_attention_max_distance was not in the config and got its default."""
    program.model.encoder.block[0].layer[0].SelfAttention.relative_attention_max_distance = 12


@bug("t5", "decoder.block.1.layer.1.EncDecAttention.k:*", kinds="parameter")
def cross_attention_of_another_layer(program: Program) -> None:
    """An index that a converter forgot to count up."""
    blocks = program.model.decoder.block
    blocks[1].layer[1].EncDecAttention.k.load_state_dict(blocks[0].layer[1].EncDecAttention.k.state_dict())


@bug("t5", ":__mul__", "lm_head:*", modules="lm_head", kinds="missing factor")
def decoder_output_is_not_scaled(program: Program) -> None:
    """T5 1.0 scales before its head, 1.1 does not."""
    program.model.config.scale_decoder_outputs = False


@bug("whisper", "model.encoder.conv1:*", kinds="argument extra function")
def circular_padding(program: Program) -> None:
    """Circular instead of zero padding in the first convolution."""
    program.model.model.encoder.conv1.padding_mode = "circular"


@bug("whisper", "model.decoder.layers.1.encoder_attn:__mul__", kinds="argument factor")
def queries_scaled_by_the_wrong_size(program: Program) -> None:
    """The scale of the model's width, not of a head."""
    program.model.model.decoder.layers[1].encoder_attn.scaling = 64**-0.5


# Mixtral and Mamba


@bug("mixtral", "model.layers.1.mlp.experts:*", kinds="parameter permutation part")
def experts_exchanged(program: Program) -> None:
    """Experts 1 and 2 changed places when expert-parallel shards were merged."""
    experts = program.model.model.layers[1].mlp.experts
    for weight in (experts.gate_up_proj, experts.down_proj):
        swap(weight[1], weight[2])


@bug("mixtral", "model.layers.2.mlp.gate:*", kinds="missing factor")
def router_weights_not_normalised(program: Program) -> None:
    """The chosen experts' weights do not sum to one."""

    def forward(self, hidden: torch.Tensor):
        logits = nn.functional.linear(hidden.reshape(-1, self.hidden_dim), self.weight)
        weights, chosen = torch.topk(nn.functional.softmax(logits.float(), dim=-1), self.top_k, dim=-1)
        return logits, weights, chosen

    gate = program.model.model.layers[2].mlp.gate
    gate.forward = types.MethodType(forward, gate)


@bug("mixtral", "model.layers.0.mlp.gate:topk", "model.layers.0.mlp.gate:*TopKRouter", kinds="argument")
def one_expert_for_each_token(program: Program) -> None:
    """num_experts_per_tok of the config is not read in one layer."""
    program.model.model.layers[0].mlp.gate.top_k = 1


@bug("mamba", "backbone.layers.1.mixer:exp", kinds="parameter")
def state_matrix_without_log(program: Program) -> None:
    """A checkpoint that stores A, not its logarithm."""
    program.model.backbone.layers[1].mixer.A_log.data.exp_()


@bug("mamba", "backbone.layers.0.mixer:conv1d", kinds="parameter offset missing")
def convolution_bias_missing(program: Program) -> None:
    """use_conv_bias of the config is ignored."""
    nn.init.zeros_(program.model.backbone.layers[0].mixer.conv1d.bias)
