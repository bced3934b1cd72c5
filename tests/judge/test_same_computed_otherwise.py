"""The same numbers by another route (another library version, other threads, a compiled part) are no divergence.

Next to each such pair stands one that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
from support import needs

WIDTH = 24


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def compared(
    folder: Path, program: Callable[[Any, str, Any], None], model: Callable[[], nn.Module], target: str, step: int = 0
) -> Any:
    """Record a program in two ways, ``target`` and "golden", from the same seed, and compare one step."""
    dumps = []
    for way in (target, "golden"):
        torch.manual_seed(0)
        with twinprobe.record(made := model(), folder / way, level="mix") as recording:
            torch.manual_seed(1)
            program(made, way, recording)
        dumps.append(next((folder / way).rglob(f"step{step}/*/dump.json")))
    return twinprobe.compare(*dumps)


class Attention(nn.Module):
    """Attention by PyTorch's own function, or written out."""

    fused = False

    def __init__(self) -> None:
        super().__init__()
        self.first, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.first(x)).view(*x.shape[:2], 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-1, -2) * (WIDTH // 2) ** -0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2).mean(1))


@needs("torch", "2.5", "there is Adafactor")
@pytest.mark.parametrize(("way", "agrees"), [("fused", True), ("rate", False)])
def test_a_number_read_off_a_tensor_is_off_by_rounding(way: str, agrees: bool, tmp_path: Path) -> None:
    """Adafactor scales an update by the size of its parameter, which it reads as a plain number."""

    def train(model: Attention, way: str, _: Any) -> None:
        model.fused = way == "fused"
        optimizer = torch.optim.Adafactor(model.parameters(), 1.01e-2 if way == "rate" else 1e-2, foreach=True)
        functional.cross_entropy(model(torch.randn(10, 7, WIDTH)), torch.arange(10) % 5).backward()
        optimizer.step()

    result = compared(tmp_path, train, Attention, way)
    assert result.agrees is agrees


class Speaker(nn.Module):
    """Scores of the next token; ``place``: computed for all tokens or for this one alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(50, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 50)
        self.place: int | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(self.table(tokens)))
        return self.head(hidden if self.place is None else hidden[:, self.place][:, None])


@pytest.mark.parametrize(("way", "agrees"), [("all", True), ("first", False)])
def test_scores_of_the_last_token_alone(way: str, agrees: bool, tmp_path: Path) -> None:
    """Versions of a library compute the scores of all tokens of a prompt, or of the last one, which alone is used."""

    def speak(model: Speaker, way: str, _: Any) -> None:
        model.place = {"golden": -1, "all": None, "first": 0}[way]
        tokens = torch.randint(0, 50, (2, 9))
        with torch.no_grad():
            for _ in range(3):
                tokens = torch.cat([tokens, torch.softmax(model(tokens)[:, -1], -1).argmax(-1, keepdim=True)], 1)

    result = compared(tmp_path, speak, Speaker, way)
    assert result.agrees is agrees


class Pooled(nn.Module):
    """The mean over all places gives a bias equal gradients everywhere: their rounding errors add up."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.each = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.out = nn.Linear(16, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.each(functional.silu(self.first(x))).mean((2, 3)))


@pytest.mark.parametrize(("way", "agrees"), [("threads", True), ("scaled", False)])
def test_the_gradient_of_a_bias_is_a_long_sum_of_equal_terms(way: str, agrees: bool, tmp_path: Path) -> None:
    def train(model: Pooled, way: str, _: Any) -> None:
        torch.set_num_threads(2 if way == "threads" else 1)
        if way == "scaled":
            model.each.bias.register_hook(lambda gradient: gradient * 1.001)
        functional.cross_entropy(model(torch.randn(8, 3, 14, 14)), torch.arange(8) % 7).backward()
        torch.optim.SGD(model.parameters(), 0.1).step()

    result = compared(tmp_path, train, Pooled, way)
    assert result.agrees is agrees


@pytest.mark.slow
@pytest.mark.parametrize(("way", "agrees"), [("drifted", True), ("wrong", False)])
def test_parameters_inside_a_compiled_module_drift_unseen(way: str, agrees: bool, tmp_path: Path) -> None:
    """A compiled module shows no parts; Adam moves single parameters further than most."""

    def model() -> nn.Module:
        part = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        rest = [layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH))]
        return nn.Sequential(*rest, part, nn.Linear(WIDTH, 5))

    def train(model: nn.Sequential, way: str, recording: Any) -> None:
        part, noise = model[8], torch.Generator().manual_seed(2)
        if way != "golden":
            model[8] = torch.compile(part, backend="eager")
        for step in range(2):
            functional.cross_entropy(model(torch.randn(16, WIDTH)), torch.arange(16) % 5).backward()
            torch.optim.SGD(model.parameters(), 0.1).step()
            model.zero_grad()
            if way != "golden" and step == 0:
                inside = {id(one) for one in part.parameters()}
                with torch.no_grad():
                    for one in model.parameters():
                        size = 1e-4 if id(one) in inside else 5e-7
                        one.add_(torch.randn(one.shape, generator=noise) * size * one.square().mean().sqrt())
                    if way == "wrong":
                        part[2].weight.mul_(1.01)
            recording.step()

    result = compared(tmp_path, train, model, way, step=1)
    assert result.agrees is agrees


@pytest.mark.parametrize(("way", "loss_agrees"), [("golden2", True), ("shifted", False)])
def test_a_loss_off_by_a_constant_is_not_said_to_agree(way: str, loss_agrees: bool, tmp_path: Path) -> None:
    def train(model: nn.Module, way: str, _: Any) -> None:
        loss = functional.mse_loss(model(torch.randn(8, WIDTH)), torch.randn(8, WIDTH))
        (loss + 0.5 if way == "shifted" else loss).backward()

    result = compared(tmp_path, train, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()), way)
    lines = str(result.summary)
    assert ("loss agrees" in lines) is loss_agrees
    assert ("loss differs" in lines) is not loss_agrees
    assert "parameter gradients agree" in lines


class Scored(Attention):
    """It computes its own loss."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = super().forward(x).float()
        return functional.cross_entropy(scores, labels), scores


@pytest.mark.slow
@pytest.mark.parametrize(("way", "agrees"), [("fused", True), ("wrong", False)])
def test_a_compiled_model_is_trained_in_mixed_precision_as_an_eager_one(way: str, agrees: bool, tmp_path: Path) -> None:
    """It shows one call, and nothing of the types inside; behind it come the loss and an optimizer, as in the other."""

    dumps = []
    for name in (way, "golden"):
        torch.manual_seed(0)
        model = Scored()
        if name != "golden":
            model.fused = True
            model.compile(backend="eager")
        optimizer = torch.optim.AdamW(model.parameters(), 0.01)
        with twinprobe.record(model, tmp_path / name, level="mix"):
            with torch.autocast("cpu", torch.bfloat16):
                loss, _ = model(torch.randn(8, 6, WIDTH), torch.arange(8) % 5)
            (loss / 2).backward()
            if name == "wrong":
                model.qkv.weight.grad.mul_(1.1)
            optimizer.step()
        dumps.append(next((tmp_path / name).rglob("dump.json")))
    result = twinprobe.compare(*dumps)
    for line in ("the whole model as a single call", "loss agrees", "updated parameters"):
        assert line in result.summary
    assert result.agrees is agrees, result.first


@needs("torch", "2.3", "gradients are scaled on the host")
@pytest.mark.parametrize(("way", "agrees"), [("fused", True), ("wrong", False)])
def test_gradients_that_are_zero_in_theory_are_so_without_their_scale(way: str, agrees: bool, tmp_path: Path) -> None:
    """The bias of keys has no gradient but rounding; a scaler divides it by the scale, unseen, before the optimizer."""

    def train(model: Attention, way: str, recording: Any) -> None:
        model.fused = way != "golden"
        optimizer = torch.optim.SGD(model.parameters(), 0.1, foreach=True)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(torch.randn(8, 6, WIDTH)).float(), torch.arange(8) % 5)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if way == "wrong":
            model.out.weight.grad.mul_(1.3)
        scaler.step(optimizer)
        recording.step()

    def model() -> nn.Module:
        made = Attention()
        made.qkv = Separate()
        return made

    result = compared(tmp_path, train, model, way)
    assert result.agrees is agrees, result.first


class Separate(nn.Module):
    """Queries, keys and values by one projection each."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([one(x) for one in self.each], -1)


@pytest.mark.parametrize(("way", "named"), [("lerp", ""), ("faster", "lerp_")])
def test_a_moving_average_by_one_call_or_two(way: str, named: str, tmp_path: Path) -> None:
    """The average hardly moves: what is on the way to it (``mul_``) looks nearly like what ``lerp_`` has made."""

    def train(model: nn.Module, way: str, _: Any) -> None:
        average = [one.detach().clone() for one in model.parameters()]
        model(torch.randn(8, WIDTH)).square().mean().backward()
        torch.optim.AdamW(model.parameters(), 1e-3).step()
        with torch.no_grad():
            for mean, one in zip(average, model.parameters(), strict=True):
                if way == "golden":
                    mean.mul_(0.99).add_(one, alpha=0.01)
                else:
                    mean.lerp_(one, 0.1 if way == "faster" else 0.01)

    result = compared(tmp_path, train, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)), way)
    assert named in result.first.op if named else result.agrees, result.summary


class Keys(nn.Module):
    """Attention with projections of its own; no result depends on the bias of the keys."""

    scale_first = False

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys = self.queries(x), self.keys(x).transpose(-1, -2)
        scores = (queries * WIDTH**-0.5) @ keys if self.scale_first else queries @ keys * WIDTH**-0.5
        return x + scores.softmax(-1) @ self.values(x)


@pytest.mark.parametrize(("way", "agrees"), [("compiled", True), ("halved", False)])
def test_a_gradient_that_is_zero_in_theory_is_known_where_one_run_shows_no_parts(
    way: str, agrees: bool, tmp_path: Path
) -> None:
    def train(model: Any, way: str, _: Any) -> None:
        if way == "halved":
            model[0].values.bias.register_hook(lambda gradient: gradient / 2)
        if way != "golden":
            model[0].scale_first = True
            model[0] = torch.compile(model[0], backend="eager")
        functional.cross_entropy(model(torch.randn(4, 12, WIDTH)).mean(1), torch.arange(4)).backward()
        torch.optim.NAdam(model.parameters(), 1e-3).step()

    result = compared(tmp_path, train, lambda: nn.Sequential(Keys(), nn.Linear(WIDTH, 5)), way)
    assert (result.first is None) is agrees, result.summary


@pytest.mark.parametrize(("way", "named"), [("bfloat16", ""), ("other", "roll")])
def test_the_derivative_of_an_absolute_value_jumps(way: str, named: str, tmp_path: Path) -> None:
    def train(model: nn.Module, way: str, _: Any) -> None:
        x, wanted = torch.randn(64, WIDTH), torch.randn(64, WIDTH)
        with torch.autocast("cpu", torch.bfloat16, enabled=way == "bfloat16"):
            made = model(x).float()
        functional.l1_loss(made, wanted.roll(1, 0) if way == "other" else wanted).backward()

    result = compared(tmp_path, train, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)), way)
    assert named in result.first.op if named else result.first is None, result.summary


class Words(nn.Module):
    """Attention over words, of which each sees those before it in its own sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.out = nn.Embedding(30, WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 30)

    def forward(self, words: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.table(words)).chunk(3, -1)
        scores = (q @ k.transpose(-1, -2) * WIDTH**-0.5).masked_fill(~seen, -1e4)
        return self.out(scores.softmax(-1) @ v)


@pytest.mark.parametrize(("way", "agrees"), [("packed", True), ("leaking", False)])
def test_sentences_one_behind_the_other_or_in_padded_rows(way: str, agrees: bool, tmp_path: Path) -> None:
    """Where all gradients agree, the words are the same ones, however they are cut, and a loss may be scaled."""

    def train(model: nn.Module, way: str, _: Any) -> None:
        sentences = [torch.randint(1, 30, (length,)) for length in (5, 8, 6)]
        following = [functional.pad(one[1:], (0, 1), value=-100) for one in sentences]
        if way == "golden":
            words = nn.utils.rnn.pad_sequence(sentences, batch_first=True)
            labels = nn.utils.rnn.pad_sequence(following, batch_first=True, padding_value=-100)
            seen = torch.ones(8, 8, dtype=torch.bool).tril()
            scores = model(words, seen).flatten(0, 1)
            loss = functional.cross_entropy(scores, labels.flatten(), reduction="sum") / 16
        else:
            number = torch.arange(3).repeat_interleave(torch.tensor([5, 8, 6]))
            seen = torch.ones(19, 19, dtype=torch.bool).tril()
            seen = seen if way == "leaking" else seen & (number[:, None] == number)
            loss = functional.cross_entropy(model(torch.cat(sentences)[None], seen)[0], torch.cat(following))
        loss.backward()
        torch.optim.AdamW(model.parameters(), 1e-3).step()

    result = compared(tmp_path, train, Words, way)
    assert (result.first is None) is agrees, result.summary


def test_memory_that_is_filled_in_parts_is_compared_once_it_is_full(tmp_path: Path) -> None:
    """A loss over clusters of words writes to fresh memory, cluster after cluster: the rest is anything."""

    class Clusters(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = nn.AdaptiveLogSoftmaxWithLoss(WIDTH, 24, [8, 16])
            self.memory = torch.zeros(24)

        def forward(self, x: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
            for part in range(3):
                own = (words // 8 == part).nonzero().squeeze(1)
                self.memory.index_copy_(0, own, self.loss.log_prob(x[own])[:, part])
            return self.memory

    def program(model: Any, way: str, _: Any) -> None:
        model.memory.numpy()[:] = float("nan") if way == "junk" else 0.0  # as fresh memory: no call has made it
        model(torch.randn(24, WIDTH), torch.arange(24)).mean().backward()

    assert compared(tmp_path, program, Clusters, "junk").first is None


def test_a_sum_of_another_shape_sends_back_a_gradient_of_that_shape(tmp_path: Path) -> None:
    """The likelihood of a Gaussian process, by one triangular system or by two; the layer's bias cancels in it."""

    class Process(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.way = nn.Linear(WIDTH, 3), ""

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            z = self.net(x)
            kernel = torch.exp(-0.5 * (z[:, None] - z[None]).pow(2).sum(-1)) + 0.3 * torch.eye(20)
            root = torch.linalg.cholesky(kernel)
            if self.way == "one":
                fit = torch.linalg.solve_triangular(root, y[:, None], upper=False).pow(2).sum()
            else:
                fit = (y * torch.cholesky_solve(y[:, None], root).squeeze(1)).sum()
            return 0.5 * fit + root.diagonal().log().sum()

    def program(model: Any, way: str, recording: Any) -> None:
        model.way, optimizer = way, torch.optim.Adam(model.parameters(), 1e-2)
        for _ in range(2):
            optimizer.zero_grad()
            model(x := torch.randn(20, WIDTH), x.sum(1).sin()).backward()
            optimizer.step()
            recording.step()

    assert compared(tmp_path, program, Process, "one", step=1).first is None


class ELU(nn.Module):
    """As some kernels compute it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > 0, x, torch.exp(x) - 1)


def test_an_exponential_less_one_rounds_beside_one(tmp_path: Path) -> None:
    """Near zero, kernels that take exp(x) - 1 lose what others keep; no module inside shows it."""
    for side, activation in (("target", ELU()), ("golden", nn.ELU())):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), activation)
        with twinprobe.record(model, tmp_path / side, level="L0"), torch.no_grad():
            model(1e-2 * torch.randn(64, WIDTH))
    found = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    assert found.first is None, found.summary
