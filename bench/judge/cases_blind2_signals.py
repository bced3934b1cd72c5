"""A second set of cases written from the public documentation alone: bugs in models of sounds, pictures and graphs.

Mistakes as people make them when they port, rewrite or train a model. Committed before their first run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from judge import models_blind2_signals
from judge.cases import bug
from judge.models import Program

WIDE = {"width": 512, "layers": 2}


# Bugs: SegFormer


def decode(head: Any, *, aligned: bool = False, order: int = -1) -> Callable[..., torch.Tensor]:
    """The decoder's forward, with two things that may be wrong."""

    def forward(states, **_):
        size, found = states[0].shape[2:], []
        for one, linear in zip(states, head.linear_projections, strict=True):
            rows = linear(one).transpose(1, 2).reshape(len(one), -1, *one.shape[2:])
            found.append(functional.interpolate(rows, size=size, mode="bilinear", align_corners=aligned))
        mixed = head.batch_norm(head.linear_fuse(torch.cat(found[::order], dim=1)))
        return head.classifier(head.dropout(head.activation(mixed)))

    return forward


@bug("segformer", "decode_head:interpolate", kinds="argument")
def corners_aligned(program: Program) -> None:
    """The other framework's default of interpolate."""
    program.model.decode_head.forward = decode(program.model.decode_head, aligned=True)


@bug("segformer", "decode_head:cat", "decode_head.linear_fuse:*", kinds="order permutation input argument")
def stages_joined_from_first_to_last(program: Program) -> None:
    """The fused convolution expects the last stage first."""
    program.model.decode_head.forward = decode(program.model.decode_head, order=1)


@bug("segformer", "decode_head.batch_norm:*", kinds="argument")
def batch_norm_evaluates(program: Program) -> None:
    """A frozen norm in a head that is trained."""
    program.model.decode_head.batch_norm.eval()


@bug("segformer", *(f"segformer.stages.1.blocks.0.mlp.dwconv{place}" for place in (":*", ".dwconv:*")),
     kinds="argument extra part padding function input")  # fmt: skip
def edges_replicated(program: Program) -> None:
    """One convolution pads with its border in place of zeros."""
    program.model.segformer.stages[1].blocks[0].mlp.dwconv.dwconv.padding_mode = "replicate"


@bug("segformer", *(f"segformer.stages.0.blocks.0.attention.sequence_reduction{place}" for place in (":*", ".*:*")),
     kinds="missing function extra input")  # fmt: skip
def norm_of_the_reduction_forgotten(program: Program) -> None:
    """Keys and values are reduced, but not normed."""
    program.model.segformer.stages[0].blocks[0].attention.sequence_reduction.layer_norm = nn.Identity()


@bug("segformer", ":cross_entropy", ":SegformerForSemanticSegmentation", kinds="input part", levels="mix")
def void_becomes_the_first_class(program: Program) -> None:
    """Pixels that should not count are labelled 0."""
    labels = program.batch["labels"]
    program.batch["labels"] = labels.masked_fill(labels == 255, 0)


# Bugs: speech separation


@bug("tasnet", "blocks.1.norm_1:mean", kinds="argument")
def norm_of_the_channels_only(program: Program) -> None:
    """One norm takes its mean for each moment."""
    program.model.blocks[1].norm_1.axes = (1,)


@bug("tasnet", "norm:__add__", kinds="argument")
def larger_epsilon(program: Program) -> None:
    """1e-2 in place of 1e-8, in every norm."""
    for module in program.model.modules():
        if isinstance(module, models_blind2_signals.GlobalNorm):
            module.eps = 1e-2


@bug("tasnet", "blocks.2.depth:*", kinds="argument")
def dilation_not_passed_on(program: Program) -> None:
    """The last block is not dilated."""
    depth = program.model.blocks[2].depth
    depth.dilation, depth.padding = (1,), (1,)


@bug("tasnet", ":__mul__", ":sum", ":mean", ":__sub__", kinds="missing offset input", levels="mix")
def waves_not_centred(program: Program) -> None:
    """The ratio is that of waves with their mean."""

    def loss(one):
        guess, truth = one.model(one.batch["wave"]).float(), one.batch["parts"].float()
        along = (guess * truth).sum(-1, keepdim=True) / (truth.square().sum(-1, keepdim=True) + 1e-8) * truth
        ratio = along.square().sum(-1) / ((guess - along).square().sum(-1) + 1e-8)
        return -10 * torch.log10(ratio + 1e-8).mean()

    program.loss = loss


@bug("tasnet", ":sigmoid", ":relu", kinds="function missing extra")
def masks_by_relu(program: Program) -> None:
    """The other variant of the paper."""
    program.model.gate = torch.relu


@bug("tasnet", "blocks.0.skip:*", "blocks.0.rest:*", kinds="parameter")
def skip_and_residual_exchanged(program: Program) -> None:
    """Two convolutions of the same shape were loaded into each other's place."""
    block = program.model.blocks[0]
    for one, two in zip(block.rest.parameters(), block.skip.parameters(), strict=True):
        one.data, two.data = two.data, one.data


# Bugs: the code book


@bug("vqvae", "codes:*", "norm_2:*", direction="backward", kinds="missing noise part")
def no_gradient_through_the_codes(program: Program) -> None:
    """The straight-through estimator is missing; the forward pass is right."""
    program.model.codes.through = lambda rows, found: found + 0 * rows


@bug("vqvae", "codes:*", "norm_2:*", direction="either", kinds="missing noise part argument")
def wrong_side_detached(program: Program) -> None:
    """The commitment pulls the codes, which do not learn, and not the encoder."""
    codes = program.model.codes
    codes.commit = lambda rows, found: codes.cost * functional.mse_loss(rows.detach(), found)


@bug("vqvae", "codes:__add__", "codes:__sub__", "codes:__mul__", kinds="sign function missing extra order")
def distance_with_the_wrong_sign(program: Program) -> None:
    """a² + 2ab + b²: the farthest code is chosen, nearly."""
    codes = program.model.codes

    def nearest(rows):
        apart = rows.square().sum(1, keepdim=True) + 2 * rows @ codes.table.T + codes.table.square().sum(1)
        return apart.argmin(1)

    codes.nearest = nearest


@bug("vqvae", "codes:mul_", "codes:add_", kinds="argument", levels="mix")
def codes_move_too_slowly(program: Program) -> None:
    """0.99 in place of 0.9: only buffers are wrong."""
    program.model.codes.fade = 0.99


@bug("vqvae", ":interpolate", kinds="argument")
def picture_enlarged_smoothly(program: Program) -> None:
    """Bilinear in place of nearest."""
    program.model.enlarge = lambda x: functional.interpolate(x, scale_factor=2, mode="bilinear")


@bug("vqvae", "norm_1:*", kinds="argument", dtypes="float32")
def epsilon_of_the_other_framework(program: Program) -> None:
    """1e-3 in place of 1e-5."""
    program.model.norm_1.eps = 1e-3


# Bugs: latents


@bug("perceiver", ":Perceiver", "look:*", "look.heads:*", kinds="input argument part sign",
     modules=("", "look", "look.heads"))  # fmt: skip
def mask_the_other_way_round(program: Program) -> None:
    """True means seen in the other library."""
    program.batch["hidden"] = ~program.batch["hidden"]


@bug("perceiver", ":linspace", ":__mul__", kinds="argument input", modules=("", "look.norm_seen"))
def places_from_zero(program: Program) -> None:
    """From 0 to 1 in place of -1 to 1."""

    def places(count):
        place = torch.linspace(0, 1, count)[:, None]
        angle = torch.pi * place * torch.linspace(1, 16, 8)
        return torch.cat([angle.sin(), angle.cos()], -1)

    program.model.places = places


@bug("perceiver", "think.heads:*", kinds="argument")
def twice_as_many_heads(program: Program) -> None:
    """The config of another size."""
    program.model.think.heads.num_heads, program.model.think.heads.head_dim = 8, 6


@bug("perceiver", ":binary_cross_entropy_with_logits", ":__truediv__", kinds="argument factor", levels="mix")
def mean_over_labels(program: Program) -> None:
    """The mean over rows and labels in place of the sum over labels."""

    def loss(one):
        logits = one.model(one.batch["x"], one.batch["hidden"]).float()
        return functional.binary_cross_entropy_with_logits(logits, one.batch["labels"].float(), reduction="mean") / 3

    program.loss = loss


# Bugs: contrast


@bug("towers", ":normalize", kinds="argument")
def rows_of_the_batch_normed(program: Program) -> None:
    """Length one along the wrong axis."""
    program.model.unit = lambda x: functional.normalize(x, dim=0)


@bug("towers", ":__truediv__", kinds="argument factor")
def temperature_upside_down(program: Program) -> None:
    """Divided by 5 in place of 0.2."""
    program.model.warmth = 5.0


@bug("towers", ":mul_", ":add_", "slow.0:*", modules=("", "slow.0"), kinds="argument parameter")
def slow_copy_follows_fast(program: Program) -> None:
    """0.9 in place of 0.99."""
    program.model.keep = 0.9


@bug("towers", "slow.1:*", kinds="argument")
def slow_copy_evaluates(program: Program) -> None:
    """Its norms use running statistics."""
    program.model.slow.eval()


@bug("towers", ":__matmul__", ":__setitem__", ":einsum", kinds="order input part")
def queue_filled_too_early(program: Program) -> None:
    """The keys of this batch are among those that should be other ones."""
    model = program.model

    def compare(q, k):
        model.queue[:, : len(k)] = k.T.to(model.queue.dtype)
        right, wrong = torch.einsum("rw,rw->r", q, k), q @ model.queue.clone().to(q.dtype)
        return torch.cat([right[:, None].float(), wrong.float()], 1) / model.warmth

    model.compare = compare


@bug("towers", "optimizer:*", kinds="argument update missing", dtypes="float32 autocast")
def momentum_forgotten_weight_decay_too(program: Program) -> None:
    """The optimiser was made with the learning rate alone: its first update lacks the decay."""
    program.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.05)


# Bugs: two networks


@bug(
    "gan",
    "generator.*:*",
    "discriminator.0:*",
    "optimizer:*",
    ":softplus",
    ":mean",
    direction="either",
    kinds="extra input update missing argument",
)
def pictures_not_detached(program: Program) -> None:
    """The discriminator's loss trains the generator too, and nobody clears that gradient."""
    program.cut, program.both_cleared = (lambda fake: fake), False


@bug("gan", ":softplus", ":__neg__", ":mean", kinds="order missing sign factor input", levels="mix")
def saturating_loss(program: Program) -> None:
    """The generator minimises the discriminator's success, as in the first paper."""

    def loss(one):
        return -functional.softplus(one.model.discriminator(one.model.generator(one.batch["z"])).float()).mean()

    program.loss = loss


@bug("gan", "optimizer:*", kinds="argument update")
def betas_of_the_default(program: Program) -> None:
    """0.9 in place of 0.5."""
    program.betas = (0.9, 0.999)


@bug("gan", "discriminator.1:*", kinds="argument")
def default_slope(program: Program) -> None:
    """0.01 in place of 0.2."""
    program.model.discriminator[1].negative_slope = 0.01


@bug("gan", "generator.4:*", kinds="parameter permutation transposition")
def transposed_kernel_not_flipped(program: Program) -> None:
    """The other framework stores kernels of transposed convolutions mirrored."""
    weight = program.model.generator[4].weight
    weight.data = weight.data.flip(-1, -2)


# Bugs: the diffusion transformer


@bug("dit", "blocks.1:__add__", "blocks.1:__mul__", "blocks.1:chunk", kinds="permutation order input")
def shift_and_scale_exchanged(program: Program) -> None:
    """Two chunks of the modulation change places."""
    block = program.model.blocks[1]
    plain = block.parts

    def parts(condition):
        shift, scale, *rest = plain(condition)
        return scale, shift, *rest

    block.parts = parts


@bug("dit", ":__mul__", ":__truediv__", ":cos", kinds="argument input factor extra", modules=("", "time.0"))
def time_between_zero_and_one(program: Program) -> None:
    """The embedding expects steps, and gets fractions."""
    plain = program.model.embed
    program.model.embed = lambda time: plain(time / 1000)


@bug("dit", ":sqrt", ":__mul__", ":__rsub__", ":float", kinds="parameter input shift", modules=("", "stem"),
     dtypes="float32")  # fmt: skip
def schedule_off_by_one(program: Program) -> None:
    """The table of the schedule begins with a one that the other library does not have."""
    left = program.model.left
    left.copy_(torch.cat([torch.ones_like(left[:1]), left[:-1]]))


@bug("dit", "blocks.0.norm_k:*", "blocks.0:scaled_dot_product_attention", kinds="missing function extra input")
def keys_not_normed(program: Program) -> None:
    """Queries are, keys are not."""
    program.model.blocks[0].norm_k = nn.Identity()


@bug("dit", ":clamp", ":__mul__", kinds="missing argument saturation input", levels="mix")
def weights_not_bounded(program: Program) -> None:
    """The bound of the ratio is missing."""

    def loss(one):
        batch, model = one.batch, one.model
        found = model(model.noisy(batch["x"], batch["noise"], batch["time"]), batch["time"], batch["label"]).float()
        return (found - batch["noise"].float()).square().mean((1, 2, 3)).mean()

    program.loss = loss


@bug("dit", "head:*", kinds="parameter permutation")
def channels_last_in_the_head(program: Program) -> None:
    """The checkpoint's patches are 4 x 4 x 3, the model's 3 x 4 x 4."""
    for one in program.model.head.parameters():
        one.data = one.data.unflatten(0, (4, 4, 3)).movedim(2, 0).flatten(0, 2).contiguous()


@bug("dit", "blocks.0.fc2:*", kinds="parameter noise dtype", dtypes="float32", options=WIDE)
def one_weight_saved_in_half_precision(program: Program) -> None:
    """One matrix went through float16's coarser sister."""
    weight = program.model.blocks[0].fc2.weight
    weight.data = weight.data.bfloat16().float()


# Bugs: graph attention


@bug("gat", *(f"second:{api}" for api in ("scatter_reduce", "__sub__", "index_add", "expand_as", "exp", "__truediv__")),
     kinds="input argument")  # fmt: skip
def shares_of_the_source(program: Program) -> None:
    """The softmax runs over the edges that leave a node."""
    second = program.model.second
    plain, source = second.share, program.batch["edges"][0]
    second.share = lambda scores, _goal, count: plain(scores, source, count)


@bug("gat", ":Graphs", "first:*", kinds="input part argument", modules=("", "first"))
def no_edges_to_oneself(program: Program) -> None:
    """The loader does not add them."""
    program.batch["edges"] = program.batch["edges"][:, :-24]


@bug("gat", "first:leaky_relu", kinds="argument")
def slope_of_the_default(program: Program) -> None:
    """0.01 in place of 0.2."""
    program.model.first.slope = 0.01


@bug("gat", ":__truediv__", "head:*", modules=("", "head"), kinds="missing factor part input")
def nodes_summed(program: Program) -> None:
    """The sum of each graph's nodes in place of their mean."""
    program.model.pool = lambda x, graph: x.new_zeros(4, x.shape[1]).index_add(0, graph, x)


@bug("gat", ":huber_loss", kinds="argument", levels="mix")
def delta_of_the_default(program: Program) -> None:
    """1 in place of a half."""
    program.loss = lambda one: functional.huber_loss(
        one.model(one.batch["x"], one.batch["edges"], one.batch["graph"]).float(), one.batch["truth"].float()
    )
