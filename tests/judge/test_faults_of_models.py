"""Models that compute something else, in training and in decoding: the call that differs is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
from recorded_programs import WIDTH, compared, said


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
