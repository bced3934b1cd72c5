"""Four more families for the cases of cases_blind.py, written by hand: a vision transformer with relative positions, a
gated causal convolution network, a recommender, and message passing over a graph.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from judge.models import Program, family, picture, tokens


class Heads(nn.Module):
    """Attention over a grid of patches, with a learned bias for each distance of two patches."""

    def __init__(self, width: int, heads: int, grid: int) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(0.5 * torch.randn((2 * grid - 1) ** 2, heads))
        place = torch.stack(torch.meshgrid(torch.arange(grid), torch.arange(grid), indexing="ij")).flatten(1)
        apart = place[:, :, None] - place[:, None, :] + grid - 1
        self.register_buffer("index", apart[0] * (2 * grid - 1) + apart[1])

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Written out."""
        return torch.softmax(q @ k.transpose(-2, -1) * self.scale + bias, dim=-1) @ v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, patches, width]."""
        rows, count, width = x.shape
        q, k, v = self.qkv(x).view(rows, count, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].permute(2, 0, 1)
        return self.proj(self.attend(q, k, v, bias.to(q.dtype)).transpose(1, 2).reshape(rows, count, width))


class Layer(nn.Module):
    """Pre-norm, with a learned scale on each branch."""

    def __init__(self, width: int, heads: int, grid: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.heads, self.drop = Heads(width, heads, grid), nn.Dropout(0.0)
        self.fc1, self.act, self.fc2 = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.scale_1, self.scale_2 = nn.Parameter(0.5 + torch.rand(width)), nn.Parameter(0.5 + torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then feed-forward."""
        x = x + self.scale_1 * self.drop(self.heads(self.norm_1(x)))
        return x + self.scale_2 * self.fc2(self.act(self.fc1(self.norm_2(x))))


class Patches(nn.Module):
    """A vision transformer that averages its patches."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, 8)
        self.places = nn.Parameter(0.5 * torch.randn(16, width))
        self.layers = nn.ModuleList([Layer(width, heads, 4) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        """Patches as vectors."""
        return self.stem(x).flatten(2).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits."""
        x = self.embed(x) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


def smoothed_loss(program: Program) -> torch.Tensor:
    """Cross entropy with smoothed labels."""
    logits = program.model(program.batch["x"]).float()
    return functional.cross_entropy(logits, program.batch["labels"], label_smoothing=0.1)


@family
def patches(width: int = 64, layers: int = 3, heads: int = 4) -> Program:
    """A hand-written vision transformer; width=512 for real noise."""
    batch = {"x": picture(4), "labels": torch.tensor([1, 4, 0, 7])}
    program = Program(Patches(width, layers, heads), batch, loss=smoothed_loss)
    program.optimizer = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.05, foreach=False)
    return program


class Causal(nn.Conv1d):
    """A convolution that sees the past only."""

    ahead = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Padded on the left."""
        width = (self.kernel_size[0] - 1) * self.dilation[0]
        padded = functional.pad(x, (width - self.ahead, self.ahead))
        return functional.conv1d(padded, self.weight, self.bias, dilation=self.dilation)


class Gated(nn.Module):
    """tanh times sigmoid, with a residual, as WaveNet has it."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.filter, self.gate = (Causal(width, width, 3, dilation=dilation) for _ in range(2))
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream, and what is skipped to the end."""
        skip = self.mix(torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x)))
        return x + skip, skip


class Wave(nn.Module):
    """Predicts the next sample of a wave."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.entry = nn.Conv1d(1, width, 1)
        self.levels = nn.ModuleList([Gated(width, 2**power) for power in range(4)])
        self.norm, self.act = nn.BatchNorm1d(width), nn.LeakyReLU(0.1)
        self.exit = nn.Conv1d(width, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[rows, 1, samples]."""
        x, total = self.entry(x), 0.0
        for level in self.levels:
            x, skip = level(x)
            total = total + skip
        return self.exit(self.act(self.norm(total)))


def sample_loss(program: Program) -> torch.Tensor:
    """Smooth L1 of the next sample."""
    wave = program.batch["wave"]
    return functional.smooth_l1_loss(program.model(wave[..., :-1]).float(), wave[..., 1:].float(), beta=0.5)


@family
def wavenet(width: int = 40) -> Program:
    """Gated causal convolutions with RMSprop."""
    wave = torch.randn(3, 1, 65, generator=torch.Generator().manual_seed(5)).cumsum(-1) / 4
    program = Program(Wave(width), {"wave": wave}, loss=sample_loss)
    program.optimizer = lambda parameters: torch.optim.RMSprop(parameters, lr=1e-3, alpha=0.99, foreach=False)
    return program


class Ranker(nn.Module):
    """A recommender: bags of ids, counts, and the products of all pairs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList([nn.EmbeddingBag(200, width, mode="mean", padding_idx=0) for _ in range(3)])
        self.bottom = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, width), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(width + 6, 64), nn.ReLU(), nn.Linear(64, 1))

    def squash(self, counts: torch.Tensor) -> torch.Tensor:
        """Counts become logarithms."""
        return torch.log1p(counts)

    def products(self, vectors: torch.Tensor) -> torch.Tensor:
        """The inner product of each pair."""
        row, column = torch.tril_indices(4, 4, -1)
        return torch.bmm(vectors, vectors.transpose(1, 2))[:, row, column]

    def join(self, dense: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
        """The input of the top."""
        return torch.cat([dense, products], 1)

    def forward(self, ids: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Logits; ids [rows, 3, places]."""
        dense = self.bottom(self.squash(counts))
        vectors = torch.stack([dense, *(bag(ids[:, at]) for at, bag in enumerate(self.bags))], 1)
        return self.top(self.join(dense, self.products(vectors)))[:, 0]


def click_loss(program: Program) -> torch.Tensor:
    """Binary cross entropy, clicks counting three times."""
    batch = program.batch
    logits = program.model(batch["ids"], batch["counts"]).float()
    return functional.binary_cross_entropy_with_logits(logits, batch["clicks"].float(), pos_weight=torch.tensor(3.0))


@family
def ranker(width: int = 32) -> Program:
    """A recommender with Adagrad."""
    ids = tokens(16, 15, 200).view(16, 3, 5)
    ids[:8, 1, 3:] = 0
    counts = torch.randint(0, 40, (16, 6), generator=torch.Generator().manual_seed(2)).float()
    batch = {"ids": ids, "counts": counts, "clicks": (ids[:, 0, 0] % 2).float()}
    program = Program(Ranker(width), batch, loss=click_loss)
    program.optimizer = lambda parameters: torch.optim.Adagrad(parameters, lr=0.01, foreach=False)
    return program


class Round(nn.Module):
    """Messages along the edges, their mean, and a recurrent update."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.message, self.edge, self.update = nn.Linear(width, width), nn.Linear(4, width), nn.GRUCell(width, width)
        self.mean = True

    def gather(self, x: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        """The states at the sources."""
        return x[source]

    def add_up(self, messages: torch.Tensor, goal: torch.Tensor, count: int) -> torch.Tensor:
        """The sum of what arrives at each node."""
        return messages.new_zeros(count, messages.shape[1]).index_add(0, goal, messages)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        """[nodes, width]."""
        messages = torch.relu(self.message(self.gather(x, edges[0])) + self.edge(kind))
        arrived = self.add_up(messages, edges[1], len(x))
        if self.mean:
            arrived = arrived / torch.bincount(edges[1], minlength=len(x)).clamp(min=1)[:, None].to(x.dtype)
        return self.update(arrived, x)


class Molecule(nn.Module):
    """Message passing over atoms, and a length predicted for each bond."""

    def __init__(self, width: int, rounds: int) -> None:
        super().__init__()
        self.atoms = nn.Embedding(12, width)
        self.rounds = nn.ModuleList([Round(width) for _ in range(rounds)])
        self.place, self.norm, self.eps = nn.Linear(width, 3), nn.LayerNorm(width), 1e-6

    def forward(self, atoms: torch.Tensor, edges: torch.Tensor, kind: torch.Tensor) -> torch.Tensor:
        """The length of each edge."""
        x = self.atoms(atoms)
        for one in self.rounds:
            x = one(x, edges, kind)
        place = self.place(self.norm(x))
        return ((place[edges[0]] - place[edges[1]]).square().sum(-1) + self.eps).sqrt()


def length_loss(program: Program) -> torch.Tensor:
    """Mean squared error of the lengths."""
    batch = program.batch
    found = program.model(batch["atoms"], batch["edges"], batch["kind"]).float()
    return functional.mse_loss(found, batch["length"].float())


@family
def molecule(width: int = 48, rounds: int = 3) -> Program:
    """Message passing with Adam; every atom has an edge to itself."""
    generator = torch.Generator().manual_seed(4)
    edges = torch.randint(0, 20, (2, 60), generator=generator)
    edges = torch.cat([edges[:, edges[0] != edges[1]], torch.arange(20).repeat(2, 1)], 1)
    kind = torch.randn(edges.shape[1], 4, generator=generator)
    length = torch.rand(edges.shape[1], generator=generator) * (edges[0] != edges[1])
    batch = {"atoms": torch.randint(0, 12, (20,), generator=generator), "edges": edges, "kind": kind, "length": length}
    program = Program(Molecule(width, rounds), batch, loss=length_loss)
    program.optimizer = lambda parameters: torch.optim.Adam(parameters, lr=1e-3, foreach=False)
    return program
