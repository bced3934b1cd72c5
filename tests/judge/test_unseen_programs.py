"""Programs that a tester wrote without knowing the rules: what was said falsely of them, or not at all."""

from __future__ import annotations

from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
from recorded_programs import WIDTH, compared, said
from support import needs


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))


def test_gradients_that_are_all_off_are_no_noise(tmp_path: Path) -> None:
    """A gradient penalty trains nothing unless the first pass keeps its graph; the loss is the same."""

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        x = torch.randn(8, WIDTH, requires_grad=True)
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=not changed)
        penalty = (slope.norm(2, dim=1) - 1).pow(2).mean()
        (model(torch.randn(8, WIDTH)).square().mean() + 10 * penalty).backward()

    found = compared(tmp_path, train, mlp)
    assert not found.agrees
    assert said(found).startswith("Tensor.norm.0.forward: input.0: gradients flow back in one run only")


@pytest.mark.parametrize("optimizer", [torch.optim.RMSprop, torch.optim.Adam])
def test_an_update_may_divide_noise_by_noise(tmp_path: Path, optimizer: Any) -> None:
    """A bias before a normalisation has no gradient but rounding; RMSprop divides it by its own size."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm, self.last = nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, WIDTH)

        def forward(self, x: torch.Tensor, split: bool) -> torch.Tensor:
            weight, half = self.first.weight, WIDTH // 2
            if split:
                x = x[:, :half] @ weight[:, :half].T + x[:, half:] @ weight[:, half:].T + self.first.bias
            else:
                x = self.first(x)
            return self.last(torch.relu(self.norm(x)))

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        more = {"momentum": 0.9} if optimizer is torch.optim.RMSprop else {}
        update = optimizer(model.parameters(), lr=1e-3, **more)
        model(torch.randn(64, WIDTH), changed).square().mean().backward()
        update.step()

    found = compared(tmp_path, train, Normed)
    assert found.agrees, found.summary


def test_a_bias_that_is_zero_in_golden_is_blamed_where_it_is_used(tmp_path: Path) -> None:
    def train(model: Any, changed: bool, _: Any) -> None:
        model[0].bias.data = torch.from_numpy(np.full(WIDTH, 0.2 if changed else 0.0, np.float32))
        model(torch.randn(8, WIDTH)).square().mean().backward()
        torch.optim.AdamW(model.parameters()).step()

    found = compared(tmp_path, train, mlp)
    assert said(found).startswith("Functional.linear.0.forward: input.2: the parameter differs: norm 1.131 against 0")


def test_parameters_that_functions_take_are_recognised(tmp_path: Path) -> None:
    def train(model: Any, changed: bool, _: Any) -> None:
        if changed:
            model[0].weight, model[2].weight = model[2].weight, model[0].weight
        model(torch.randn(8, WIDTH)).square().mean().backward()

    assert "the parameter is golden's Module.2.Linear.forward.0.parameters.weight" in said(
        compared(tmp_path, train, mlp)
    )


class Signs(torch.optim.Optimizer):
    """An optimizer by hand, with operators."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                parameter.add_((mean * 0.9 + parameter.grad * 0.1).sign_(), alpha=-group["lr"])
                mean.mul_(0.99).add_(parameter.grad, alpha=0.01)


def test_a_gradient_that_a_later_step_did_not_clear(tmp_path: Path) -> None:
    """What operators read is no state that they write to."""

    def train(model: nn.Module, changed: bool, recording: Any) -> None:
        update = Signs(model.parameters())
        for _ in range(2):
            if not changed:
                update.zero_grad()
            model(torch.randn(8, WIDTH)).square().mean().backward()
            update.step()
            recording.step()

    found = compared(tmp_path, train, mlp, step=1)
    assert "zero_grad" in said(found)
    assert found.first.module == "optimizer"


def test_values_in_another_order_are_named_inside_of_a_module_too(tmp_path: Path) -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(2 * WIDTH, WIDTH), nn.ReLU())

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            parts = [x.cos(), x.sin()] if changed else [x.sin(), x.cos()]
            return self.inner(torch.cat(parts, -1))

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(8, WIDTH), changed).square().mean().backward()

    found = compared(tmp_path, train, Joined)
    assert "input.0: it comes from no recorded call and holds golden's values in another order" in said(found)
    assert found.first.times_noise > 1


def test_an_argument_that_only_golden_gives_is_named(tmp_path: Path) -> None:
    def train(model: nn.Module, changed: bool, _: Any) -> None:
        y = model(torch.randn(8, WIDTH))
        (y.norm() if changed else y.norm(2, dim=1)).mean().backward()

    assert "input.dim: not given against 1" in said(compared(tmp_path, train, mlp))


def test_a_part_that_gives_its_values_in_another_order_harms_nothing(tmp_path: Path) -> None:
    """Sequences that are sorted before they are packed, and put back in order after."""

    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.run, self.last = nn.GRU(WIDTH, WIDTH, batch_first=True), nn.Linear(WIDTH, 4)

        def forward(self, x: torch.Tensor, lengths: torch.Tensor, presorted: bool) -> torch.Tensor:
            pack = nn.utils.rnn.pack_padded_sequence
            if presorted:
                order = lengths.argsort(descending=True)
                state = self.run(pack(x[order], lengths[order], batch_first=True))[1][:, order.argsort()]
            else:
                state = self.run(pack(x, lengths, batch_first=True, enforce_sorted=False))[1]
            return self.last(state[0])

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(3, 7, WIDTH), torch.tensor([4, 7, 5]), changed).square().mean().backward()

    assert "✔ outputs agree" in compared(tmp_path, train, Packed).summary


def test_a_trained_parameter_that_is_far_off_is_a_difference_though_results_hide_it(tmp_path: Path) -> None:
    """Modules alone show no update, and the queries of an attention that looks at everything alike change nothing."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x), scale=0.0)

    def train(model: Any, changed: bool, _: Any) -> None:
        with torch.no_grad():
            model.query.weight.mul_(1.3 if changed else 1.0)
        model(torch.randn(2, 6, WIDTH)).square().mean().backward()
        torch.optim.AdamW(model.parameters()).step()

    assert said(compared(tmp_path, train, Attention, level="L0")).startswith("Module.query.Linear.forward.0: parameter")


def test_a_setting_that_changes_nothing_yet_is_named(tmp_path: Path) -> None:
    def train(model: nn.Module, changed: bool, recording: Any) -> None:
        update = torch.optim.Adam(model.parameters(), lr=3e-3, amsgrad=changed)
        for size in (1.0, 0.9):
            update.zero_grad()
            (size * model(torch.ones(8, WIDTH)).square().mean()).backward()
            update.step()
            recording.step()

    found = compared(tmp_path, train, mlp, step=1)
    assert "amsgrad: True against False" in said(found)


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_a_learning_rate_that_is_computed_otherwise_is_the_same(tmp_path: Path, level: str) -> None:
    def train(model: Any, changed: bool, _: Any) -> None:
        rate = 1e-3 * 0.5 * (1 + cos(pi * 3 / 10)) if changed else 1e-3 * cos(pi * 3 / 20) ** 2
        update = torch.optim.AdamW(model.parameters(), lr=rate)
        x = torch.randn(64, WIDTH)
        y = torch.tanh(x[:, :16] @ model[0].weight[:, :16].T + x[:, 16:] @ model[0].weight[:, 16:].T + model[0].bias)
        (model[2](y) if changed else model(x)).square().mean().backward()
        update.step()

    assert 1e-3 * 0.5 * (1 + cos(pi * 3 / 10)) != 1e-3 * cos(pi * 3 / 20) ** 2
    found = compared(tmp_path, train, mlp, level=level)
    assert found.agrees, found.summary


def test_a_reader_that_one_run_has_detached_is_missing_on_the_way_back(tmp_path: Path) -> None:
    """What joins two values is not recorded: it needs gradients in both runs."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.inner, self.up = nn.Conv1d(2, 4, 3), nn.Conv1d(4, 4, 3), nn.Conv1d(8, 2, 3)

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            x = torch.relu(self.down(x))
            y = functional.interpolate(self.inner(functional.max_pool1d(x, 2)), x.shape[-1])
            return self.up(torch.cat([y, x.detach() if changed else x], 1))

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(4, 2, 18), changed).square().mean().backward()

    text = said(compared(tmp_path, train, Skip))
    assert "only what golden has in Functional.max_pool1d.0.backward.output.0" in text


def test_a_loss_that_is_off_by_a_constant_is_not_called_without_effect(tmp_path: Path) -> None:
    def train(model: nn.Module, changed: bool, _: Any) -> None:
        y = model(torch.randn(9, WIDTH))
        functional.triplet_margin_loss(*y.chunk(3), margin=90.0 if changed else 80.0).backward()

    found = compared(tmp_path, train, mlp)
    assert "effect on the loss alone, not on gradients (margin: 90 against 80)" in found.summary


def test_a_module_that_stands_in_for_another_is_named(tmp_path: Path) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(3))

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            rows, out = torch.arange(4), torch.zeros(12, WIDTH)
            for at in range(3):
                expert = self.experts[2 if changed and at == 1 else at]
                out = out.index_add(0, rows + 4 * at, expert(x[4 * at : 4 * at + 4]))
            return out

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = Experts()

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            return self.mix(x, changed)

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(12, WIDTH), changed).square().mean().backward()

    found = compared(tmp_path, train, Model)
    assert found.first.op == "Module.mix.experts.2.Sequential.forward.0"
    assert "mix.experts.2 is called where golden calls mix.experts.1" in said(found)


def test_a_bias_that_only_golden_gives_to_a_function_is_named(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            bias = () if changed else (self.inner.bias,)
            return functional.softplus(functional.linear(x, self.inner.weight, *bias))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.last = Own(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            return self.last(self.own(x, changed))

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(8, WIDTH), changed).square().mean().backward()

    text = said(compared(tmp_path, train, Model))
    assert "an argument differs" in text
    assert f"input.2: not given against a tensor [{WIDTH}]" in text


def test_a_factor_that_is_missing_is_not_called_another_place(tmp_path: Path) -> None:
    """The calls after it are compared as one: what happens inside of them has not moved."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            query, key, value = self.query(x), self.key(x), self.value(x)
            if not changed:
                key = key * WIDTH**-0.5
            return (query @ key.mT * torch.full((6, 6), 0.9).tril().contiguous()) @ value

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Attention() for _ in range(3))

        def forward(self, x: torch.Tensor, changed: bool) -> torch.Tensor:
            for at, layer in enumerate(self.layers):
                x = x + layer(x, changed and at == 1)
            return x

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(2, 6, WIDTH), changed).square().mean().backward()

    found = compared(tmp_path, train, Model)
    assert found.first.kinds[0]["name"] == "missing"
    assert found.first.module == "layers.1"


class Residual(nn.Module):
    """Convolutions whose biases a batch norm takes off again."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 12, 3, padding=1), nn.Linear(12, 7)
        self.convolutions = nn.ModuleList(nn.Conv2d(12, 12, 3, padding=1) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(12) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.stem(x))
        for at in range(0, 6, 2):
            y = functional.relu(self.norms[at](self.convolutions[at](x)))
            x = functional.relu(x + self.norms[at + 1](self.convolutions[at + 1](y)))
        return self.head(x.mean((2, 3)))


@pytest.mark.parametrize(("level", "step"), [("mix", 0), ("mix", 1), ("L0", 0), ("L0", 1)])
@pytest.mark.parametrize("way", ["channels_last", "autocast"])
def test_biases_before_a_batch_norm_are_moved_by_noise(tmp_path: Path, level: str, step: int, way: str) -> None:
    """Their gradient is zero in theory; the errors that a norm leaves in a whole channel are alike and add up."""

    def train(model: nn.Module, changed: bool, recording: Any) -> None:
        x = torch.randn(6, 3, 16, 16)
        if changed and way == "channels_last":
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        update = torch.optim.NAdam(model.parameters(), lr=1e-3)
        for _ in range(2):
            update.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=changed and way == "autocast"):
                y = model(x)
            functional.cross_entropy(y.float(), torch.arange(6)).backward()
            update.step()
            recording.step()

    found = compared(tmp_path, train, Residual, level=level, step=step)
    assert found.agrees, found.summary


class OwnCode(nn.Module):
    """A model whose own code computes between its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.approximate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.gelu(self.first(x), approximate=self.approximate))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_the_models_own_code_is_named_where_its_calls_are_not_recorded(tmp_path: Path, level: str) -> None:
    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model.approximate = "tanh" if changed else "none"
        model(torch.randn(8, WIDTH)).square().mean().backward()

    sentence = said(compared(tmp_path, train, OwnCode, level))
    if level == "L0":
        assert sentence.startswith(
            "Module.last.Linear.forward.0: input.0: it comes from the caller, or from the model's"
        )
        assert "code after Module.first.Linear.forward.0, which level mix records" in sentence
    else:
        assert sentence.startswith("Functional.gelu.0.forward")


class Projection(nn.Module):
    """A linear map, by a module of its own or by a function, and tanh."""

    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.proj = nn.Linear(WIDTH, WIDTH)
        if not inside:
            self.weight, self.bias = self.proj.weight, self.proj.bias
            del self.proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.proj(x) if hasattr(self, "proj") else functional.linear(x, self.weight, self.bias)
        return y.tanh()


class Activated(nn.Module):
    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.projection, self.last, self.approximate = Projection(inside), nn.Linear(WIDTH, WIDTH), "none"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(functional.gelu(self.projection(x), approximate=self.approximate))


def test_a_module_inside_one_that_both_runs_call_is_not_blamed(tmp_path: Path) -> None:
    """What the projection gives is equal, whatever it is made of: the code behind it differs."""
    dumps = []
    for changed in (True, False):
        torch.manual_seed(0)
        block = Activated(inside=changed)
        block.approximate = "tanh" if changed else "none"
        with twinprobe.record(nn.Sequential(block), tmp_path / str(changed), level="L0"):
            block(torch.randn(8, WIDTH)).square().mean().backward()
        dumps.append(next((tmp_path / str(changed)).rglob("dump.json")))
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.op == "Module.0.Activated.forward.0"
    assert "this module's own code" in first.sentence


class Scores(nn.Module):
    """Attention as older libraries write it: baddbmm(beta=0) reads nothing of the memory that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.alpha, self.left_over = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), 0.2, 1e24

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = torch.full((x.shape[0], x.shape[1], x.shape[1]), self.left_over)
        scores = torch.baddbmm(memory, self.q(x), self.k(x).transpose(1, 2), beta=0, alpha=self.alpha)
        return scores.softmax(-1) @ x


@pytest.mark.parametrize("alpha", [0.2, 0.3])
def test_memory_that_a_sum_multiplies_by_zero_is_not_read(tmp_path: Path, alpha: float) -> None:
    def train(model: nn.Module, changed: bool, _: Any) -> None:
        if changed:
            model[0].alpha, model[0].left_over = alpha, float("nan")  # type: ignore[index]
        model(torch.randn(4, 6, WIDTH)).square().mean().backward()

    found = compared(tmp_path, train, lambda: nn.Sequential(Scores()))
    if alpha == 0.2:
        assert found.agrees
        assert "✖ 0 error" in found.summary
    else:
        assert said(found).startswith(
            "Torch.baddbmm.0.forward: output.0: the output differs because an argument differs: a"
        )


def test_results_that_were_exchanged_or_joined_the_other_way_round_are_named(tmp_path: Path) -> None:
    class Modulation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.make, self.turned, self.exchanged = nn.Linear(WIDTH, 2 * WIDTH), False, False

        def forward(self, x: torch.Tensor) -> Any:
            shift, gate = self.make(x).chunk(2, -1)
            if self.turned:
                shift = shift.flip(0)
            return (gate, shift) if self.exchanged else (shift, gate)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.modulation, self.last = Modulation(), nn.Linear(WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shift, gate = self.modulation(x)
            return gate * self.last(x + shift)

    def train(name: str) -> Any:
        def run(model: Any, changed: bool, _: Any) -> None:
            setattr(model.modulation, name, changed)
            model(torch.randn(2, WIDTH)).square().mean().backward()

        return compared(tmp_path / name, run, Net, level="L0")

    assert "it holds what golden has in Module.modulation.Modulation.forward.0.output.1" in said(train("exchanged"))
    assert "golden's values in another order" in said(train("turned"))


@needs("torch", "2.4", "there are fused optimizers on the host")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda weights: torch.optim.AdamW(weights, lr=1e-2), ""),  # a loop
        (
            lambda weights: torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.3, fused=True),
            "weight_decay: 0.3 against",
        ),
        (lambda weights: torch.optim.Adamax(weights, lr=1e-2, weight_decay=0.01), "Adamax against AdamW"),
    ],
)
def test_what_one_call_for_all_parameters_has_written_is_compared(tmp_path: Path, make: Any, words: str) -> None:
    """A fused optimizer returns nothing; beside it, only step counts are written to, which prove nothing."""

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        model(torch.randn(8, WIDTH)).square().mean().backward()
        weights = list(model.parameters())
        (make(weights) if changed else torch.optim.AdamW(weights, lr=1e-2, fused=True)).step()

    found = compared(tmp_path, train, mlp)
    assert f"{'✖' if words else '✔'} updated parameters" in found.summary
    assert words in said(found) if words else found.first is None


@pytest.mark.parametrize("setting", [{"repetition_penalty": 1.05}, {"temperature": 0.7, "do_sample": True}])
def test_scores_that_lead_to_the_same_tokens_are_named(tmp_path: Path, setting: dict[str, Any]) -> None:
    """The token is the same by chance; infinities among the scores hide nothing of the others."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 31, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tokens = []

    def generate(model: Any, changed: bool, _: Any) -> None:
        drawn = {"do_sample": setting.get("do_sample", False), "top_k": 0}
        given = {"max_new_tokens": 2, "min_new_tokens": 2, "pad_token_id": 0, **drawn, **(setting if changed else {})}
        torch.manual_seed(2)
        tokens.append(model.eval().generate(torch.tensor([[3, 5, 7]]), **given).tolist())

    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    found = compared(tmp_path, generate, lambda: transformers.GPT2LMHeadModel(config))
    assert tokens[0] == tokens[1]
    assert "only the target run makes this call" in said(found)


class Wired(nn.Module):
    """Two blocks, each given one of two encodings."""

    def __init__(self, second: int) -> None:
        super().__init__()
        self.near, self.far = nn.Linear(8, 16), nn.Linear(8, 16)
        self.blocks = nn.ModuleList(Gated() for _ in range(2))
        self.second = second

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        encodings = self.near(x), self.far(x)
        y = self.blocks[0](x.repeat(1, 2), encodings[0])
        return self.blocks[1](y, encodings[self.second])


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, encoding: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x * encoding).tanh()


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_result_that_goes_to_the_wrong_call_is_named(level: str, tmp_path: Path) -> None:
    for side, second in (("t", 0), ("g", 1)):
        torch.manual_seed(0)
        model = Wired(second)
        with twinprobe.record(model, tmp_path / side, level=level):
            model(torch.randn(4, 8)).square().mean().backward()
    first = twinprobe.compare(tmp_path / "t", tmp_path / "g").first
    assert first is not None
    assert first.module.startswith("blocks.1")
    assert "it holds what golden has in Module.near.Linear.forward.0.output.0" in first.sentence


def test_a_gradient_that_code_behind_a_module_made_is_not_its_own(tmp_path: Path) -> None:
    """At L0 nobody sees what reads a result: a second head's is not the first that comes back."""

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.mean, self.scale = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.mean(self.body(x)), self.scale(self.body(x))

    def train(model: nn.Module, changed: bool, _: Any) -> None:
        mean, scale = model(torch.randn(8, WIDTH))
        (mean.square().mean() * (0.5 if changed else 1.0) + scale.square().mean()).backward()

    found = compared(tmp_path, train, Heads, level="L0")
    assert found.first.module == "mean"
    assert "own code:" not in said(found)
    assert "what is computed with this result is not recorded and differs: the loss" in said(found)
