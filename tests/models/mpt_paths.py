"""MPT with split projections; a layer is two paths, each a norm, an operation and the residual."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

_LEVEL, _THEIRS = "ladder.{i}", "transformer.blocks.{i}"
TRUTH = {
    "vocab": "transformer.wte",
    _LEVEL: _THEIRS,
    f"{_LEVEL}.gather.scale": f"{_THEIRS}.norm_1",
    f"{_LEVEL}.gather.act": f"{_THEIRS}.attn",
    **{f"{_LEVEL}.gather.act.{part}": f"{_THEIRS}.attn.Wqkv" for part in ("ask", "offer", "tell")},
    f"{_LEVEL}.gather.act.blend": f"{_THEIRS}.attn.out_proj",
    f"{_LEVEL}.digest.scale": f"{_THEIRS}.norm_2",
    f"{_LEVEL}.digest.act": f"{_THEIRS}.ffn",  # the other side's adds the residual itself
    f"{_LEVEL}.digest.act.0": f"{_THEIRS}.ffn.up_proj",
    f"{_LEVEL}.digest.act.1": f"{_THEIRS}.ffn.act",
    f"{_LEVEL}.digest.act.2": f"{_THEIRS}.ffn.down_proj",
    "last": "transformer.norm_f",
    "unembed": "lm_head",
}


class Gather(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ask, self.offer, self.tell, self.blend = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x, slopes):
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.ask, self.offer, self.tell)
        )
        return self.blend(F.scaled_dot_product_attention(q, k, v, attn_mask=slopes).transpose(1, 2).flatten(2))


class Path(nn.Module):
    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.scale, self.act = nn.LayerNorm(width, bias=False), act

    def forward(self, x, *more):
        return x + self.act(self.scale(x), *more)


class Level(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.gather = Path(width, Gather(width, heads))
        feed = nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        self.digest = Path(width, nn.Sequential(*feed))

    def forward(self, x, slopes):
        return self.digest(self.gather(x, slopes))


class MptPaths(nn.Module):
    def __init__(self, config, layers: int) -> None:
        super().__init__()
        width, self.heads = config.d_model, config.n_heads
        self.vocab = nn.Embedding(config.vocab_size, width)
        self.ladder = nn.ModuleList(Level(width, self.heads) for _ in range(layers))
        self.last = nn.LayerNorm(width, bias=False)
        self.unembed = nn.Linear(width, config.vocab_size, bias=False)
        self.unembed.weight = self.vocab.weight

    def forward(self, tokens):
        x = self.vocab(tokens)
        place = torch.arange(tokens.shape[1])
        behind = (place[None, :] - place[:, None]).float()
        slopes = 2.0 ** (-8.0 / self.heads * torch.arange(1, self.heads + 1))
        slopes = (slopes[:, None, None] * behind).masked_fill(behind > 0, float("-inf")).to(x.dtype)
        for level in self.ladder:
            x = level(x, slopes)
        return self.unembed(self.last(x))

    @torch.no_grad()
    def copy_from(self, other, layers: list[int]) -> None:
        """Take the weights of an MptForCausalLM."""
        body = other.transformer
        pairs = [(self.vocab, body.wte), (self.last, body.norm_f)]
        for mine, theirs in zip(self.ladder, (body.blocks[at] for at in layers), strict=True):
            attention = mine.gather.act
            parts = theirs.attn.Wqkv.weight.chunk(3)
            for layer, weight in zip((attention.ask, attention.offer, attention.tell), parts, strict=True):
                layer.weight.copy_(weight)
            pairs += [
                (mine.gather.scale, theirs.norm_1), (attention.blend, theirs.attn.out_proj),
                (mine.digest.scale, theirs.norm_2), (mine.digest.act[0], theirs.ffn.up_proj),
                (mine.digest.act[2], theirs.ffn.down_proj),
            ]  # fmt: skip
        for layer, source in pairs:
            layer.weight.copy_(source.weight)
