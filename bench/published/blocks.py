"""Stacks of transformer blocks and older networks: diffusers, vit_pytorch, torchtune, timm, torchvision and torch."""

from __future__ import annotations

import timm
import torch
import torchtune.models.phi3 as phi3
import torchvision
import transformers
import vit_pytorch.vit
from diffusers.models.attention import BasicTransformerBlock
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from published.convert import Made, by_rules, in_order, plain, randomise

WIDTH, HEADS, INNER, DEPTH = 32, 4, 64, 3
TOKENS = torch.randn(2, 7, WIDTH, generator=torch.Generator().manual_seed(0))
CONTEXT = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(1))
IMAGE = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(2))
IDS = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(4))


class Stack(nn.Module):
    """Blocks one after another; what each further takes is given to all."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, hidden: Tensor, **given: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden, **given)
        return hidden


def block_diffusers() -> Made:
    """diffusers' block and timm's: split and fused projections."""
    golden = randomise(Stack([
        BasicTransformerBlock(WIDTH, HEADS, WIDTH // HEADS, activation_fn="gelu", attention_bias=True)
        for _ in range(DEPTH)
    ]))  # fmt: skip
    target = Stack([Block(WIDTH, HEADS, mlp_ratio=INNER / WIDTH * 2, qkv_bias=True) for _ in range(DEPTH)]).eval()
    for block in target.blocks:
        block.norm1.eps = block.norm2.eps = 1e-5
    layers = by_rules(target, golden, [
        (r"attn1\.to_q\.(\w+)", r"attn.qkv.\1@0/3"), (r"attn1\.to_k\.(\w+)", r"attn.qkv.\1@1/3"),
        (r"attn1\.to_v\.(\w+)", r"attn.qkv.\1@2/3"), (r"attn1\.to_out\.0", "attn.proj"), (r"norm3", "norm2"),
        (r"ff\.net\.0\.proj", "mlp.fc1"), (r"ff\.net\.2", "mlp.fc2"),
    ])  # fmt: skip
    return Made(target, golden, lambda model: model(TOKENS), lambda model: model(TOKENS), layers)


def decoder_diffusers() -> Made:
    """diffusers' block with a context and torch's own decoder layers, norm first."""
    golden = randomise(Stack([
        BasicTransformerBlock(
            WIDTH, HEADS, WIDTH // HEADS, cross_attention_dim=WIDTH, activation_fn="gelu", attention_bias=True
        )
        for _ in range(DEPTH)
    ]))  # fmt: skip
    layer = nn.TransformerDecoderLayer(
        WIDTH, HEADS, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    target = nn.TransformerDecoder(layer, DEPTH).eval()
    layers = by_rules(target, golden, [
        (r"blocks", "layers"), (r"attn1", "self_attn"), (r"attn2", "multihead_attn"),
        (r"to_q\.(\w+)", r"in_proj_\1@0/3"), (r"to_k\.(\w+)", r"in_proj_\1@1/3"), (r"to_v\.(\w+)", r"in_proj_\1@2/3"),
        (r"to_out\.0", "out_proj"), (r"ff\.net\.0\.proj", "linear1"), (r"ff\.net\.2", "linear2"),
    ])  # fmt: skip
    return Made(
        target, golden, lambda model: model(TOKENS, CONTEXT),
        lambda model: model(TOKENS, encoder_hidden_states=CONTEXT), layers,
    )  # fmt: skip


def vit_pytorch_timm() -> Made:
    """vit_pytorch's transformer, with norms inside of its parts, and timm's blocks."""
    golden = randomise(vit_pytorch.vit.Transformer(WIDTH, DEPTH, HEADS, WIDTH // HEADS, INNER))
    blocks = [Block(WIDTH, HEADS, mlp_ratio=INNER / WIDTH) for _ in range(DEPTH)]
    for block in blocks:
        block.norm1.eps = block.norm2.eps = 1e-5
    target = nn.Sequential(*blocks, nn.LayerNorm(WIDTH)).eval()
    layers = by_rules(target, golden, [
        (r"^norm", str(DEPTH)), (r"^layers\.(\d+)\.0\.norm", r"\1.norm1"), (r"^layers\.(\d+)\.1\.net\.0", r"\1.norm2"),
        (r"^layers\.(\d+)\.0\.to_qkv", r"\1.attn.qkv"), (r"^layers\.(\d+)\.0\.to_out\.0", r"\1.attn.proj"),
        (r"^layers\.(\d+)\.1\.net\.1", r"\1.mlp.fc1"), (r"^layers\.(\d+)\.1\.net\.4", r"\1.mlp.fc2"),
    ])  # fmt: skip
    return Made(target, golden, lambda model: model(TOKENS), lambda model: model(TOKENS), layers)


def phi3_torchtune() -> Made:
    """Fused projections against split ones."""
    config = transformers.Phi3Config(
        vocab_size=64, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, max_position_embeddings=64, original_max_position_embeddings=64, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    golden = randomise(transformers.Phi3ForCausalLM(config))
    target = phi3.phi3(
        vocab_size=64, num_layers=DEPTH, num_heads=HEADS, num_kv_heads=HEADS, embed_dim=WIDTH, intermediate_dim=INNER,
        max_seq_len=64, norm_eps=config.rms_norm_eps,
    ).eval()  # fmt: skip
    mine, theirs = target.state_dict(), golden.state_dict()
    layers: dict[str, set[str]] = {}

    def copy(name: str, other: str, part: slice = slice(None)) -> None:
        with torch.no_grad():
            mine[name].copy_(theirs[other][part])
        layers.setdefault(name.rpartition(".")[0], set()).add(other.rpartition(".")[0])

    copy("tok_embeddings.weight", "model.embed_tokens.weight")
    copy("norm.scale", "model.norm.weight")
    copy("output.weight", "lm_head.weight")
    for at in range(DEPTH):
        own, source = f"layers.{at}", f"model.layers.{at}"
        for place, name in enumerate(("q_proj", "k_proj", "v_proj")):
            rows = slice(place * WIDTH, (place + 1) * WIDTH)
            copy(f"{own}.attn.{name}.weight", f"{source}.self_attn.qkv_proj.weight", rows)
        copy(f"{own}.attn.output_proj.weight", f"{source}.self_attn.o_proj.weight")
        copy(f"{own}.mlp.w1.weight", f"{source}.mlp.gate_up_proj.weight", slice(0, INNER))
        copy(f"{own}.mlp.w3.weight", f"{source}.mlp.gate_up_proj.weight", slice(INNER, 2 * INNER))
        copy(f"{own}.mlp.w2.weight", f"{source}.mlp.down_proj.weight")
        copy(f"{own}.sa_norm.scale", f"{source}.input_layernorm.weight")
        copy(f"{own}.mlp_norm.scale", f"{source}.post_attention_layernorm.weight")
    return Made(target, golden, lambda model: model(IDS), lambda model: plain(model(IDS)), layers)


def vgg() -> Made:
    golden = randomise(torchvision.models.vgg11_bn(num_classes=5))
    target = timm.create_model("vgg11_bn", num_classes=5).eval()
    return _image(target, golden)


def resnext() -> Made:
    golden = randomise(torchvision.models.resnext50_32x4d(num_classes=5))
    target = timm.create_model("resnext50_32x4d", num_classes=5).eval()
    return _image(target, golden)


def _image(target: nn.Module, golden: nn.Module) -> Made:
    layers = in_order(target, golden)
    return Made(target, golden, lambda model: plain(model(IMAGE)), lambda model: plain(model(IMAGE)), layers)
