"""Small trainings as people write them: what is said of a pair, and that nothing is said of a healthy one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe

WIDTH = 32


def compared(
    folder: Path, program: Callable[[Any, bool], None], model: Callable[[], nn.Module], level: str = "mix"
) -> Any:
    """Record a program right and wrong, each from the same seed, and compare: the wrong one is the target."""
    dumps = []
    for wrong in (True, False):
        torch.manual_seed(0)
        with twinprobe.record(made := model(), folder / str(wrong), level=level):
            torch.manual_seed(1)
            program(made, wrong)
        dumps.append(next((folder / str(wrong)).rglob("dump.json")))
    return twinprobe.compare(*dumps)


def said(summary: Any) -> str:
    assert summary.first is not None
    return f"{summary.first.op}: {summary.first.sentence}"


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))


def test_a_loss_that_is_not_divided_is_found_although_clipping_hides_it(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(4):
            (model(torch.randn(8, WIDTH)).square().mean() / (1 if wrong else 4)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    assert "__truediv__" in said(found := compared(tmp_path, train, mlp))
    assert "1 against 4" in said(found)
    assert "loss differs" in found.summary


def test_an_optimiser_that_is_written_by_hand(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(parameter.grad.sign(), alpha=-0.02 if wrong else -0.01)

    assert "add_" in said(found := compared(tmp_path, train, mlp))
    assert "alpha: -0.02 against -0.01" in said(found)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_setting_of_the_optimiser_is_named_whatever_its_calls_make_of_it(tmp_path: Path, level: str) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3 if wrong else 1e-8)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, WIDTH)).square().mean().backward()
            optimizer.step()

    found = compared(tmp_path, train, mlp, level=level)
    assert ("Optimizer." if level == "L0" else "a setting of the optimizer differs: ") in said(found)
    assert "eps: 0.001 against 1e-08" in said(found)
    assert "updated parameters differ" in found.summary
    assert "other divergences" not in found.summary


def test_an_optimiser_that_computes_otherwise_has_no_other_setting(tmp_path: Path) -> None:
    class Steeper(torch.optim.SGD):
        slope = 1.0

        @torch.no_grad()
        def step(self) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad, alpha=-self.slope * group["lr"])

    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = Steeper(model.parameters(), lr=0.01)
        optimizer.slope = 2.0 if wrong else 1.0
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert "alpha: -0.02 against -0.01" in said(found)
    assert "setting" not in said(found)


@pytest.mark.parametrize("taken_off", [True, False])
def test_a_scale_of_the_loss_that_is_taken_off_is_no_fault_where_only_modules_were_recorded(
    tmp_path: Path, taken_off: bool
) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        scale = 4.0 if wrong else 1.0
        (scale * model(torch.randn(8, WIDTH)).square().mean()).backward()
        for parameter in model.parameters() if taken_off else ():
            parameter.grad.div_(scale)
        optimizer.step()

    found = compared(tmp_path, train, mlp, level="L0")
    assert (found.first is None) == taken_off
    assert ("a scale of the loss" in found.summary) == taken_off
    assert taken_off or "4 x golden" in said(found)


@pytest.mark.parametrize("divided", [True, False])
def test_what_an_optimiser_reads_is_compared_where_a_batch_comes_in_parts(tmp_path: Path, divided: bool) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.randn(16, WIDTH)
        for part in batch.chunk(4) if wrong else [batch]:
            loss = model(part).square().mean()
            (loss / 4 if wrong and divided else loss).backward()
        optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert (found.first is None) == divided, found.first
    assert divided or "another gradient: 4 x golden's" in said(found)
    assert ("updated parameters agree" in found.summary) == divided


def test_one_gradient_differs_where_all_else_is_equal(tmp_path: Path) -> None:
    """A temperature that has an optimiser of its own: no module takes it."""

    class Actor(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.log_alpha = mlp(), nn.Parameter(torch.tensor(-1.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x)

    def train(model: Any, wrong: bool) -> None:
        loss = model(torch.randn(8, WIDTH)).square().mean()
        loss.backward()
        torch.optim.Adam(model.layer.parameters(), lr=0.01).step()
        (model.log_alpha * (loss.detach() + (3.0 if wrong else -3.0))).backward()
        torch.optim.Adam([model.log_alpha], lr=0.01).step()

    assert "Optimizer.log_alpha" in said(found := compared(tmp_path, train, Actor, level="L0"))
    assert "updated parameters differ" in found.summary


@pytest.mark.parametrize("zeros", [True, False])
def test_a_gradient_that_is_taken_away_before_the_update(tmp_path: Path, zeros: bool) -> None:
    def train(model: Any, wrong: bool) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()
        for parameter in model[2].parameters():
            parameter.grad = None if wrong else torch.zeros_like(parameter) if zeros else parameter.grad
        torch.optim.SGD(model.parameters(), lr=0.01).step()

    found = compared(tmp_path, train, mlp, level="L0")
    if zeros:  # they change nothing, as no gradient does
        assert found.first is None
    else:
        assert "Optimizer.2.weight" in said(found)
        assert "only the golden run's optimizer changes this parameter and 1 more" in said(found)


def test_a_parameter_that_only_one_run_trains(tmp_path: Path) -> None:
    def train(model: Any, wrong: bool) -> None:
        model[2].weight.requires_grad_(not wrong)
        model(torch.randn(8, WIDTH)).square().mean().backward()

    assert "requires_grad of weight: False against True" in said(compared(tmp_path, train, mlp))


class Attention(nn.Module):
    """Queries, keys and values by one layer, cut into heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.heads, self.mask, self.shift = 4, torch.ones(6, 6, dtype=torch.bool).tril(), 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return self.out(torch.roll(mixed.transpose(1, 2).flatten(-2), (self.shift, self.shift), (1, 2)))


@pytest.mark.parametrize(
    ("name", "value", "call", "sentence"),
    [
        ("heads", 2, "scaled_dot_product_attention", "query: shape [2, 2, 6, 16] against [2, 4, 6, 8]"),
        ("mask", None, "scaled_dot_product_attention", "attn_mask: None against a tensor [6, 6]"),
        ("shift", 2, "roll", "shifts: 2 against 1"),
    ],
)
def test_arguments_of_an_attention(tmp_path: Path, name: str, value: Any, call: str, sentence: str) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        if wrong:
            setattr(model, name, value)
        model(torch.randn(2, 6, WIDTH)).square().mean().backward()

    found = compared(tmp_path, train, Attention)
    assert call in found.first.op
    assert sentence in said(found)


class Experts(nn.Module):
    """Two experts, weighed by a router whose weights add up to one, unless somebody forgets it."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.renormed = nn.Linear(WIDTH, 4), True
        self.gain = nn.Parameter(torch.rand(WIDTH))
        self.plus_one = True
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(2)
        if self.renormed:
            weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for at, expert in enumerate(self.experts):
            token, place = torch.where(chosen == at)
            out.index_add_(0, token, expert(x[token]) * weights[token, place, None])
        return out * ((1.0 + self.gain) if self.plus_one else self.gain)


@pytest.mark.parametrize(("flag", "call"), [("renormed", "__truediv__"), ("plus_one", "add__")])
def test_a_call_that_is_missing_is_named(tmp_path: Path, flag: str, call: str) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        setattr(model, flag, not wrong)
        model(torch.randn(24, WIDTH)).square().mean().backward()

    found = compared(tmp_path, train, Experts)
    assert call in found.first.op
    assert "only the golden run makes this call" in said(found)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 4, 1))
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.body(x).mean((2, 3))))


def test_sums_in_another_order_are_noise(tmp_path: Path) -> None:
    """Kernels for channels_last sum an image in one go. A bias before a norm has no gradient, and Adam moves it."""

    def train(model: nn.Module, wrong: bool) -> None:
        layout = torch.channels_last if wrong else torch.contiguous_format
        model.to(memory_format=layout)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(2):
            optimizer.zero_grad()
            x = torch.randn(4, 3, 32, 32).contiguous(memory_format=layout)
            functional.cross_entropy(model(x), torch.tensor([0, 1, 0, 1])).backward()
            optimizer.step()

    assert compared(tmp_path, train, Convolutions).first is None


def test_other_calls_before_the_loss_are_named_where_updates_hide_them(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        states, rewards = torch.randn(16, WIDTH), torch.randn(16)
        for _ in range(2):
            with torch.no_grad():
                ahead = model(states.roll(1, 0))
                best = (
                    ahead.max(1).values if wrong else ahead.gather(1, model(states).argmax(1, keepdim=True)).squeeze(1)
                )
                meant = rewards + 0.9 * best * (rewards > 0)
            functional.smooth_l1_loss(model(states)[:, 0], meant).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert said(compared(tmp_path, train, mlp)).startswith("Tensor.max.0.forward: output.0: only the target run makes")


def test_state_that_the_model_writes_by_itself_is_a_result(tmp_path: Path) -> None:
    class Codebook(nn.Module):
        """Keeps a running mean of what it sees, as a VQ-VAE does."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("mean", torch.ones(WIDTH))
            self.decay = 0.99

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.layer(x)
            with torch.no_grad():
                self.mean.mul_(self.decay).add_(x.mean(0), alpha=1 - self.decay)
            return x

    def train(model: nn.Module, wrong: bool) -> None:
        model.decay = 0.9 if wrong else 0.99
        model(torch.randn(8, WIDTH)).square().mean().backward()

    assert "0.9 against 0.99" in said(compared(tmp_path, train, Codebook))


def test_signs_that_flip_within_rounding_are_no_step(tmp_path: Path) -> None:
    class Binary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
                x = functional.batch_norm(x, None, None, training=True)
                x = x + (torch.sign(x) - x).detach()
            return x

    def train(model: nn.Module, autocast: bool) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(torch.randn(64, WIDTH)).float().square().mean().backward()

    assert compared(tmp_path, train, Binary).first is None


@pytest.mark.parametrize("wrong_scale", [1.0, 1.6])
def test_signs_inside_a_module_flip_too_where_only_modules_were_recorded(tmp_path: Path, wrong_scale: float) -> None:
    class Signed(nn.Module):
        """Multiplies signs; gradients go straight through."""

        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(64, 64) * 0.1), 0.1

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.scale * (self.weight + (torch.sign(self.weight) - self.weight).detach())
            return functional.linear(x + (torch.sign(x) - x).detach(), weight)

    def model() -> nn.Module:
        made: list[nn.Module] = [nn.Linear(WIDTH, 64)]
        for _ in range(2):
            made += [nn.BatchNorm1d(64), Signed()]
        return nn.Sequential(*made, nn.BatchNorm1d(64), nn.Linear(64, 5))

    def train(model: nn.Module, wrong: bool) -> None:
        model[2].scale *= wrong_scale if wrong else 1.0
        with torch.autocast("cpu", torch.bfloat16, enabled=wrong):
            labels = torch.arange(24) % 5
            functional.cross_entropy(model(torch.randn(24, WIDTH)).float(), labels).backward()

    found = compared(tmp_path, train, model, level="L0").first
    assert found is None if wrong_scale == 1.0 else found is not None and found.module == "2"


class Tagger(nn.Module):
    """Reads a sentence; the loss reads its last word alone, through few digits."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rnn = nn.Embedding(50, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, 5)
        self.to(torch.bfloat16)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        out, _ = self.rnn(self.emb(ids))
        return out, self.head(out[:, -1] if mask is None else (out * mask).sum(1))


def test_another_token_is_the_cause_although_the_loss_hardly_shows_it(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        ids, labels = torch.randint(1, 50, (4, 12)), torch.randint(5, (4,))
        ids[0, 2] = 7 if wrong else 3
        functional.cross_entropy(model(ids)[1].float(), labels).backward()

    assert "Functional.embedding.0" in said(compared(tmp_path, train, Tagger))


def test_another_token_that_no_loss_reads_is_no_fault(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        ids, labels = torch.randint(1, 50, (4, 12)), torch.randint(5, (4,))
        ids[:, 8:] = 7 if wrong else 3
        mask = torch.ones(4, 12, 1, dtype=torch.bfloat16)
        mask[:, 8:] = 0
        functional.cross_entropy(model(ids, mask)[1].float(), labels).backward()

    found = compared(tmp_path, train, Tagger)
    assert found.agrees, found.first


def test_a_parameter_is_named_where_it_is_used_not_where_it_is_updated(tmp_path: Path) -> None:
    factors = iter((1.012, 1.0))

    class Routed(nn.Module):
        """A gate whose weight hardly moves what comes out in 16 bits."""

        def __init__(self) -> None:
            super().__init__()
            self.gate, self.body = nn.Linear(WIDTH, 4, bias=False), nn.Linear(WIDTH, WIDTH)
            self.gate.weight.data *= next(factors)
            self.to(torch.bfloat16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x) * (1 + self.gate(x).softmax(-1).amax(-1, keepdim=True) / 100)

    def train(model: nn.Module, _wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        model(torch.randn(8, WIDTH).bfloat16()).float().square().mean().backward()
        optimizer.step()

    first = compared(tmp_path, train, Routed).first
    assert first is not None
    assert (first.module, first.begins) == ("gate", "parameter")


class Row(nn.Linear):
    """A linear layer by another name."""


class RowParallelLinear(nn.Linear):
    """The same."""


@pytest.mark.parametrize(
    ("classes", "kind"), [((Row, RowParallelLinear), "factor"), ((nn.GELU, nn.SiLU), "function")]
)  # fmt: skip
def test_the_name_of_a_class_is_no_cause_but_an_activation_is(
    tmp_path: Path, classes: tuple[type[nn.Module], ...], kind: str
) -> None:
    made = iter(classes)

    def model() -> nn.Module:
        cls = next(made)
        layer = cls(WIDTH, WIDTH) if issubclass(cls, nn.Linear) else cls()
        if cls is Row:
            layer.register_forward_hook(lambda _module, _inputs, output: output.mul(1.0001))
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), layer, nn.Linear(WIDTH, WIDTH))

    def train(model: nn.Module, _wrong: bool) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()

    first = compared(tmp_path, train, model, level="L0").first
    assert first is not None
    assert first.kinds[0]["name"] == kind
    assert ("1.0001 x golden" in first.sentence) == (kind == "factor")


def test_a_value_that_one_run_has_detached_explains_its_gradients(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        hidden = model[0](torch.randn(8, WIDTH))
        snapped = hidden.detach().round()
        model[2](snapped if wrong else hidden + (snapped - hidden).detach()).square().mean().backward()

    found = compared(tmp_path, train, mlp)
    assert "linear" in said(found)
    assert "gradients flow back in one run only: requires_grad of input: False against True" in said(found)


class Decoder(nn.Module):
    """Names the next token by the mean of all tokens so far."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.head(self.norm(self.words(tokens).mean(1)))
        return scores


def decode(model: Any, banned: int | None = None) -> None:
    tokens = torch.arange(6).reshape(2, 3)
    with torch.no_grad():
        for _ in range(4):
            scores = model(tokens)
            if banned is not None:
                scores = scores.masked_fill(torch.arange(50) == banned, -torch.inf)
            tokens = torch.cat([tokens, scores.argmax(-1, keepdim=True)], 1)
    tokens.float().mean()  # people print such numbers: this is no loss


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_every_decoding_step_gives_a_result(tmp_path: Path, level: str) -> None:
    def run(model: Any, wrong: bool) -> None:
        model.norm.eps = 1e-3 if wrong else 1e-5
        decode(model)

    found = compared(tmp_path, run, Decoder, level)
    assert "loss" not in found.summary
    assert found.first.op.endswith(("norm.LayerNorm.forward.0", "Functional.layer_norm.0.forward"))
    assert not any("without effect" in note for note in found.notes)


def test_a_token_that_was_banned_has_not_flipped_within_rounding(tmp_path: Path) -> None:
    def run(model: Any, wrong: bool) -> None:
        with torch.no_grad():
            best = int(model(torch.arange(6).reshape(2, 3)).argmax(-1)[0])
        decode(model, best if wrong else None)

    found = compared(tmp_path, run, Decoder)
    assert said(found).startswith("Tensor.masked_fill.0.forward: output.0: only the target run makes this call")
    assert not any("within rounding" in note for note in found.notes)


def test_a_dropout_that_drops_nothing_has_no_other_state(tmp_path: Path) -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dropped: torch.Tensor = self.drop(self.layer(x))
            return dropped

    def run(model: Any, wrong: bool) -> None:
        model.drop.p = 0.1 if wrong else 0.0
        model(torch.randn(8, WIDTH)).square().mean().backward()

    text = said(compared(tmp_path, run, Dropping, "L0"))
    assert "only one run drops elements" in text
    assert "state" not in text


@pytest.mark.parametrize("scaled", [False, True])
def test_a_gradient_that_was_not_cleared_is_named(tmp_path: Path, scaled: bool) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        for _ in range(2):
            if scaled or not wrong:
                optimizer.zero_grad()
            model(torch.randn(8, WIDTH)).square().mean().backward()
            for parameter in model.parameters() if scaled and wrong else ():
                parameter.grad = torch.from_numpy(3 * parameter.grad.numpy())
            optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert found.first is not None
    assert ("still holds the gradient of an earlier pass, Module.0.Linear.parameters_grad.0" in said(found)) != scaled
    assert ("zero_grad" in said(found)) != scaled


def test_scores_that_are_masked_out_make_no_flip_within_rounding(tmp_path: Path) -> None:
    """A generation, in which no scalar is a loss and a choice of tokens is what the next step reads."""

    def generate(model: nn.Module, wrong: bool) -> None:
        with torch.no_grad():
            ids = torch.randint(50, (4,)) * int(torch.ones(()) * 1.0)
            for _ in range(3):
                scores = functional.log_softmax(model(ids), -1)
                if wrong:
                    scores = scores.masked_fill(scores > scores.mean(), -torch.inf)
                ids = torch.topk(scores, 1).indices.tolist()
                ids = torch.tensor(ids).flatten()

    found = compared(tmp_path, generate, lambda: nn.Sequential(nn.Embedding(50, WIDTH), nn.Linear(WIDTH, 50)))
    assert "masked_fill.0" in said(found)
    assert "within rounding" not in found.summary
    assert "loss" not in found.summary


class Reader(nn.Module):
    """Hides tokens under a mask, in code of its own that nobody records."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.keeps = nn.Linear(WIDTH, WIDTH), False

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        if mask is not None and not self.keeps:
            x = torch.from_numpy(x.numpy() * mask.numpy())
        return self.inner(x)


@pytest.mark.parametrize("given", [True, False])
def test_an_argument_that_a_module_lacks_is_the_cause_of_what_its_own_code_does(tmp_path: Path, given: bool) -> None:
    def read(model: nn.Module, wrong: bool) -> None:
        model[0].keeps = wrong and given
        mask = (torch.arange(8) < 5).float()[:, None]
        with torch.no_grad():
            model[1](model[0](torch.randn(8, WIDTH), mask=None if wrong and not given else mask)).square().mean()

    found = said(compared(tmp_path, read, lambda: nn.ModuleList([Reader(), nn.Linear(WIDTH, WIDTH)])))
    assert found.startswith("Module.0.Reader.forward.0: ")
    assert ("mask: None against a tensor [8, 1]" in found) != given


def test_a_module_that_was_renamed_and_gives_the_same_is_no_cause(tmp_path: Path) -> None:
    class Scaled(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids) * 4.0

    class Angles(nn.Module):
        """Takes of its input no more than the type."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.arange(WIDTH).to(x.dtype).cos()

    class Model(nn.Module):
        def __init__(self, table: type[nn.Embedding]) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.table, self.angles, self.head = table(50, WIDTH), Angles(), nn.Linear(WIDTH, 5)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.table(ids)
            angles = self.angles(x)
            y = self.head((x if isinstance(self.table, Scaled) else x * 4.0) * angles)
            return torch.tanh(y) if isinstance(self.table, Scaled) else y

    dumps = []
    for table in (Scaled, nn.Embedding):
        with twinprobe.record(model := Model(table), tmp_path / table.__name__, level="mix"):
            functional.cross_entropy(model(torch.arange(12)), torch.arange(12) % 5).backward()
        dumps.append(next((tmp_path / table.__name__).rglob("dump.json")))
    assert said(twinprobe.compare(*dumps)).startswith("Torch.tanh.0.forward: output.0: only the target run makes")


@pytest.mark.parametrize("white", [False, True])
def test_a_reader_of_one_run_explains_another_gradient(tmp_path: Path, white: bool) -> None:
    """Weights of which the sum is 1: adding what is missing to 1 changes no value, and the gradient."""

    def train(model: nn.Module, wrong: bool) -> None:
        shares = model(torch.randn(8, WIDTH))
        weights = shares + ((1 - shares.sum(-1, keepdim=True)) / WIDTH).detach()
        colour = (weights * torch.linspace(0, 1, WIDTH)).sum(-1)
        if white or not wrong:
            colour = colour + (1 - weights.sum(-1))
        colour.square().mean().backward()

    found = compared(tmp_path, train, mlp)
    if white:
        assert found.first is None
    else:
        assert "only golden calls" in said(found)
        assert said(found).startswith("Tensor.sum.")


def test_a_parameter_that_is_zero_in_golden_is_no_noise(tmp_path: Path) -> None:
    """It acts on nothing but its own update."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.zeros(8, WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 0.0 * functional.interpolate(self.table.T[None], size=8)[0].T

    def train(model: nn.Module, wrong: bool) -> None:
        model[1].table.data.numpy()[:] = [[wrong * (row + 1.0)] * WIDTH for row in range(8)]
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        model(torch.randn(8, WIDTH)).square().mean().backward()
        optimizer.step()

    found = compared(tmp_path, train, lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), Positions()))
    assert found.first is not None
    assert "parameter" in found.first.sentence


def test_a_batch_in_parts_under_autocast_is_as_far_off_as_its_products_round(tmp_path: Path) -> None:
    def train(model: nn.Module, wrong: bool) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        batch = torch.randn(16, WIDTH)
        for part in batch.chunk(4) if wrong else [batch]:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(part).float().square().mean()
            (loss / 4 if wrong else loss).backward()
        optimizer.step()

    found = compared(tmp_path, train, mlp)
    assert found.first is None, found.first
    assert "updated parameters agree" in found.summary


def test_parameters_drift_by_whole_steps_where_16_bits_flip_the_signs_of_gradients(tmp_path: Path) -> None:
    """RMSprop moves each element by ten times its learning rate in its first step, whatever its gradient's size."""
    for coarse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(6)))
        optimizer = torch.optim.RMSprop(model.parameters(), lr=4e-3)
        with twinprobe.record(model, tmp_path / str(coarse), level="mix", step=[0, 1]) as recording:
            for seed in range(2):
                torch.manual_seed(seed)
                with torch.autocast("cpu", torch.bfloat16, enabled=coarse):
                    loss = (model(torch.randn(64, WIDTH)).float() + 3).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recording.step()
    dumps = [next((tmp_path / str(coarse) / "step1").rglob("dump.json")) for coarse in (True, False)]
    found = twinprobe.compare(*dumps)
    moved = found.table.filter(found.table["target"].str.ends_with("parameters.weight"))["relative_error"]
    assert moved.max() > 0.02  # more than any rounding by itself
    assert found.first is None, found.first


def test_other_beams_are_a_difference_of_shapes(tmp_path: Path) -> None:
    def run(model: Any, wrong: bool) -> None:
        with torch.no_grad():
            for _ in range(2):
                model(torch.arange(12 if wrong else 8).reshape(-1, 2))

    assert "shape" in said(compared(tmp_path, run, Decoder, "L0"))


def test_a_warm_up_is_one_pass_more_and_no_other_cut_of_the_tokens(tmp_path: Path) -> None:
    """The same tokens come again after an update: these are no pair."""
    for warm in (True, False):
        torch.manual_seed(0)
        model = Decoder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        batches = torch.arange(18).reshape(3, 2, 3)
        with twinprobe.record(model, tmp_path / str(warm), level="mix", task="tensor"):
            if warm:
                model(batches[0])
            for batch in batches[[0, 1, 0]]:
                functional.cross_entropy(model(batch), batch[:, 0]).backward()
                optimizer.step()
                optimizer.zero_grad()
    found = twinprobe.compare(*(next((tmp_path / str(warm)).rglob("dump.json")) for warm in (True, False)))
    assert found.first is None, found.first
    assert not any("aligned by ids" in note for note in found.notes)
