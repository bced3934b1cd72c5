"""CLIP as an eye and a reader of equal blocks with one projection for q, k, v; patches have no module of their own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def _block(mine: str, theirs: str) -> dict[str, object]:
    return {
        mine: theirs,
        f"{mine}.pre_a": f"{theirs}.layer_norm1",
        f"{mine}.att": f"{theirs}.self_attn",
        f"{mine}.att.three": tuple(f"{theirs}.self_attn.{part}_proj" for part in "qkv"),
        f"{mine}.att.one": f"{theirs}.self_attn.out_proj",
        f"{mine}.pre_b": f"{theirs}.layer_norm2",
        f"{mine}.ff": f"{theirs}.mlp",
        f"{mine}.ff.0": f"{theirs}.mlp.fc1",
        f"{mine}.ff.1": f"{theirs}.mlp.activation_fn",
        f"{mine}.ff.2": f"{theirs}.mlp.fc2",
    }


TRUTH = {
    "eye": "vision_model",
    "eye.patchify": "vision_model.embeddings.patch_embedding",
    "eye.norm_first": "vision_model.pre_layrnorm",
    "eye.blocks": "vision_model.encoder",
    **_block("eye.blocks.{i}", "vision_model.encoder.layers.{i}"),
    "eye.norm_last": "vision_model.post_layernorm",
    "reader": "text_model",
    "reader.table": "text_model.embeddings",
    "reader.table.words": "text_model.embeddings.token_embedding",
    "reader.table.places": "text_model.embeddings.position_embedding",
    **_block("reader.blocks.{i}", "text_model.encoder.layers.{i}"),
    "reader.norm_last": "text_model.final_layer_norm",
    "image_head": "visual_projection",
    "text_head": "text_projection",
}


class QuickGate(nn.Module):
    def forward(self, x):
        return x * (1.702 * x).sigmoid()


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.three, self.one = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        q, k, v = self.three(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return self.one(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, config, *, causal: bool) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.pre_a, self.pre_b = (nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in range(2))
        self.att = Attention(width, config.num_attention_heads, causal=causal)
        self.ff = nn.Sequential(nn.Linear(width, inner), QuickGate(), nn.Linear(inner, width))

    def forward(self, x):
        x = x + self.att(self.pre_a(x))
        return x + self.ff(self.pre_b(x))


class Eye(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        width, size = config.hidden_size, config.patch_size
        self.patchify = nn.Conv2d(3, width, size, size, bias=False)
        self.summary = nn.Parameter(torch.randn(width))
        self.places = nn.Parameter(torch.randn((config.image_size // size) ** 2 + 1, width))
        self.norm_first, self.norm_last = (nn.LayerNorm(width, eps=config.layer_norm_eps) for _ in range(2))
        self.blocks = nn.Sequential(*(Block(config, causal=False) for _ in range(config.num_hidden_layers)))

    def forward(self, image):
        patches = self.patchify(image).flatten(2).mT
        x = torch.cat([self.summary.expand(len(image), 1, -1), patches], dim=1) + self.places
        return self.norm_last(self.blocks(self.norm_first(x))[:, 0])


class Table(nn.Module):
    def __init__(self, config) -> None:
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.places = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, tokens):
        return self.words(tokens) + self.places(torch.arange(tokens.shape[1]))


class Reader(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        self.table = Table(config)
        self.blocks = nn.ModuleList(Block(config, causal=True) for _ in range(layers))
        self.norm_last = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = block(x)
        return self.norm_last(x)[torch.arange(len(tokens)), tokens.argmax(-1)]


class ClipTowers(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        image, text, width = config.vision_config, config.text_config, config.projection_dim
        self.eye, self.reader = Eye(image), Reader(text, layers)
        self.image_head = nn.Linear(image.hidden_size, width, bias=False)
        self.text_head = nn.Linear(text.hidden_size, width, bias=False)
        self.heat = nn.Parameter(torch.tensor(config.logit_scale_init_value))

    def forward(self, input_ids, pixel_values):
        seen = F.normalize(self.image_head(self.eye(pixel_values)), dim=-1)
        read = F.normalize(self.text_head(self.reader(input_ids)), dim=-1)
        return self.heat.exp() * seen @ read.T

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of a CLIPModel; ``layers`` are those of its text model."""
        image, text = other.vision_model, other.text_model
        self.eye.summary.copy_(image.embeddings.class_embedding)
        self.eye.places.copy_(image.embeddings.position_embedding.weight)
        self.heat.copy_(other.logit_scale)
        pairs = [
            (self.eye.patchify, image.embeddings.patch_embedding), (self.eye.norm_first, image.pre_layrnorm),
            (self.eye.norm_last, image.post_layernorm), (self.reader.norm_last, text.final_layer_norm),
            (self.reader.table.words, text.embeddings.token_embedding), (self.image_head, other.visual_projection),
            (self.reader.table.places, text.embeddings.position_embedding), (self.text_head, other.text_projection),
        ]  # fmt: skip
        blocks = list(zip(self.eye.blocks, image.encoder.layers, strict=True))
        blocks += zip(self.reader.blocks, (text.encoder.layers[at] for at in layers), strict=True)
        for mine, theirs in blocks:
            attention = theirs.self_attn
            parts = attention.q_proj, attention.k_proj, attention.v_proj
            mine.att.three.weight.copy_(torch.cat([part.weight for part in parts]))
            mine.att.three.bias.copy_(torch.cat([part.bias for part in parts]))
            pairs += [
                (mine.pre_a, theirs.layer_norm1), (mine.att.one, attention.out_proj), (mine.pre_b, theirs.layer_norm2),
                (mine.ff[0], theirs.mlp.fc1), (mine.ff[2], theirs.mlp.fc2),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.load_state_dict(source.state_dict())
