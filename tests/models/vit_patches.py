"""ViT with patches unfolded by hand, fused qkv and a Sequential of blocks, as image libraries have it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

TRUTH = {
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "blocks.{i}": "vit.layers.{i}",
    "blocks.{i}.norm1": "vit.layers.{i}.layernorm_before",
    "blocks.{i}.attn": "vit.layers.{i}.attention",
    "blocks.{i}.attn.qkv": (
        "vit.layers.{i}.attention.q_proj", "vit.layers.{i}.attention.k_proj", "vit.layers.{i}.attention.v_proj",
    ),
    "blocks.{i}.attn.proj": "vit.layers.{i}.attention.o_proj",
    "blocks.{i}.norm2": "vit.layers.{i}.layernorm_after",
    "blocks.{i}.mlp": "vit.layers.{i}.mlp",
    "blocks.{i}.mlp.fc1": "vit.layers.{i}.mlp.fc1",
    "blocks.{i}.mlp.act": "vit.layers.{i}.mlp.activation_fn",
    "blocks.{i}.mlp.fc2": "vit.layers.{i}.mlp.fc2",
    "norm": "vit.layernorm",
    "head": "classifier",
    "patch_embed": "vit.embeddings.patch_embeddings",
}  # fmt: skip


class PatchEmbed(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        size = config.patch_size
        self.proj = nn.Conv2d(config.num_channels, config.hidden_size, kernel_size=size, stride=size)

    def forward(self, image):
        return self.proj(image).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, count, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, count, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, count, width))


class Mlp(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class Block(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.layer_norm_eps
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=eps), nn.LayerNorm(width, eps=eps)
        self.attn = Attention(width, config.num_attention_heads)
        self.mlp = Mlp(width, config.intermediate_size)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViTPatches(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.patch_embed = PatchEmbed(config)
        patches = (config.image_size // config.patch_size) ** 2
        self.cls_token = nn.Parameter(torch.randn(1, 1, config.hidden_size))
        self.pos_embed = nn.Parameter(torch.randn(1, patches + 1, config.hidden_size))
        self.blocks = nn.Sequential(*(Block(config) for _ in range(layers)))
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.head = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, image):
        x = self.patch_embed(image)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a ViTForImageClassification."""
        self.cls_token.copy_(other.vit.embeddings.cls_token)
        self.pos_embed.copy_(other.vit.embeddings.position_embeddings)
        pairs = [
            (self.patch_embed.proj, other.vit.embeddings.patch_embeddings.projection),
            (self.norm, other.vit.layernorm),
            (self.head, other.classifier),
        ]
        for mine, theirs in zip(self.blocks, (other.vit.layers[at] for at in layers), strict=True):
            parts = theirs.attention
            mine.attn.qkv.weight.copy_(torch.cat([part.weight for part in (parts.q_proj, parts.k_proj, parts.v_proj)]))
            mine.attn.qkv.bias.copy_(torch.cat([part.bias for part in (parts.q_proj, parts.k_proj, parts.v_proj)]))
            pairs += [
                (mine.norm1, theirs.layernorm_before), (mine.norm2, theirs.layernorm_after),
                (mine.attn.proj, parts.o_proj), (mine.mlp.fc1, theirs.mlp.fc1), (mine.mlp.fc2, theirs.mlp.fc2),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
