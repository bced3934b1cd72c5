"""Programs of a tester that the judge got wrong, or explained badly, when it saw them first.

Not blind: the rules that these cases ask for were written after them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from judge.cases import artefact, bug, clean
from judge.models import Program, family, picture
from judge.models_blind2 import gaussian

FLOAT32 = "float32"


# A critic with a gradient penalty


class Critic(nn.Module):
    """Scores of points; ``slope`` of a path between two of them."""

    keeps_graph = True

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(10, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def slope(self, x: torch.Tensor) -> torch.Tensor:
        (found,) = torch.autograd.grad(self(x).sum(), x, create_graph=self.keeps_graph)
        return found


def size_of(slope: torch.Tensor) -> torch.Tensor:
    return slope.norm(2, dim=1)


def penalised(program: Program, size=size_of) -> torch.Tensor:
    """How well two sets are told apart, and how steep the way between them is."""
    real, made, share = (program.batch[key] for key in ("real", "made", "share"))
    between = (share * real + (1 - share) * made).requires_grad_()
    penalty = (size(program.model.slope(between)) - 1).pow(2).mean()
    return program.model(made).mean() - program.model(real).mean() + 10 * penalty


@family
def critic() -> Program:
    """Sixteen points of each set."""
    share = torch.rand(16, 1, generator=torch.Generator().manual_seed(9))
    batch = {"real": gaussian(16, 10, seed=1), "made": gaussian(16, 10, seed=5), "share": share}
    update = lambda parameters: torch.optim.Adam(parameters, 1e-4, betas=(0.0, 0.9))  # noqa: E731
    return Program(Critic(), batch, loss=penalised, optimizer=update)


@bug("critic", ":norm", kinds="argument")
def penalty_that_trains_nothing(program: Program) -> None:
    """create_graph is left out: the loss is the same, every gradient is another one."""
    program.model.keeps_graph = False


@bug("critic", ":norm", kinds="argument")
def slope_of_all_points_at_once(program: Program) -> None:
    """norm without its dimension."""
    program.loss = lambda program: penalised(program, torch.Tensor.norm)


@clean("critic")
def size_written_out(program: Program) -> None:
    """A root of a sum of squares."""
    program.loss = lambda program: penalised(program, lambda slope: slope.pow(2).sum(1).sqrt())


# Inverted residuals with squeeze and excitation, RMSprop


class Inverted(nn.Module):
    """Widen, convolve each channel, weigh channels, narrow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 4 * width
        self.widen, self.norm1 = nn.Conv2d(width, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.each, self.norm2 = nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide)
        self.squeeze, self.excite = nn.Conv2d(wide, 4, 1), nn.Conv2d(4, wide, 1)
        self.narrow, self.norm3 = nn.Conv2d(wide, width, 1, bias=False), nn.BatchNorm2d(width)

    def weigh(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(self.excite(functional.silu(self.squeeze(x.mean((2, 3), keepdim=True)))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.silu(self.norm2(self.each(functional.silu(self.norm1(self.widen(x))))))
        return x + self.norm3(self.narrow(y * self.weigh(y)))


class Mobile(nn.Module):
    """Three blocks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width)
        self.blocks, self.head = nn.ModuleList(Inverted(width) for _ in range(3)), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def smoothed(program: Program) -> torch.Tensor:
    """Cross entropy with smoothed labels."""
    found = program.model(program.batch["x"]).float()
    return functional.cross_entropy(found, program.batch["labels"], label_smoothing=0.1)


@family
def mobile(width: int = 8) -> Program:
    """Eight pictures."""
    labels = torch.randint(0, 10, (8,), generator=torch.Generator().manual_seed(2))
    update = lambda parameters: torch.optim.RMSprop(parameters, 1e-3, momentum=0.9)  # noqa: E731
    return Program(Mobile(width), {"x": picture(8), "labels": labels}, loss=smoothed, optimizer=update)


@clean("mobile")
def squeezed_by_linear_maps(program: Program) -> None:
    """A linear map in place of a convolution of one pixel."""
    for block in program.model.blocks:

        def weigh(x, block=block):
            low = functional.linear(x.mean((2, 3)), block.squeeze.weight.flatten(1), block.squeeze.bias)
            high = functional.linear(functional.silu(low), block.excite.weight.flatten(1), block.excite.bias)
            return torch.sigmoid(high)[..., None, None]

        block.weigh = weigh


@clean("mobile")
def channels_last(program: Program) -> None:
    """Another layout in memory."""
    program.model.to(memory_format=torch.channels_last)
    program.batch["x"] = program.batch["x"].to(memory_format=torch.channels_last)


def zero_bias(program: Program) -> None:
    nn.init.zeros_(program.model.blocks[1].squeeze.bias)


@bug("mobile", "blocks.1.squeeze:*", kinds="parameter", base=zero_bias)
def bias_that_should_be_zero(program: Program) -> None:
    """What golden has as zeros is something else."""
    nn.init.constant_(program.model.blocks[1].squeeze.bias, 0.5)


# A network whose skip connection is joined by code that is not recorded


class Joining(nn.Module):
    """Down, up, and what was there before."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep, self.up = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 3, padding=1),
            nn.Conv2d(16, 3, 1),
        )

    def keep(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def join(self, deep: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        return torch.cat([deep, kept], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.down(x))
        deep = functional.interpolate(self.deep(functional.max_pool2d(x, 2)), scale_factor=2.0)
        return self.up(self.join(deep, self.keep(x)))


def pixels(program: Program) -> torch.Tensor:
    """A class for each pixel."""
    return functional.cross_entropy(program.model(program.batch["x"]).float(), program.batch["labels"])


@family
def joining() -> Program:
    """Two pictures."""
    labels = torch.randint(0, 3, (2, 16, 16), generator=torch.Generator().manual_seed(2))
    return Program(Joining(), {"x": picture(2, size=16), "labels": labels}, loss=pixels)


@bug("joining", ":relu", ":cat", direction="either", kinds="input missing argument")
def skip_is_detached(program: Program) -> None:
    """Nothing comes back through the skip connection; what joins the two needs gradients either way."""
    program.model.keep = torch.Tensor.detach


@bug("joining", "up:*", ":cat", kinds="input permutation order")
def joined_the_other_way_round(program: Program) -> None:
    """The skip connection comes first."""
    program.model.join = lambda deep, kept: torch.cat([kept, deep], 1)


# Two experts a word


class Pairs(nn.Module):
    """The two best of four experts, in shares that add up to one."""

    stands_in: int | None = None

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 64), nn.SiLU(), nn.Linear(64, width)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.router(x).float().softmax(-1).topk(2, -1)
        share = (share / share.sum(-1, keepdim=True)).to(x.dtype)
        out = torch.zeros_like(x)
        for at in range(4):
            rows, place = (chosen == at).nonzero(as_tuple=True)
            expert = self.experts[self.stands_in if at == 1 and self.stands_in is not None else at]
            out = out.index_add(0, rows, expert(x[rows]) * share[rows, place, None])
        return out


class Words(nn.Module):
    """Two layers of experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(40, width), nn.ModuleList(Pairs(width) for _ in range(2))
        self.norms, self.head = nn.ModuleList(nn.LayerNorm(width) for _ in range(2)), nn.Linear(width, 40)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x))
        return self.head(x)


def next_word(program: Program) -> torch.Tensor:
    """Each word tells the next."""
    ids = program.batch["ids"]
    return functional.cross_entropy(program.model(ids[:-1]).float(), ids[1:])


@family
def pairs(width: int = 32) -> Program:
    """A sequence of 65 words."""
    ids = torch.randint(0, 40, (65,), generator=torch.Generator().manual_seed(2))
    return Program(Words(width), {"ids": ids}, loss=next_word, optimizer=lambda them: torch.optim.AdamW(them, 1e-3))


@bug("pairs", "layers.1.experts.2:Sequential", "layers.1.experts.1*", kinds="function input parameter")
def expert_that_stands_in_for_another(program: Program) -> None:
    """Words of the second expert go to the third."""
    program.model.layers[1].stands_in = 2


# Sequences of several lengths


class Packed(nn.Module):
    """A class for each sequence."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, 5)

    def encode(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.encoder(packed)[1]

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states = self.encode(x, lengths)
        return self.head(torch.cat([states[0], states[1]], -1))


def classes(program: Program) -> torch.Tensor:
    """Cross entropy."""
    found = program.model(program.batch["x"], program.batch["lengths"])
    return functional.cross_entropy(found.float(), program.batch["labels"])


@family
def packed(width: int = 24) -> Program:
    """Four sequences."""
    batch = {
        "x": gaussian(4, 9, width, seed=3), "lengths": torch.tensor([5, 9, 4, 7]), "labels": torch.tensor([0, 3, 1, 4]),
    }  # fmt: skip
    return Program(Packed(width), batch, loss=classes)


@artefact("packed", dtypes=FLOAT32)
def sorted_before_they_are_packed(program: Program) -> None:
    """The longest first, and put back in order after."""
    model = program.model

    def encode(x, lengths):
        order = lengths.argsort(descending=True)
        ready = nn.utils.rnn.pack_padded_sequence(x[order], lengths[order], batch_first=True)
        return model.encoder(ready)[1][:, order.argsort()]

    model.encode = encode


@bug("packed", ":sort", "encoder:*", kinds="input argument", dtypes=FLOAT32)
def padding_is_read(program: Program) -> None:
    """All sequences are taken for as long as the longest."""
    program.batch["lengths"] = torch.full((4,), 9)
