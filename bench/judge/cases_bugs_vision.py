"""Planted bugs in vision and recurrent models."""

from __future__ import annotations

import torch
from torch import nn

from judge.cases import bug
from judge.cases_bugs_language import swap
from judge.models import VOCABULARY, Program


@bug(
    "vit", "vit.embeddings.patch_embeddings.projection:*", modules=("vit", "vit.embeddings*"), kinds="input permutation"
)
def pictures_are_bgr(program: Program) -> None:
    """Pictures read by another library, with the channels the other way round."""
    program.batch["pixel_values"] = program.batch["pixel_values"].flip(1)


@bug("vit", "vit.embeddings:__add__", kinds="parameter shift permutation")
def position_embeddings_shifted(program: Program) -> None:
    """Position embeddings of a checkpoint that has the class token last."""
    embedding = program.model.vit.embeddings.position_embeddings
    embedding.data = embedding.data.roll(1, dims=1)


@bug("vit", "vit.layers.1.layernorm_before:*", kinds="parameter")
def norms_before_and_after_exchanged(program: Program) -> None:
    """norm1 and norm2 of another naming."""
    layer = program.model.vit.layers[1]
    swap(layer.layernorm_before, layer.layernorm_after)


@bug("vit", "vit.layers.2.attention.o_proj:*", kinds="parameter permutation", options={"width": 512, "layers": 3})
def output_columns_permuted(program: Program) -> None:
    """Columns ordered [size, heads] instead of [heads, size]."""
    weight = program.model.vit.layers[2].attention.o_proj.weight
    weight.data = weight.data.view(512, 4, 128).transpose(1, 2).reshape(512, 512).contiguous()


@bug("clip", ":exp", kinds="parameter", levels="mix")
def logit_scale_stored_without_log(program: Program) -> None:
    """The temperature of a checkpoint that stores the scale itself, divided by ten to make it train."""
    program.model.logit_scale.data.fill_(1.4)


@bug("clip", "vision_model.encoder.layers.0.mlp.activation_fn:*", kinds="function extra missing")
def gelu_instead_of_quick_gelu(program: Program) -> None:
    """OpenCLIP weights of another activation."""
    program.model.vision_model.encoder.layers[0].mlp.activation_fn = nn.GELU()


@bug(
    "clip", "text_model:*", "text_projection:*", modules=("text_model", "text_projection"), kinds="argument input part"
)
def text_pooled_at_the_first_token(program: Program) -> None:
    """eos_token_id of another tokenizer: the end is not found, and the first token is taken."""
    program.model.text_model.eos_token_id = VOCABULARY + 7


NORM = "resnet.encoder.stages.1.layers.0.layer.0.normalization"


@bug("resnet", f"{NORM}:*", kinds="argument", levels="mix")
def batch_norm_momentum_reversed(program: Program) -> None:
    """momentum 0.9 where the other framework means 0.1: only the running statistics differ."""
    program.model.resnet.encoder.stages[1].layers[0].layer[0].normalization.momentum = 0.9


@bug("resnet", f"{NORM}:*", kinds="argument")
def batch_norm_frozen(program: Program) -> None:
    """One batch norm stays in evaluation mode."""
    program.model.resnet.encoder.stages[1].layers[0].layer[0].normalization.eval()


@bug("resnet", "resnet.encoder.stages.2.layers.1.layer.0.convolution:*", kinds="argument")
def convolution_is_dilated(program: Program) -> None:
    """A dilated backbone's setting; the shape stays."""
    convolution = program.model.resnet.encoder.stages[2].layers[1].layer[0].convolution
    convolution.dilation, convolution.padding = (2, 2), (2, 2)


@bug("convnext", "convnext.encoder.stages.1.layers.1:__mul__", kinds="parameter factor")
def layer_scale_not_loaded(program: Program) -> None:
    """gamma keeps its initial value."""
    nn.init.constant_(program.model.convnext.encoder.stages[1].layers[1].layer_scale_parameter, 0.5)


@bug("convnext", "convnext.encoder.stages.0.layers.0.dwconv:*", kinds="parameter transposition permutation")
def kernels_transposed(program: Program) -> None:
    """Height and width of the kernels exchanged."""
    weight = program.model.convnext.encoder.stages[0].layers[0].dwconv.weight
    weight.data = weight.data.transpose(2, 3).contiguous()


@bug("unet", "pool:*", kinds="argument")
def pool_without_padding_counted(program: Program) -> None:
    """count_include_pad has another default elsewhere."""
    program.model.pool.count_include_pad = False


@bug("unet", "up:*", kinds="argument")
def corners_aligned(program: Program) -> None:
    """align_corners of another default."""
    program.model.up.align_corners = True


@bug("unet", "up_1.conv_1:*", ":cat", modules=("up_1.conv_1", "up_1"), kinds="input permutation order argument")
def skip_connection_joined_the_other_way(program: Program) -> None:
    """[up, skip] instead of [skip, up]."""
    program.model.join = lambda up, skip: torch.cat([up, skip], 1)


@bug("unet", "down_2.norm_1:*", kinds="argument")
def group_norm_of_other_groups(program: Program) -> None:
    """num_groups 8 instead of 4."""
    program.model.down_2.norm_1.num_groups = 8


@bug("unet", "down_2.conv_2:*", kinds="parameter argument offset missing")
def convolution_without_bias(program: Program) -> None:
    """bias=False because a norm follows, for weights that have one."""
    program.model.down_2.conv_2.bias = None


@bug("unet", ":__mul__", modules=("down_1.time", "down_1"), kinds="argument input")
def time_embedding_of_another_period(program: Program) -> None:
    """Sines with a period of 10000 instead of 1000."""

    def embed(time: torch.Tensor) -> torch.Tensor:
        angle = time[:, None] * torch.exp(-9.210340371976184 * torch.arange(8) / 8)
        return torch.cat([angle.sin(), angle.cos()], -1)

    program.model.embed = embed


@bug("lstm", "lstm:*", kinds="parameter offset part")
def forget_bias_of_one(program: Program) -> None:
    """A framework that adds one to the forget gate by itself."""
    size = program.model.lstm.hidden_size
    program.model.lstm.bias_hh_l0.data[size : 2 * size] += 1


@bug("lstm", "gru:*", kinds="parameter permutation")
def gates_in_another_order(program: Program) -> None:
    """The GRU's update and reset gates exchanged, as Keras has them."""
    size = program.model.gru.hidden_size
    for weight in program.model.gru.parameters():
        swap(weight[:size], weight[size : 2 * size])


@bug("lstm", "gru:*", kinds="input argument")
def state_of_the_last_batch(program: Program) -> None:
    """The hidden state is not reset between batches."""
    size = program.model.gru.hidden_size
    state = 0.5 * torch.randn(1, 2, size, generator=torch.Generator().manual_seed(2))
    program.model.state = state.to(program.model.head.weight.dtype)
