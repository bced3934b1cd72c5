"""Programs as libraries and their users write them: two optimisers, accumulation, adapters, optimisers by hand.

Found while comparing runs of timm, torchvision, diffusers, peft and others with a fault planted; what is kept here is
each one's core, without the library. The families stand beside their cases: no other file uses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from judge.cases import artefact, bug, clean
from judge.cases_blind2 import two_threads
from judge.models import Program, family, picture, tokens


def gaussian(*shape: int, seed: int) -> torch.Tensor:
    """Random numbers that do not depend on what was drawn before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def classes(rows: int, count: int = 5) -> torch.Tensor:
    """Labels."""
    return torch.randint(0, count, (rows,), generator=torch.Generator().manual_seed(13))


def perceptron(*sizes: int) -> nn.Sequential:
    """Linear layers with a norm and a GELU between them."""
    layers: list[nn.Module] = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.LayerNorm(after), nn.GELU()]
    return nn.Sequential(*layers[:-2])


def adamw(parameters: Any) -> torch.optim.Optimizer:
    """The usual one."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def train_by(program: Program, step: Callable[[], torch.Tensor]) -> Program:
    """A program whose step is not one forward, one backward and one update."""
    program.step = step  # type: ignore[method-assign]
    return program


# Gradient accumulation, clipping


@family
def accumulating(width: int = 96) -> Program:
    """Four backward passes, one clipped update."""
    program = Program(perceptron(32, width, 5), {"x": gaussian(16, 32, seed=3), "y": classes(16)})
    program.settings = {"divisor": 4, "limit": 1.0, "beta": 0.999, "optimizer": adamw}  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        chosen = program.settings  # type: ignore[attr-defined]
        update = chosen["optimizer"](program.model.parameters())
        for at in range(0, 16, 4):
            logits = program.model(program.batch["x"][at : at + 4])
            loss = functional.cross_entropy(logits, program.batch["y"][at : at + 4]) / chosen["divisor"]
            loss.backward()
        if chosen["limit"]:
            nn.utils.clip_grad_norm_(program.model.parameters(), chosen["limit"])
        update.step()
        return loss.detach()

    return train_by(program, step)


@bug("accumulating", "clip_grad:*", kinds="argument missing", dtypes="float32", levels="mix")
def clipped_at_a_tenth(program: Any) -> None:
    """Another limit of the norm."""
    program.settings["limit"] = 0.1


@bug("accumulating", "clip_grad:*", "optimizer:*", kinds="missing", dtypes="float32", levels="mix")
def never_clipped(program: Any) -> None:
    """The clipping is left out."""
    program.settings["limit"] = 0.0


def _by_sgd(program: Any) -> None:
    program.settings.update(limit=0.0, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05))


@bug("accumulating", ":__truediv__", kinds="argument", dtypes="float32", levels="mix", base=_by_sgd)
def loss_not_divided(program: Any) -> None:
    """The sum of four means in place of their mean; plain descent does not hide it."""
    program.settings["divisor"] = 1


@clean("accumulating", dtypes="float32")
def fused_updates(program: Any) -> None:
    """One kernel for the whole update."""
    program.settings["optimizer"] = lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True)


# Two optimisers; a module that is used twice in a step


class Adversaries(nn.Module):
    """A generator and a discriminator."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.maker = nn.Sequential(
            nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 32), nn.Tanh()
        )
        self.critic = nn.Sequential(nn.Linear(32, width), nn.LeakyReLU(0.2), nn.Linear(width, 1))


@family
def adversaries(width: int = 64) -> Program:
    """Two rounds, each with an update of either side."""
    batch = {"real": gaussian(16, 32, seed=3), "noise": gaussian(16, 16, seed=4)}
    program = Program(Adversaries(width), batch)
    program.settings = {"label": 0.9, "rate": 2e-4}  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        chosen, model = program.settings, program.model  # type: ignore[attr-defined]
        rates = {"betas": (0.5, 0.999), "foreach": False}
        makes = torch.optim.Adam(model.maker.parameters(), lr=chosen["rate"], **rates)
        judges = torch.optim.Adam(model.critic.parameters(), lr=2e-4, **rates)
        score = functional.binary_cross_entropy_with_logits
        for at in (0, 8):
            real, noise = (program.batch[key][at : at + 8] for key in ("real", "noise"))
            judges.zero_grad()
            made = model.maker(noise)
            seen, doubted = model.critic(real), model.critic(made.detach())
            loss = score(seen, torch.full_like(seen, chosen["label"])) + score(doubted, torch.zeros_like(doubted))
            loss.backward()
            judges.step()
            makes.zero_grad()
            fooled = model.critic(made)
            loss = score(fooled, torch.ones_like(fooled))
            loss.backward()
            makes.step()
        return loss.detach()

    return train_by(program, step)


@bug("adversaries", ":binary_cross_entropy_with_logits", kinds="input", levels="mix")
def labels_not_smoothed(program: Any) -> None:
    """1 in place of 0.9 for what is real: the critic's gradient adds up two uses, and one of them is wrong."""
    program.settings["label"] = 1.0


@bug("adversaries", "optimizer:*", kinds="argument update", dtypes="float32", levels="mix")
def generator_learns_at_half_the_rate(program: Any) -> None:
    """Of two optimisers one has another rate."""
    program.settings["rate"] = 1e-4


@clean("adversaries", dtypes="float32")
def critic_on_two_threads(program: Program) -> None:
    """A bias before a batch norm has no gradient but noise. Adam makes steps of it, and the second round reads them."""
    program.around.append(two_threads())


# Convolutions and batch norms in another memory format


class Mobile(nn.Module):
    """Depthwise convolutions with many batch norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(4))
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 3, 1, 1, groups=width, bias=False) for _ in range(3))
        self.head = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Pictures to logits."""
        x = functional.hardswish(self.norms[0](self.stem(x)))
        for norm, conv in zip(self.norms[1:], self.deep, strict=True):
            x = x + functional.hardswish(norm(conv(x)))
        return self.head(x.mean((2, 3)))


def classified(program: Program) -> torch.Tensor:
    """Cross entropy of logits."""
    return functional.cross_entropy(program.model(program.batch["x"]).float(), program.batch["y"])


@family
def mobile(width: int = 24) -> Program:
    """A batch norm of 2 x 32 x 32 values to a channel."""
    return Program(Mobile(width), {"x": picture(2, 3, 64), "y": classes(2)}, classified)


@clean("mobile", dtypes="float32")
def batch_norms_over_channels_last(program: Program) -> None:
    """Another kernel adds up 2,048 values one after another."""
    program.model.to(memory_format=torch.channels_last)
    program.batch["x"] = program.batch["x"].contiguous(memory_format=torch.channels_last)


def _draws(program: Program, left: float = 1e-30) -> None:
    def loss(program: Program) -> torch.Tensor:
        torch.full((1,), left)  # freed at once: the next tensor of this size lies there
        torch.empty(1).uniform_(0.0, 1.0)
        return classified(program)

    program.loss = loss


@artefact("mobile", dtypes="float32", base=_draws)
def a_random_number_is_drawn_into_infinity(program: Program) -> None:
    """Detectors of torchvision draw a size into memory that nobody has written; what it held does not matter."""
    _draws(program, math.inf)


@bug("mobile", "deep.1:conv2d", kinds="argument", modules="deep.1")
def dilated(program: Program) -> None:
    """Padding and dilation of one convolution, both pairs of numbers."""
    program.model.deep[1].dilation = program.model.deep[1].padding = (2, 2)


# Masks that are there or are not


class Translator(nn.Module):
    """PyTorch's own transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(96, width)
        self.body = nn.Transformer(width, 4, 2, 2, 2 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, 96)

    def forward(self, source: torch.Tensor, target: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        """Logits of the target's next words."""
        causal = self.body.generate_square_subsequent_mask(target.shape[1], dtype=self.words.weight.dtype)
        source, target = self.words(source), self.words(target)
        return self.head(self.body(source, target, tgt_mask=causal, src_key_padding_mask=padding))


@family
def translator(width: int = 64) -> Program:
    """The second of three sentences is short."""
    source, target = tokens(3, 10), tokens(3, 9).flip(1)
    padding = torch.zeros(3, 10, dtype=torch.bool)
    padding[1, 7:] = True
    program = Program(
        Translator(width), {"source": source, "target": target[:, :-1], "padding": padding}, optimizer=adamw
    )
    program.loss = lambda program: functional.cross_entropy(
        program.model(**program.batch).flatten(0, 1).float(), target[:, 1:].flatten()
    )
    return program


@bug("translator", "body.encoder.layers.0.self_attn:*", kinds="argument input missing")
def padding_not_masked(program: Program) -> None:
    """No mask where the golden run has one."""
    program.batch["padding"] = None


@bug("translator", ":cross_entropy", kinds="argument", levels="mix")
def loss_summed_up(program: Program) -> None:
    """An argument that only one side gives."""
    target = tokens(3, 9).flip(1)
    program.loss = lambda program: functional.cross_entropy(
        program.model(**program.batch).flatten(0, 1).float(), target[:, 1:].flatten(), reduction="sum"
    )


# Sparse gradients


class Recommender(nn.Module):
    """Three tables of rows that are added up, and their products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(100, width, mode="sum", sparse=True) for _ in range(3))
        self.dense = nn.Linear(13, width)
        self.top = nn.Linear(width + 16, 1)

    def forward(self, numbers: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """A score for each row."""
        starts = torch.arange(0, ids.shape[1], 3)
        parts = [self.dense(numbers), *(table(row, starts) for table, row in zip(self.tables, ids, strict=True))]
        together = torch.stack(parts, 1)
        products = torch.bmm(together, together.transpose(1, 2))
        return self.top(torch.cat([parts[0], products.flatten(1)], 1)).squeeze(1)


@family
def recommender(width: int = 16) -> Program:
    """Rows are looked up more than once."""
    ids = torch.randint(0, 100, (3, 30), generator=torch.Generator().manual_seed(3))
    batch = {"numbers": gaussian(10, 13, seed=3), "ids": ids}
    clicks = (gaussian(10, seed=5) > 0).float()
    return Program(
        Recommender(width), batch,
        lambda program: functional.binary_cross_entropy_with_logits(program.model(**program.batch).float(), clicks),
    )  # fmt: skip


@clean("recommender", dtypes="float32")
def dense_gradients(program: Program) -> None:
    """Tables whose gradients have zeros."""
    for table in program.model.tables:
        table.sparse = False


@bug("recommender", "tables.1:*", kinds="argument factor", dtypes="float32")
def rows_are_averaged(program: Program) -> None:
    """mean in place of sum."""
    program.model.tables[1].mode = "mean"


# Adapters; parameters that do not learn


class Adapted(nn.Module):
    """A frozen layer and its low-rank change."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(width, width), nn.Linear(width, 8, bias=False), nn.Linear(8, width)
        self.base.requires_grad_(False)
        self.scaling = 2.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's output with the change."""
        return x + functional.gelu(self.base(x) + self.up(self.down(x)) * self.scaling)


@family
def adapters(width: int = 64) -> Program:
    """Three layers, of which only the adapters learn."""
    model = nn.Sequential(*(Adapted(width) for _ in range(3)), nn.Linear(width, 5))
    return Program(model, {"x": gaussian(12, width, seed=3), "y": classes(12)}, classified, optimizer=adamw)


@bug("adapters", "1.up:*", "optimizer:*", kinds="argument missing update parameter", modules=("1.up", "optimizer"),
     direction="either")  # fmt: skip
def an_adapter_is_frozen(program: Program) -> None:
    """One of six matrices does not learn."""
    program.model[1].up.weight.requires_grad_(False)


@bug("adapters", "1:__mul__", kinds="argument factor")
def scaled_by_another_alpha(program: Program) -> None:
    """alpha / r is 1 in one layer."""
    program.model[1].scaling = 1.0


@bug("adapters", "0:*", "1:*", kinds="missing function argument", modules=("1", "0"))
def residual_is_lost(program: Program) -> None:
    """One layer gives its change alone."""
    layer = program.model[1]
    layer.forward = lambda x: functional.gelu(layer.base(x) + layer.up(layer.down(x)) * layer.scaling)


# An optimiser written by hand


def orthogonal(gradient: torch.Tensor, rounds: int, third: float) -> torch.Tensor:
    """Newton and Schulz's iteration, as Muon has it."""
    x = gradient / (gradient.norm() + 1e-7)
    for _ in range(rounds):
        square = x @ x.T
        x = 3.4445 * x + (-4.775 * square + third * square @ square) @ x
    return x


@family
def muon(width: int = 48) -> Program:
    """Matrices are moved by orthogonal steps, vectors down the gradient."""
    program = Program(perceptron(64, width, 40), {"x": gaussian(16, 64, seed=3), "y": classes(16, 40)}, classified)
    program.settings = {"rounds": 5, "third": 2.0315, "scale": 1.0}  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        chosen = program.settings  # type: ignore[attr-defined]
        loss = program.loss(program)
        loss.backward()
        with torch.no_grad():
            for one in program.model.parameters():
                if one.dim() == 2:
                    one.add_(orthogonal(one.grad, chosen["rounds"], chosen["third"]), alpha=-0.02 * chosen["scale"])
                else:
                    one.add_(one.grad, alpha=-0.01)
        return loss.detach()

    return train_by(program, step)


@bug("muon", ":add_", kinds="argument update", dtypes="float32", levels="mix")
def steps_are_longer(program: Any) -> None:
    """Scaled by sqrt(3), as for a matrix of another shape."""
    program.settings["scale"] = math.sqrt(3)


@bug("muon", ":__mul__", ":__rmul__", kinds="argument factor", dtypes="float32", levels="mix")
def third_coefficient_rounded(program: Any) -> None:
    """2 in place of 2.0315."""
    program.settings["third"] = 2.0


@clean("muon", dtypes="float32")
def moved_on_two_threads(program: Program) -> None:
    """Products in other parts."""
    program.around.append(two_threads())


# Small parts of the loss


class Routed(nn.Module):
    """Experts of which two are taken, with weights that sum up to one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.router = nn.LayerNorm(width), nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.SiLU()) for _ in range(4))
        self.sums_to_one = True

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The experts' answer, and how uneven the router is."""
        rows = self.norm(x)
        logits = self.router(rows)
        shares = logits.softmax(-1)
        weights, chosen = shares.topk(2, -1)
        if self.sums_to_one:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            at, which = torch.where(chosen == number)
            out.index_add_(0, at, expert(rows[at]) * weights[at, which, None])
        return x + out, logits.float().softmax(-1).mean(0).square().sum() * 4


class Experts(nn.Module):
    """Two such layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers, self.head = nn.ModuleList([Routed(width), Routed(width)]), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and the auxiliary loss."""
        extra = x.new_zeros(())
        for layer in self.layers:
            x, uneven = layer(x)
            extra = extra + uneven
        return self.head(x), extra


@family
def experts(width: int = 48) -> Program:
    """The loss has a small part that keeps the router even."""
    program = Program(Experts(width), {"x": gaussian(24, width, seed=3), "y": classes(24)}, optimizer=adamw)
    program.share = 0.001  # type: ignore[attr-defined]

    def loss(program: Any) -> torch.Tensor:
        logits, extra = program.model(program.batch["x"])
        return functional.cross_entropy(logits.float(), program.batch["y"]) + program.share * extra

    program.loss = loss
    return program


@bug("experts", ":__mul__", ":__rmul__", kinds="argument factor", dtypes="float32", levels="mix")
def auxiliary_loss_counts_more(program: Any) -> None:
    """0.1 in place of 0.001."""
    program.share = 0.1


@bug("experts", "layers.1:*", kinds="missing input", modules="layers.1")
def weights_do_not_sum_to_one(program: Program) -> None:
    """Router weights are not divided by their sum."""
    program.model.layers[1].sums_to_one = False


# Probabilities of paths


class Listener(nn.Module):
    """Sounds to letters."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv, self.gru = nn.Conv1d(20, width, 3, 2, 1), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of letters in time."""
        return self.head(self.gru(functional.relu(self.conv(x)).transpose(1, 2))[0])


@family
def listener(width: int = 64) -> Program:
    """Connectionist temporal classification."""
    letters = torch.randint(1, 12, (3, 6), generator=torch.Generator().manual_seed(3))
    program = Program(Listener(width), {"x": gaussian(3, 20, 40, seed=3)})
    program.lengths = torch.tensor([20, 18, 15])  # type: ignore[attr-defined]

    def loss(program: Any) -> torch.Tensor:
        paths = program.model(program.batch["x"]).float().log_softmax(-1).transpose(0, 1)
        return functional.ctc_loss(paths, letters, program.lengths, torch.tensor([6, 5, 4]), zero_infinity=True)

    program.loss = loss
    return program


@clean("listener", dtypes="float32")
def convolved_without_onednn(program: Program) -> None:
    """Rounding of logarithms of whole paths comes back as that of probabilities."""
    program.around.append(torch.backends.mkldnn.flags(enabled=False))


@bug("listener", ":ctc_loss", kinds="input", levels="mix")
def lengths_of_the_padded_batch(program: Any) -> None:
    """All are taken to be as long as the longest."""
    program.lengths = torch.tensor([20, 20, 20])


@bug("listener", "conv:*", kinds="argument", dtypes="float32")
def stride_of_one(program: Program) -> None:
    """A tuple of one number."""
    program.model.conv.stride = (1,)
    program.model.conv.padding = (1,)
