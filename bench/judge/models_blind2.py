"""Nine more families for the cases of cases_blind2*.py: six of transformers, three language models written by hand.

No other file of cases uses them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from judge.models import VOCABULARY, Program, family, picture, tokens


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """The optimiser of most of these families."""
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05, foreach=False)


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    """Random numbers that do not depend on what was drawn before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# Models of transformers


@family
def qwen2(width: int = 64, layers: int = 3, heads: int = 4, length: int = 16, **more: Any) -> Program:
    """Two heads share a key; the first row is padded on the left; width=512 for real noise."""
    import transformers

    config = transformers.Qwen2Config(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads // 2, vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.08,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, attn_implementation="eager", **more,
    )  # fmt: skip
    ids = tokens(2, length)
    mask = torch.ones_like(ids)
    ids[0, :4], mask[0, :4] = 0, 0
    places = (mask.cumsum(1) - 1).clamp(min=0)
    labels = ids.masked_fill(mask == 0, -100)
    labels[0, 4] = -100  # its logits would be those of padding
    batch = {"input_ids": ids, "attention_mask": mask, "position_ids": places, "labels": labels}
    return Program(transformers.Qwen2ForCausalLM(config), batch, optimizer=adamw)


@family
def gemma2(width: int = 64, layers: int = 4, **more: Any) -> Program:
    """Soft caps, and a sliding window in every second layer."""
    import transformers

    config = transformers.Gemma2Config(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, head_dim=width // 4, query_pre_attn_scalar=width // 4, vocab_size=VOCABULARY,
        max_position_embeddings=64, sliding_window=6, attn_logit_softcapping=4.0, final_logit_softcapping=3.0,
        initializer_range=0.15, pad_token_id=0, bos_token_id=1, eos_token_id=2, use_cache=False,
        attn_implementation="eager", **more,
    )  # fmt: skip
    ids = tokens(2, 16)
    return Program(transformers.Gemma2ForCausalLM(config), {"input_ids": ids, "labels": ids}, optimizer=adamw)


@family
def bloom(width: int = 64, layers: int = 3, **more: Any) -> Program:
    """Positions as a bias of the scores."""
    import transformers

    config = transformers.BloomConfig(
        hidden_size=width, n_layer=layers, n_head=4, vocab_size=VOCABULARY, initializer_range=0.1, hidden_dropout=0.0,
        attention_dropout=0.0, pad_token_id=3, bos_token_id=1, eos_token_id=2, use_cache=False, **more,
    )  # fmt: skip
    ids = tokens(2, 14)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    return Program(transformers.BloomForCausalLM(config), batch, optimizer=adamw)


@family
def phi(width: int = 64, layers: int = 3, **more: Any) -> Program:
    """Attention and feed-forward side by side, and rotary positions for half of a head."""
    import transformers

    config = transformers.PhiConfig(
        hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=VOCABULARY, max_position_embeddings=64, initializer_range=0.1,
        partial_rotary_factor=0.5, resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, use_cache=False, **more,
    )  # fmt: skip
    ids = tokens(2, 16)
    return Program(transformers.PhiForCausalLM(config), {"input_ids": ids, "labels": ids})


@family
def segformer(width: int = 16, **more: Any) -> Program:
    """Segmentation of 32 x 32 pictures, with pixels that do not count."""
    import transformers

    config = transformers.SegformerConfig(
        num_encoder_blocks=3, depths=[1, 2, 1], sr_ratios=[4, 2, 1], hidden_sizes=[width, 2 * width, 4 * width],
        num_attention_heads=[1, 2, 4], patch_sizes=[7, 3, 3], strides=[4, 2, 2], mlp_ratios=[2, 2, 2],
        decoder_hidden_size=2 * width, num_labels=7, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0, drop_path_rate=0.0, initializer_range=0.1, **more,
    )  # fmt: skip
    labels = torch.randint(0, 7, (3, 32, 32), generator=torch.Generator().manual_seed(6))
    labels[:, :5] = 255
    batch = {"pixel_values": picture(3), "labels": labels}
    return Program(transformers.SegformerForSemanticSegmentation(config), batch, optimizer=adamw)


@dataclass
class Training(Program):
    """Two updates, each of two small batches, with clipping and a schedule."""

    accumulated: int = 2
    bound: float = 1.0
    schedule: Callable[[int], float] = lambda step: (step + 1) / 4
    clear: Callable[[torch.optim.Optimizer], None] = torch.optim.Optimizer.zero_grad
    clip: Callable[[Any, float], Any] = torch.nn.utils.clip_grad_norm_

    def step(self) -> torch.Tensor:
        """All of it; returns the last loss."""
        if self.warm_up is not None:
            self.warm_up(self)
        optimizer = self.optimizer(self.model)
        plan = torch.optim.lr_scheduler.LambdaLR(optimizer, self.schedule)
        ids = self.batch["ids"]
        for _ in range(2):
            self.clear(optimizer)
            for part in ids.chunk(2):
                with self.precision():
                    loss = self.model(input_ids=part, labels=part).loss / self.accumulated
                loss.backward()
            if self.before_update is not None:
                self.before_update(self)
            self.clip(self.model.parameters(), self.bound)
            optimizer.step()
            plan.step()
        return loss.detach()


def without_decay_of_norms(model: nn.Module, bare: int = 1) -> torch.optim.Optimizer:
    """AdamW that decays matrices only."""
    ones = [one for one in model.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in ones if one.dim() > bare], "weight_decay": 0.1},
        {"params": [one for one in ones if one.dim() <= bare], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=4e-3, betas=(0.9, 0.95), foreach=False)


@family
def opt(width: int = 64, layers: int = 2, **more: Any) -> Program:
    """OPT, trained for two updates."""
    import transformers

    config = transformers.OPTConfig(
        hidden_size=width, ffn_dim=2 * width, num_hidden_layers=layers, num_attention_heads=4, vocab_size=VOCABULARY,
        max_position_embeddings=32, word_embed_proj_dim=width, init_std=0.1, dropout=0.0, attention_dropout=0.0,
        pad_token_id=1, bos_token_id=2, eos_token_id=2, use_cache=False, **more,
    )  # fmt: skip
    model = transformers.OPTForCausalLM(config)
    return Training(model, {"ids": tokens(4, 12)}, optimizer=without_decay_of_norms)


# A recurrent language model in the manner of RWKV


class TimeMix(nn.Module):
    """A weighted mean of the past, whose weights decay."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blend = nn.Parameter(torch.rand(3, width))
        self.decay, self.bonus = nn.Parameter(torch.linspace(-3, 1, width)), nn.Parameter(0.5 * torch.randn(width))
        self.receptance, self.key, self.value, self.output = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm = nn.GroupNorm(4, width, eps=1e-5)

    def earlier(self, x: torch.Tensor) -> torch.Tensor:
        """What the token before had."""
        return functional.pad(x, (0, 0, 1, -1))

    def scan(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Token after token, in float32."""
        fade, found = torch.exp(-torch.exp(self.decay.float())), []
        above, below = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        for at in range(k.shape[1]):
            own, now = torch.exp(self.bonus.float() + k[:, at]), torch.exp(k[:, at])
            found.append((above + own * v[:, at]) / (below + own))
            above, below = fade * above + now * v[:, at], fade * below + now
        return torch.stack(found, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, width]."""
        before = self.earlier(x)
        r, k, v = (x * part + before * (1 - part) for part in self.blend)
        mixed = self.scan(self.key(k).float(), self.value(v).float()).to(x.dtype)
        mixed = self.norm(mixed.transpose(1, 2)).transpose(1, 2)
        return self.output(torch.sigmoid(self.receptance(r)) * mixed)


class ChannelMix(nn.Module):
    """The feed-forward part: squared ReLU, with a gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.blend = nn.Parameter(torch.rand(2, width))
        self.receptance, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, 3 * width, bias=False)
        self.value = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, tokens, width]."""
        before = functional.pad(x, (0, 0, 1, -1))
        r, k = (x * part + before * (1 - part) for part in self.blend)
        return torch.sigmoid(self.receptance(r)) * self.value(torch.relu(self.key(k)).square())


class Receptance(nn.Module):
    """A language model of these."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, width), nn.Linear(width, VOCABULARY, bias=False)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2 * layers + 1)])
        self.times = nn.ModuleList([TimeMix(width) for _ in range(layers)])
        self.channels = nn.ModuleList([ChannelMix(width) for _ in range(layers)])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(ids)
        for at, (time, channel) in enumerate(zip(self.times, self.channels, strict=True)):
            x = x + time(self.norms[2 * at](x))
            x = x + channel(self.norms[2 * at + 1](x))
        return self.head(self.norms[-1](x))


def next_token(program: Program) -> torch.Tensor:
    """Cross entropy of the next token."""
    ids = program.batch["ids"]
    return functional.cross_entropy(program.model(ids[:, :-1]).float().transpose(1, 2), ids[:, 1:])


@family
def rwkv(width: int = 48, layers: int = 2) -> Program:
    """A recurrent language model."""
    return Program(Receptance(width, layers), {"ids": tokens(2, 11)}, loss=next_token, optimizer=adamw)


# Experts, one for each token


class Switch(nn.Module):
    """Each token goes to its best expert, while that has room."""

    def __init__(self, width: int, experts: int, room: int) -> None:
        super().__init__()
        self.router, self.room = nn.Linear(width, experts, bias=False), room
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)) for _ in range(experts)]
        )

    def weigh(self, logits: torch.Tensor) -> torch.Tensor:
        """Probabilities of the experts."""
        return torch.softmax(logits.float(), dim=-1)

    def balance(self, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        """Share of the tokens times share of the probability."""
        share = functional.one_hot(chosen, len(self.experts)).float().mean(0)
        return len(self.experts) * (share * weights.mean(0)).sum()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The mixed states, and what is added to the loss."""
        rows = x.reshape(-1, x.shape[-1])
        logits = self.router(rows)
        weights = self.weigh(logits)
        best, chosen = weights.max(-1)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            (mine,) = torch.where(chosen == number)
            mine = mine[: self.room]
            out = out.index_add(0, mine, (expert(rows[mine]) * best[mine, None]).to(out.dtype))
        extra = 0.05 * self.balance(weights, chosen) + 0.01 * torch.logsumexp(logits.float(), -1).square().mean()
        return out.view_as(x), extra


class Mixer(nn.Module):
    """Attention and experts, pre-norm."""

    def __init__(self, width: int, experts: int, room: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.switch, self.causal = Switch(width, experts, room), True

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Four heads."""
        q, k, v = (one.unflatten(-1, (4, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The states, and what is added to the loss."""
        x = x + self.attend(self.norm_1(x))
        mixed, extra = self.switch(self.norm_2(x))
        return x + mixed, extra


class Routed(nn.Module):
    """A language model of these, with tied embeddings."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(32, width)
        self.blocks = nn.ModuleList([Mixer(width, 4, 12) for _ in range(layers)])
        self.norm, self.head = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, VOCABULARY, bias=False)
        self.embed.weight.data.mul_(0.3)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits, and what is added to the loss."""
        x, extra = self.embed(ids) + self.places(torch.arange(ids.shape[1])), 0.0
        for block in self.blocks:
            x, more = block(x)
            extra = extra + more
        return self.head(self.norm(x)), extra


def routed_loss(program: Program) -> torch.Tensor:
    """Next token, balance and size of the logits."""
    ids = program.batch["ids"]
    logits, extra = program.model(ids[:, :-1])
    return functional.cross_entropy(logits.float().transpose(1, 2), ids[:, 1:]) + extra


@family
def switch(width: int = 48, layers: int = 2) -> Program:
    """Experts; width=512 for real noise."""
    return Program(Routed(width, layers), {"ids": tokens(3, 13)}, loss=routed_loss, optimizer=adamw)


# Translation with recurrent networks


class Translator(nn.Module):
    """A GRU that reads both ways, attention, and a loop over an LSTM cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.source, self.goal = (nn.Embedding(VOCABULARY, width, padding_idx=0) for _ in range(2))
        self.reader = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.bridge, self.cell = nn.Linear(width, width), nn.LSTMCell(2 * width, width)
        self.score, self.head = nn.Linear(width, width, bias=False), nn.Linear(2 * width, VOCABULARY)

    def read(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """States of all tokens, and the last of both ways."""
        lengths = (ids != 0).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(self.source(ids), lengths, batch_first=True, enforce_sorted=False)
        states, last = self.reader(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=ids.shape[1])
        return states, self.join(last)

    def join(self, last: torch.Tensor) -> torch.Tensor:
        """Forward, then backward."""
        return torch.cat([last[0], last[1]], -1)

    def look(self, state: torch.Tensor, states: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        """Attention over the source."""
        scores = torch.einsum("rw,rtw->rt", self.score(state), states)
        weights = torch.softmax(scores.masked_fill(~real, -1e4), dim=-1)
        return torch.einsum("rt,rtw->rw", weights, states)

    def begin(self, last: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The first state of the decoder."""
        return torch.tanh(self.bridge(last)), torch.zeros_like(last)

    def forward(self, source: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
        """Logits, with the right token given at each step."""
        states, last = self.read(source)
        h, c = self.begin(last)
        found, seen = [], torch.zeros_like(last)
        for at in range(goal.shape[1]):
            h, c = self.cell(torch.cat([self.goal(goal[:, at]), seen], -1), (h, c))
            seen = self.look(h, states, source != 0)
            found.append(self.head(torch.cat([h, seen], -1)))
        return torch.stack(found, 1)


def translation_loss(program: Program) -> torch.Tensor:
    """Cross entropy with smoothed labels; padding does not count."""
    goal = program.batch["goal"]
    logits = program.model(program.batch["source"], goal[:, :-1]).float()
    return functional.cross_entropy(logits.flatten(0, 1), goal[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)


@family
def seq2seq(width: int = 48) -> Program:
    """Translation of two sentences; the second is shorter."""
    source, goal = tokens(3, 9), tokens(3, 8).flip(1)
    source[1, 6:], goal[1, 5:], goal[2, 7:] = 0, 0, 0
    program = Program(Translator(width), {"source": source, "goal": goal}, loss=translation_loss)
    program.optimizer = lambda parameters: torch.optim.Adam(parameters, lr=2e-3, foreach=False)
    return program
