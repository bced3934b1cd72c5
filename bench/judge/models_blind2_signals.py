"""Seven more families for the cases of cases_blind2*.py: sounds, pictures and graphs, written by hand.

No other file of cases uses them.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from judge.models import Program, family, picture
from judge.models_blind2 import adamw, gaussian

# Speech separation with convolutions


class GlobalNorm(nn.Module):
    """Mean and variance of channels and time together."""

    axes = (1, 2)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain, self.bias, self.eps = nn.Parameter(torch.ones(width, 1)), nn.Parameter(torch.zeros(width, 1)), 1e-8

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, channels, time]."""
        x_ = x.float()
        mean = x_.mean(self.axes, keepdim=True)
        spread = (x_ - mean).square().mean(self.axes, keepdim=True)
        return ((x_ - mean) * torch.rsqrt(spread + self.eps)).to(x.dtype) * self.gain + self.bias


class Separable(nn.Module):
    """1 x 1, depthwise, 1 x 1: residual and skip."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.enter, self.norm_1, self.act_1 = nn.Conv1d(width, 2 * width, 1), GlobalNorm(2 * width), nn.PReLU()
        self.depth = nn.Conv1d(2 * width, 2 * width, 3, padding=dilation, dilation=dilation, groups=2 * width)
        self.norm_2, self.act_2 = GlobalNorm(2 * width), nn.PReLU()
        self.rest, self.skip = nn.Conv1d(2 * width, width, 1), nn.Conv1d(2 * width, width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, channels, time]."""
        y = self.norm_1(self.act_1(self.enter(x)))
        y = self.norm_2(self.act_2(self.depth(y)))
        return x + self.rest(y), self.skip(y)


class Separator(nn.Module):
    """Encoder, masks of two speakers, decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, width, 8, 4), nn.ConvTranspose1d(width, 1, 8, 4)
        self.norm, self.neck = GlobalNorm(width), nn.Conv1d(width, width, 1)
        self.blocks = nn.ModuleList([Separable(width, 2**power) for power in range(3)])
        self.act, self.masks = nn.PReLU(), nn.Conv1d(width, 2 * width, 1)

    def gate(self, x: torch.Tensor) -> torch.Tensor:
        """Masks are between 0 and 1."""
        return torch.sigmoid(x)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        """[rows, 1, samples] to [rows, speakers, samples]."""
        code = torch.relu(self.encoder(wave))
        x, total = self.neck(self.norm(code)), 0.0
        for block in self.blocks:
            x, skip = block(x)
            total = total + skip
        masks = self.gate(self.masks(self.act(total))).unflatten(1, (2, -1))
        return torch.cat([self.decoder(masks[:, at] * code) for at in range(2)], 1)


def centred(x: torch.Tensor) -> torch.Tensor:
    """Without its mean over time."""
    return x - x.mean(-1, keepdim=True)


def ratio_loss(program: Program) -> torch.Tensor:
    """The scale-invariant ratio of signal and noise, in decibels."""
    guess, truth = centred(program.model(program.batch["wave"]).float()), centred(program.batch["parts"].float())
    along = (guess * truth).sum(-1, keepdim=True) / (truth.square().sum(-1, keepdim=True) + 1e-8) * truth
    ratio = along.square().sum(-1) / ((guess - along).square().sum(-1) + 1e-8)
    return -10 * torch.log10(ratio + 1e-8).mean()


@family
def tasnet(width: int = 32) -> Program:
    """Two voices out of one."""
    parts = 0.3 + gaussian(3, 2, 132, seed=8).cumsum(-1) / 6
    program = Program(Separator(width), {"wave": parts.sum(1, keepdim=True), "parts": parts}, loss=ratio_loss)
    program.optimizer = lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=False)
    return program


# Pictures in a code book


class Codes(nn.Module):
    """The nearest code; codes follow as a moving average."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.fade, self.cost = 0.9, 0.25
        self.register_buffer("table", gaussian(count, width, seed=12))
        self.register_buffer("uses", torch.ones(count))
        self.register_buffer("sums", self.table.clone())

    def nearest(self, rows: torch.Tensor) -> torch.Tensor:
        """By the squared distance."""
        apart = rows.square().sum(1, keepdim=True) - 2 * rows @ self.table.T + self.table.square().sum(1)
        return apart.argmin(1)

    def commit(self, rows: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Pulls the encoder to its codes."""
        return self.cost * functional.mse_loss(rows, found.detach())

    def through(self, rows: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """The code in the forward pass, the identity in the backward pass."""
        return rows + (found - rows).detach()

    @torch.no_grad()
    def follow(self, rows: torch.Tensor, chosen: torch.Tensor) -> None:
        """Move the table."""
        picked = functional.one_hot(chosen, len(self.table)).to(rows.dtype)
        self.uses.mul_(self.fade).add_(picked.sum(0), alpha=1 - self.fade)
        self.sums.mul_(self.fade).add_(picked.T @ rows, alpha=1 - self.fade)
        self.table.copy_(self.sums / (self.uses + 1e-5)[:, None])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes in place of the channels, and what is added to the loss."""
        rows = x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).to(self.table.dtype)
        chosen = self.nearest(rows)
        found = self.table[chosen].clone()
        self.follow(rows.detach(), chosen)
        out = self.through(rows, found).view(len(x), *x.shape[2:], -1).permute(0, 3, 1, 2)
        return out.to(x.dtype), self.commit(rows, found)


class Quantised(nn.Module):
    """Encoder, codes, decoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down_1, self.down_2 = nn.Conv2d(3, width, 4, 2, 1), nn.Conv2d(width, width, 4, 2, 1)
        self.norm_1, self.norm_2 = nn.GroupNorm(4, width), nn.GroupNorm(4, width)
        self.codes = Codes(24, width)
        self.up_1, self.up_2 = nn.Conv2d(width, width, 3, padding=1), nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def enlarge(self, x: torch.Tensor) -> torch.Tensor:
        """Twice the size."""
        return functional.interpolate(x, scale_factor=2, mode="nearest")

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The picture, and what is added to the loss."""
        x = self.norm_2(self.down_2(functional.silu(self.norm_1(self.down_1(x)))))
        x, extra = self.codes(x)
        return self.up_2(functional.silu(self.up_1(self.enlarge(x)))), extra


def picture_loss(program: Program) -> torch.Tensor:
    """Mean squared error of the picture."""
    seen, extra = program.model(program.batch["x"])
    return functional.mse_loss(seen.float(), program.batch["x"].float()) + extra.float()


@family
def vqvae(width: int = 24) -> Program:
    """Pictures of 16 x 16 in a code book."""
    return Program(Quantised(width), {"x": picture(2, size=16)}, loss=picture_loss, optimizer=adamw)


# Latents that look at the input


class Look(nn.Module):
    """Attention of one sequence to another, by nn.MultiheadAttention."""

    def __init__(self, width: int, seen: int, heads: int) -> None:
        super().__init__()
        self.norm, self.norm_seen, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(seen), nn.LayerNorm(width)
        self.heads = nn.MultiheadAttention(width, heads, kdim=seen, vdim=seen, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, seen: torch.Tensor, hidden: torch.Tensor | None = None) -> torch.Tensor:
        """x looks at what is not hidden."""
        seen = self.norm_seen(seen)
        found, _ = self.heads(self.norm(x), seen, seen, key_padding_mask=hidden, need_weights=False)
        x = x + found
        return x + self.mlp(self.norm_2(x))


class Perceiver(nn.Module):
    """Few latents look at many samples, then at each other, twice with the same weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(8, width))
        self.look, self.think = Look(width, 18, 1), Look(width, width, 4)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 5)

    def places(self, count: int) -> torch.Tensor:
        """Sines and cosines of the place, from -1 to 1."""
        place = torch.linspace(-1, 1, count)[:, None]
        angle = math.pi * place * torch.linspace(1, 16, 8)
        return torch.cat([angle.sin(), angle.cos()], -1)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Logits of [rows, samples, 2]."""
        seen = torch.cat([x, self.places(x.shape[1]).to(x.dtype).expand(len(x), -1, -1)], -1)
        state = self.look(self.latents.expand(len(x), -1, -1), seen, hidden)
        for _ in range(2):
            state = self.think(state, state)
        return self.head(self.norm(state).mean(1))


def several_labels(program: Program) -> torch.Tensor:
    """Binary cross entropy, summed over labels."""
    logits = program.model(program.batch["x"], program.batch["hidden"]).float()
    return functional.binary_cross_entropy_with_logits(logits, program.batch["labels"].float(), reduction="sum") / 3


@family
def perceiver(width: int = 48) -> Program:
    """Latents and cross attention; width=512 for real noise."""
    hidden = torch.zeros(3, 24, dtype=torch.bool)
    hidden[1, 18:], hidden[2, 20:] = True, True
    labels = (gaussian(3, 5, seed=14) > 0).float()
    batch = {"x": gaussian(3, 24, 2, seed=13), "hidden": hidden, "labels": labels}
    return Program(Perceiver(width), batch, loss=several_labels, optimizer=adamw)


# Contrast with a slow copy


class Towers(nn.Module):
    """An encoder, its slow copy, and a queue of what the copy said before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fast = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, 2, 1),
            nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, 16),
        )  # fmt: skip
        self.slow = copy.deepcopy(self.fast).requires_grad_(requires_grad=False)
        self.register_buffer("queue", functional.normalize(gaussian(16, 12, seed=15), dim=0))
        self.keep, self.warmth = 0.99, 0.2
        with torch.no_grad():
            for one in self.slow.parameters():
                one.add_(0.05 * torch.randn_like(one))

    @torch.no_grad()
    def follow(self) -> None:
        """The slow copy moves a little."""
        for fast, slow in zip(self.fast.parameters(), self.slow.parameters(), strict=True):
            slow.mul_(self.keep).add_(fast, alpha=1 - self.keep)

    def unit(self, x: torch.Tensor) -> torch.Tensor:
        """Of length one."""
        return functional.normalize(x, dim=1)

    def forward(self, one: torch.Tensor, two: torch.Tensor) -> torch.Tensor:
        """Logits; the first column is the right one."""
        q = self.unit(self.fast(one))
        with torch.no_grad():
            self.follow()
            k = self.unit(self.slow(two))
        return self.compare(q, k)

    def compare(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """With the other view, and with the queue, which then gets the new keys."""
        right, wrong = torch.einsum("rw,rw->r", q, k), q @ self.queue.clone().to(q.dtype)
        self.queue[:, : len(k)] = k.T.to(self.queue.dtype)
        return torch.cat([right[:, None].float(), wrong.float()], 1) / self.warmth


def contrast(program: Program) -> torch.Tensor:
    """Which one is the other view?"""
    logits = program.model(program.batch["one"], program.batch["two"])
    return functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


@family
def towers(width: int = 16) -> Program:
    """Contrastive learning with a slow copy, SGD and momentum."""
    one = picture(4, size=16)
    program = Program(Towers(width), {"one": one, "two": one + 0.3 * gaussian(*one.shape, seed=16)}, loss=contrast)
    program.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)
    return program


# Two networks against each other


class Duel(nn.Module):
    """A generator and a discriminator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(8, 16 * width), nn.Unflatten(1, (width, 4, 4)), nn.BatchNorm2d(width), nn.ReLU(),
            nn.ConvTranspose2d(width, width, 4, 2, 1), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 3, 3, 1, 1),
            nn.Tanh(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(width, 2 * width, 4, 2, 1), nn.LeakyReLU(0.2),
            nn.Flatten(), nn.Linear(8 * width, 1),
        )  # fmt: skip


def told_apart(judge: nn.Module, real: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """The discriminator's loss."""
    return functional.softplus(-judge(real).float()).mean() + functional.softplus(judge(made).float()).mean()


@dataclass
class Versus(Program):
    """Two updates of each network."""

    betas: tuple[float, float] = (0.5, 0.999)
    fused: bool = False
    both_cleared: bool = True
    cut: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach
    tell: Callable[..., torch.Tensor] = told_apart

    def step(self) -> torch.Tensor:
        """Discriminator, then generator; returns the generator's loss."""
        if self.warm_up is not None:
            self.warm_up(self)
        one, two = self.model.generator, self.model.discriminator
        options = {"lr": 1e-3, "betas": self.betas, "fused": self.fused, "foreach": False}
        updates = [torch.optim.Adam(part.parameters(), **options) for part in (one, two)]
        for _ in range(2):
            updates[1].zero_grad()
            with self.precision():
                fake = one(self.batch["z"])
                loss = self.tell(two, self.batch["x"], self.cut(fake))
            loss.backward()
            updates[1].step()
            if self.both_cleared:
                updates[0].zero_grad()
            with self.precision():
                loss = self.loss(self)
            loss.backward()
            updates[0].step()
        return loss.detach()


def fooled(program: Program) -> torch.Tensor:
    """The generator's loss; pictures are made again."""
    found = program.model.discriminator(program.model.generator(program.batch["z"]))
    return functional.softplus(-found.float()).mean()


@family
def gan(width: int = 16) -> Program:
    """Pictures of 8 x 8."""
    batch = {"x": picture(4, size=8).clamp(-1, 1), "z": gaussian(4, 8, seed=17)}
    return Versus(Duel(width), batch, loss=fooled)


# A transformer that removes noise


class Modulated(nn.Module):
    """A block whose norms are moved and scaled by time and label."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = (nn.LayerNorm(width, eps=1e-6, elementwise_affine=False) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_q, self.norm_k = nn.RMSNorm(width // heads, eps=1e-6), nn.RMSNorm(width // heads, eps=1e-6)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 2 * width), nn.GELU("tanh"), nn.Linear(2 * width, width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def parts(self, condition: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Shift, scale and gate of attention, then of the feed-forward part."""
        return self.modulation(condition)[:, None].chunk(6, -1)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Heads with normed queries and keys."""
        q, k, v = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(self.norm_q(q).to(v.dtype), self.norm_k(k).to(v.dtype), v)
        return self.proj(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        """[rows, patches, width]."""
        shift_1, scale_1, gate_1, shift_2, scale_2, gate_2 = self.parts(condition)
        x = x + gate_1 * self.attend(self.norm_1(x) * (1 + scale_1) + shift_1)
        return x + gate_2 * self.fc2(self.act(self.fc1(self.norm_2(x) * (1 + scale_2) + shift_2)))


class Denoiser(nn.Module):
    """A diffusion transformer."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.stem, self.labels = nn.Conv2d(3, width, 4, 4), nn.Embedding(11, width)
        self.time = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.register_buffer("places", 0.5 * gaussian(16, width, seed=18))
        self.register_buffer("left", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0))
        self.blocks = nn.ModuleList([Modulated(width, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, 48)

    def embed(self, time: torch.Tensor) -> torch.Tensor:
        """Cosines, then sines."""
        angle = time.float()[:, None] * torch.exp(-math.log(10000) * torch.arange(16) / 16)
        return torch.cat([angle.cos(), angle.sin()], -1)

    def noisy(self, x: torch.Tensor, noise: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Picture and noise, mixed for a time."""
        left = self.left.float()[time].view(-1, 1, 1, 1)
        return (left.sqrt() * x.float() + (1 - left).sqrt() * noise.float()).to(x.dtype)

    def forward(self, x: torch.Tensor, time: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """The noise in a picture of 16 x 16."""
        condition = self.time(self.embed(time).to(x.dtype)) + self.labels(label)
        x = self.stem(x).flatten(2).transpose(1, 2) + self.places
        for block in self.blocks:
            x = block(x, condition)
        return functional.fold(self.head(self.norm(x)).transpose(1, 2), 16, 4, stride=4)


def noise_loss(program: Program) -> torch.Tensor:
    """Squared error of the noise, bounded by the ratio of signal and noise."""
    batch, model = program.batch, program.model
    found = model(model.noisy(batch["x"], batch["noise"], batch["time"]), batch["time"], batch["label"]).float()
    left = model.left.float()[batch["time"]]
    ratio = left / (1 - left)
    error = (found - batch["noise"].float()).square().mean((1, 2, 3))
    return (error * ratio.clamp(max=5.0) / ratio).mean()


@family
def dit(width: int = 64, layers: int = 2) -> Program:
    """A diffusion transformer; width=512 for real noise."""
    batch = {
        "x": picture(3, size=16), "noise": gaussian(3, 3, 16, 16, seed=19), "time": torch.tensor([40, 300, 620]),
        "label": torch.tensor([1, 7, 4]),
    }  # fmt: skip
    return Program(Denoiser(width, layers), batch, loss=noise_loss, optimizer=adamw)


# Attention along the edges of a graph


class EdgeAttention(nn.Module):
    """Graph attention with several heads."""

    def __init__(self, seen: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.slope = heads, 0.2
        self.linear = nn.Linear(seen, heads * width, bias=False)
        self.source, self.goal = (nn.Parameter(torch.randn(heads, width)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(heads * width))

    def share(self, scores: torch.Tensor, goal: torch.Tensor, count: int) -> torch.Tensor:
        """Softmax over the edges that arrive at a node."""
        index = goal[:, None].expand_as(scores)
        top = scores.new_full((count, self.heads), -1e30).scatter_reduce(0, index, scores, "amax")
        raised = torch.exp(scores - top.detach()[goal])
        return raised / scores.new_zeros(count, self.heads).index_add(0, goal, raised)[goal]

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """[nodes, width]."""
        source, goal = edges
        rows = self.linear(x).unflatten(-1, (self.heads, -1))
        scores = (rows * self.source).sum(-1)[source] + (rows * self.goal).sum(-1)[goal]
        share = self.share(functional.leaky_relu(scores, self.slope), goal, len(x))
        out = torch.zeros_like(rows).index_add(0, goal, (rows[source] * share[..., None]).to(rows.dtype))
        return out.flatten(1) + self.bias


class Graphs(nn.Module):
    """Two rounds over several graphs, and one number for each graph."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = EdgeAttention(10, width, 3), EdgeAttention(3 * width, width, 3)
        self.norm_1, self.norm_2 = nn.BatchNorm1d(3 * width), nn.BatchNorm1d(3 * width)
        self.head = nn.Linear(3 * width, 1)

    def pool(self, x: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        """The mean of each graph's nodes."""
        count = torch.bincount(graph)
        return x.new_zeros(len(count), x.shape[1]).index_add(0, graph, x) / count[:, None].to(x.dtype)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor) -> torch.Tensor:
        """[graphs]."""
        x = functional.elu(self.norm_1(self.first(x, edges)))
        x = functional.elu(self.norm_2(self.second(x, edges)))
        return self.head(self.pool(x, graph))[:, 0]


def graph_loss(program: Program) -> torch.Tensor:
    """Huber loss of one number for each graph."""
    batch = program.batch
    found = program.model(batch["x"], batch["edges"], batch["graph"]).float()
    return functional.huber_loss(found, batch["truth"].float(), delta=0.5)


@family
def gat(width: int = 12) -> Program:
    """Graph attention with NAdam; every node has an edge to itself, the last ones of the list."""
    generator = torch.Generator().manual_seed(20)
    graph = torch.arange(24) // 6
    edges = torch.randint(0, 6, (2, 72), generator=generator) + 6 * torch.arange(72).div(18, rounding_mode="floor")
    edges = torch.cat([edges[:, edges[0] != edges[1]], torch.arange(24).repeat(2, 1)], 1)
    batch = {"x": gaussian(24, 10, seed=21), "edges": edges, "graph": graph, "truth": gaussian(4, seed=22)}
    program = Program(Graphs(width), batch, loss=graph_loss)
    program.optimizer = lambda parameters: torch.optim.NAdam(parameters, lr=2e-3, foreach=False)
    return program
