"""More programs as their users write them: scalers, straight-through gradients, state by hand, flows, diffusion.

What is kept here is the core of each, without a library. The families stand beside their cases: no other file uses
them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from judge.cases import bug, clean
from judge.cases_blind2 import two_threads
from judge.cases_libraries import adamw, classes, classified, gaussian, perceptron, train_by
from judge.models import Program, family

# Messages along edges


class Messages(nn.Module):
    """The mean of the neighbours."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.near, self.norm = nn.Linear(width, width), nn.Linear(width, width), nn.LayerNorm(width)
        self.divides = True

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Nodes after one round."""
        start, end = edges
        total = torch.zeros_like(x).index_add(0, end, x.index_select(0, start))
        if self.divides:
            total = total / torch.bincount(end, minlength=len(x)).clamp(min=1).to(x.dtype).unsqueeze(1)
        return x + functional.relu(self.norm(self.own(x) + self.near(total)))


class Graph(nn.Module):
    """Three rounds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rounds, self.head = nn.ModuleList(Messages(width) for _ in range(3)), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Logits of nodes."""
        for one in self.rounds:
            x = one(x, edges)
        return self.head(x)


@family
def graph(width: int = 48) -> Program:
    """80 nodes, 400 edges."""
    edges = torch.randint(0, 80, (2, 400), generator=torch.Generator().manual_seed(3))
    batch = {"x": gaussian(80, width, seed=3), "edges": edges}
    return Program(
        Graph(width), batch,
        lambda program: functional.cross_entropy(program.model(**program.batch).float(), classes(80)),
    )  # fmt: skip


@clean("graph")
def edges_sorted_by_their_end(program: Program) -> None:
    """The same sums in another order."""
    edges = program.batch["edges"]
    program.batch["edges"] = edges[:, edges[1].argsort(stable=True)]


@bug("graph", "rounds.1:*", kinds="missing input", modules="rounds.1")
def sums_for_means(program: Program) -> None:
    """Neighbours are not divided by their number."""
    program.model.rounds[1].divides = False


# A scaled loss


@family
def scaled(width: int = 96) -> Program:
    """Half precision with a scaler; gradients are clipped after the scale was taken off."""
    program = Program(perceptron(64, width, width, 5), {"x": gaussian(16, 64, seed=3), "y": classes(16)})
    program.settings = {"scale": 1024.0, "unscales": True}  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        chosen = program.settings  # type: ignore[attr-defined]
        update = torch.optim.SGD(program.model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=chosen["scale"])
        for _ in range(2):
            update.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = classified(program)
            scaler.scale(loss).backward()
            if chosen["unscales"]:
                scaler.unscale_(update)
            nn.utils.clip_grad_norm_(program.model.parameters(), 0.5)
            scaler.step(update)
            scaler.update()
        return loss.detach()

    return train_by(program, step)


@clean("scaled", dtypes="float32")
def scaled_by_another_power(program: Any) -> None:
    """4,096 in place of 1,024; the kernel that takes it off gives gradients no new version."""
    program.settings["scale"] = 4096.0


@bug("scaled", "clip_grad:*", kinds="missing input factor", dtypes="float32", levels="mix")
def clipped_before_unscaling(program: Any) -> None:
    """unscale_ is forgotten, so clipping sees gradients that are 1,024 times as large."""
    program.settings["unscales"] = False


# Codes of a table that is moved by hand


class Quantised(nn.Module):
    """Rows of a table in place of vectors, with gradients that go straight through."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(32, width), nn.Linear(width, 32)
        self.register_buffer("codes", gaussian(24, width, seed=4) * 0.5)
        self.register_buffer("count", torch.ones(24))
        self.register_buffer("total", gaussian(24, width, seed=4) * 0.5)
        self.decay, self.share, self.straight = 0.99, 0.25, True

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is decoded, and how far the codes are."""
        made = self.encode(x)
        chosen = torch.cdist(made, self.codes).argmin(1)
        code = self.codes[chosen]
        with torch.no_grad():
            hits = functional.one_hot(chosen, 24).to(made.dtype)
            self.count.mul_(self.decay).add_(hits.sum(0), alpha=1 - self.decay)
            self.total.mul_(self.decay).add_(hits.t() @ made, alpha=1 - self.decay)
            self.codes.copy_(self.total / (self.count + 1e-5).unsqueeze(1))
        far = self.share * functional.mse_loss(made, code)
        return self.decode(made + (code - made).detach() if self.straight else code), far


@family
def quantised(width: int = 32) -> Program:
    """Reconstruction and commitment."""

    def loss(program: Program) -> torch.Tensor:
        out, far = program.model(program.batch["x"])
        return functional.mse_loss(out, program.batch["x"]) + far

    return Program(Quantised(width), {"x": gaussian(40, 32, seed=3)}, loss, optimizer=adamw)


@clean("quantised", dtypes="float32")
def quantised_on_two_threads(program: Program) -> None:
    """Products in other parts."""
    program.around.append(two_threads())


@bug("quantised", ":mul_", ":add_", kinds="argument update factor", dtypes="float32", levels="mix")
def table_moves_faster(program: Program) -> None:
    """State that is written in the forward pass, and read in the next step only."""
    program.model.decay = 0.9


@bug("quantised", ":__mul__", ":__rmul__", kinds="argument factor", dtypes="float32", levels="mix")
def commitment_counts_more(program: Program) -> None:
    """0.5 in place of 0.25."""
    program.model.share = 0.5


@bug("quantised", "decode:*", "encode:*", ":*", kinds="input missing argument", dtypes="float32", levels="mix",
     direction="either")  # fmt: skip
def nothing_goes_straight_through(program: Program) -> None:
    """The forward pass is the same; the decoder's gradient never reaches the encoder."""
    program.model.straight = False


# Signs


class Sign(torch.autograd.Function):
    """+1 or -1, with the gradient of a clipped identity."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Sign."""
        ctx.save_for_backward(x)
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        """Nothing beyond one."""
        (x,) = ctx.saved_tensors
        return gradients[0] * (x.abs() <= 1).to(gradients[0].dtype)


class Binary(nn.Module):
    """A product of signs, scaled by the mean size of the weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(gaussian(width, width, seed=width) * 0.1)
        self.scales = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Signs in, numbers out."""
        weight = Sign.apply(self.weight)
        if self.scales:
            weight = weight * self.weight.abs().mean(1, keepdim=True)
        return functional.linear(Sign.apply(x), weight)


@family
def binary(width: int = 64) -> Program:
    """Two such layers between batch norms."""
    layers = [nn.Linear(32, width), nn.BatchNorm1d(width), Binary(width), nn.BatchNorm1d(width), Binary(width)]
    model = nn.Sequential(*layers, nn.BatchNorm1d(width), nn.Linear(width, 5))
    return Program(model, {"x": gaussian(24, 32, seed=3), "y": classes(24)}, classified, optimizer=adamw)


@clean("binary", dtypes="float32")
def signs_under_autocast(program: Program) -> None:
    """A small error becomes other signs: noise grows as its square root."""
    program.dtype = "autocast"


@bug("binary", "4:*", kinds="missing argument input", modules="4", dtypes="float32")
def signs_not_scaled(program: Program) -> None:
    """Weights of +1 and -1."""
    program.model[4].scales = False


# Gradients of single rows, learning to learn


@family
def private(width: int = 64) -> Program:
    """Gradients of each row, clipped one by one, averaged, and applied by hand."""
    program = Program(perceptron(32, width, 5), {"x": gaussian(16, 32, seed=3), "y": classes(16)})
    program.limit = 1.0  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        weights = {name: one.detach() for name, one in program.model.named_parameters()}

        def loss(weights: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return functional.cross_entropy(functional_call(program.model, weights, (x[None],)), y[None])

        rows = vmap(grad(loss), in_dims=(None, 0, 0))(weights, program.batch["x"], program.batch["y"])
        norms = torch.stack([one.flatten(1).norm(dim=1) for one in rows.values()]).norm(dim=0)
        shares = (program.limit / (norms + 1e-6)).clamp(max=1.0)  # type: ignore[attr-defined]
        with torch.no_grad():
            for name, one in program.model.named_parameters():
                one.sub_(0.1 * torch.einsum("n,n...->...", shares, rows[name]) / 16)
        return norms.mean()

    return train_by(program, step)


@bug("private", ":__rdiv__", ":__rtruediv__", ":__truediv__", kinds="argument factor", dtypes="float32", levels="mix")
def rows_clipped_at_half(program: Any) -> None:
    """Another limit for each row."""
    program.limit = 0.5


@bug("private", ":norm", ":einsum", kinds="input", dtypes="float32", levels="mix")
def labels_of_other_classes(program: Program) -> None:
    """Labels go into code that is transformed as a whole, of which nothing is recorded."""
    program.batch["y"] = (program.batch["y"] + 1) % 5


@family
def learner(width: int = 40) -> Program:
    """Two tasks, two steps inside each, and the gradient through them."""
    model = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
    program = Program(model, {"x": gaussian(2, 2, 10, 4, seed=3), "y": gaussian(2, 2, 10, 1, seed=4)})
    program.rate = 0.1  # type: ignore[attr-defined]

    def step() -> torch.Tensor:
        update = adamw(model.parameters())
        total = torch.zeros(())
        for task in range(2):
            weights = dict(model.named_parameters())
            x, y = program.batch["x"][task], program.batch["y"][task]
            for _ in range(2):
                loss = functional.mse_loss(functional_call(model, weights, (x[0],)), y[0])
                slopes = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                rate = program.rate  # type: ignore[attr-defined]
                weights = {name: weights[name] - rate * slope for name, slope in zip(weights, slopes, strict=True)}
            total = total + functional.mse_loss(functional_call(model, weights, (x[1],)), y[1])
        loss = total / 2
        loss.backward()
        update.step()
        return loss.detach()

    return train_by(program, step)


@clean("learner", dtypes="float32")
def learned_on_two_threads(program: Program) -> None:
    """Second derivatives, in other parts."""
    program.around.append(two_threads())


@bug("learner", ":__mul__", ":__rmul__", kinds="argument factor", dtypes="float32", levels="mix")
def inner_steps_are_shorter(program: Any) -> None:
    """0.05 in place of 0.1."""
    program.rate = 0.05


# A flow and its volume


class Coupling(nn.Module):
    """A shift and a scale of one half by the other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net, self.add = nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 32)), 2.0

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The other half first, and the logarithm of the volume."""
        one, other = x.chunk(2, 1)
        shift, scale = self.net(one).chunk(2, 1)
        scale = torch.sigmoid(scale + self.add)
        return torch.cat([(other + shift) * scale, one], 1), scale.log().sum(1)


@family
def volume(width: int = 64) -> Program:
    """Four couplings; the loss is a likelihood."""

    def loss(program: Program) -> torch.Tensor:
        x, total = program.batch["x"], torch.zeros(32)
        for layer in program.model:
            x, part = layer(x)
            total = total + part.float()
        return (0.5 * x.float().square().sum(1) + 16 * math.log(2 * math.pi) - total).mean()

    return Program(nn.Sequential(*(Coupling(width) for _ in range(4))), {"x": gaussian(32, 32, seed=3)}, loss)


@clean("volume", dtypes="float32")
def volume_on_two_threads(program: Program) -> None:
    """Products in other parts."""
    program.around.append(two_threads())


@bug("volume", "2:__add__", kinds="argument offset")
def scale_begins_elsewhere(program: Program) -> None:
    """sigmoid(x + 1) in place of sigmoid(x + 2)."""
    program.model[2].add = 1.0
