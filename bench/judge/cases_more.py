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


# One weight for all steps of a sequence


class Recurrent(nn.Module):
    """A cell by hand: autocast casts its weights once for all calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.table, self.into, self.state = nn.Embedding(50, width), nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 50)
        self.cut, self.reset = -1, -1

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of each step."""
        x, states = self.table(ids), []
        state = x.new_zeros(len(ids), x.shape[2])
        for at in range(ids.shape[1]):
            state = state.detach() if at == self.cut else state
            state = torch.tanh(self.norm(self.into(x[:, at]) + self.state(state)))
            states.append(state)
            state = torch.zeros_like(state) if at == self.reset else state
        return self.out(torch.stack(states, 1))


@family
def recurrent(width: int = 96) -> Program:
    """Eight steps."""
    ids = torch.randint(0, 50, (8, 9), generator=torch.Generator().manual_seed(3))

    def loss(program: Program) -> torch.Tensor:
        logits = program.model(program.batch["ids"][:, :-1]).float()
        return functional.cross_entropy(logits.flatten(0, 1), program.batch["ids"][:, 1:].flatten())

    return Program(Recurrent(width), {"ids": ids}, loss, adamw)


@clean("recurrent", dtypes="float32")
def cell_under_autocast(program: Program) -> None:
    """Gradients of the weights come through one cast."""
    program.dtype = "autocast"


@bug("recurrent", "state:*", kinds="argument")
def state_is_detached(program: Any) -> None:
    """Gradients end in the middle."""
    program.model.cut = 4


@bug("recurrent", "state:*", ":zeros_like", kinds="input extra", modules="state")
def state_begins_anew(program: Any) -> None:
    """The fifth step knows nothing of those before."""
    program.model.reset = 3


# What each optimiser sees


class Actor(nn.Module):
    """A policy and the weight of its entropy, which no module takes."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.policy, self.log_alpha = perceptron(32, width, 6), nn.Parameter(torch.tensor(-1.0))
        self.aim, self.frozen = -6.0, False


@family
def actor(width: int = 96) -> Program:
    """Two optimisers; the second moves one number."""
    program = Program(Actor(width), {"x": gaussian(32, 32, seed=3)})

    def step() -> torch.Tensor:
        model: Any = program.model
        updates = [torch.optim.Adam(one, lr=1e-3) for one in (model.policy.parameters(), [model.log_alpha])]
        with program.precision():
            chances = functional.log_softmax(model.policy(program.batch["x"]).float(), -1)
        entropy = -(chances.exp() * chances).sum(-1).mean()
        (-model.log_alpha.exp().detach() * entropy).backward()
        if model.frozen:
            for parameter in model.policy[-1].parameters():
                parameter.grad = None
        updates[0].step()
        (model.log_alpha * (entropy.detach() + model.aim)).backward()
        updates[1].step()
        return entropy.detach()

    return train_by(program, step)


@clean("actor", dtypes="float32")
def policy_on_two_threads(program: Program) -> None:
    """Products in other parts."""
    program.around.append(two_threads())


@bug("actor", ":__add__", "optimizer:*", kinds="argument input update", modules="optimizer")
def aim_with_the_wrong_sign(program: Any) -> None:
    """Only the gradient of log_alpha differs."""
    program.model.aim = 6.0


@bug("actor", "optimizer:*", kinds="missing", modules="optimizer")
def last_layer_gets_no_update(program: Any) -> None:
    """Its gradients are dropped before the update."""
    program.model.frozen = True


# Attention along edges


class Neighbours(nn.Module):
    """Weights of edges that add up to one at each node."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.slope, self.shifts = nn.Linear(width, width, bias=False), 0.2, True
        self.source, self.target = (nn.Parameter(gaussian(width, seed=seed) / 8) for seed in (1, 2))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Nodes after one round."""
        h, (start, end) = self.layer(x), edges
        score = functional.leaky_relu((h @ self.source)[start] + (h @ self.target)[end], self.slope).float()
        if self.shifts:
            score = score - torch.full((len(x),), -1e9).scatter_reduce(0, end, score.detach(), "amax")[end]
        score = score.exp()
        score = score / torch.zeros(len(x)).index_add(0, end, score)[end]
        return torch.zeros_like(h).index_add(0, end, h[start] * score.to(h.dtype).unsqueeze(1))


class Attending(nn.Module):
    """Two rounds."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rounds, self.head = nn.ModuleList(Neighbours(width) for _ in range(2)), nn.Linear(width, 5)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Logits of nodes."""
        for one in self.rounds:
            x = x + functional.elu(one(x, edges))
        return self.head(x)


@family
def attending(width: int = 64) -> Program:
    """60 nodes, each with an edge to itself."""
    drawn = torch.randint(0, 60, (2, 240), generator=torch.Generator().manual_seed(3))
    batch = {"x": gaussian(60, width, seed=3), "edges": torch.cat([drawn, torch.arange(60).expand(2, 60)], 1)}
    return Program(
        Attending(width), batch,
        lambda program: functional.cross_entropy(program.model(**program.batch).float(), classes(60)),
    )  # fmt: skip


@clean("attending")
def scores_not_shifted(program: Any) -> None:
    """The largest score of each node is not taken off first."""
    for one in program.model.rounds:
        one.shifts = False


@bug("attending", "rounds.1:leaky_relu", kinds="argument", modules="rounds.1")
def slope_of_the_default_function(program: Any) -> None:
    """0.01 in place of 0.2."""
    program.model.rounds[1].slope = 0.01


# A model that writes its own input


@family
def writer(width: int = 64) -> Program:
    """Five tokens, each the likeliest after the last; no loss and no gradient."""
    model = nn.ModuleDict(
        {"table": nn.Embedding(60, width), "norm": nn.LayerNorm(width), "body": perceptron(width, 2 * width, width),
         "head": nn.Linear(width, 60)}
    )  # fmt: skip
    program = Program(model, {"ids": torch.arange(4)}, optimizer=None)

    def step() -> torch.Tensor:
        parts: Any = program.model
        ids = program.batch["ids"]
        with torch.no_grad(), program.precision():
            for _ in range(5):
                states = parts["table"](ids)
                logits = parts["head"](states + parts["body"](parts["norm"](states)))
                ids = logits.argmax(-1)
        return logits.float().square().mean()

    return train_by(program, step)


@clean("writer", dtypes="float32 bf16")
def written_on_two_threads(program: Program) -> None:
    """Products in other parts."""
    program.around.append(two_threads())


@bug("writer", "norm:*", kinds="argument factor")
def norm_of_the_writer_has_a_larger_epsilon(program: Any) -> None:
    """In every step, the first one first."""
    program.model["norm"].eps = 0.3
