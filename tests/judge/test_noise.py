"""Noise and claims: what is normal is left alone in every dtype; what is wrong is found, also below that noise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import twinprobe
from support import has, needs
from twinprobe._cli import main

WIDTH, HEADS, TOKENS = 64, 4, 32


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.scale, self.written_out = (WIDTH // HEADS) ** -0.5, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        if self.written_out:
            y = torch.softmax(q @ k.transpose(-1, -2) * self.scale, -1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v, scale=self.scale)
        return self.out(y.transpose(1, 2).flatten(-2))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x))


def record(
    folder: Path,
    model: Model,
    dtype: torch.dtype = torch.float32,
    update: Callable[[torch.Tensor], None] | None = None,
    **options: Any,
) -> Path:
    torch.manual_seed(2)
    x, labels = torch.randn(2, TOKENS, WIDTH).to(dtype), torch.randint(10, (2 * TOKENS,))
    model = model.to(dtype)
    with twinprobe.record(model, folder, level="mix", **options):
        loss = functional.cross_entropy(model(x).flatten(0, 1).float(), labels)
        loss.backward() if update is None else update(loss)
    return next(folder.rglob("dump.json"))


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def test_attention_written_out_is_noise(tmp_path: Path, dtype: torch.dtype) -> None:
    model = Model()
    for block in model.blocks:
        block.attention.written_out = True
    result = twinprobe.compare(record(tmp_path / "t", model, dtype), record(tmp_path / "g", Model(), dtype))
    assert result.agrees, result.first
    (summary,) = (pair.summary for pair in result.pairs.values())
    assert [(one.name, one.agrees) for one in summary.results] == [
        ("loss", True), ("outputs", True), ("parameter gradients", True),
    ]  # fmt: skip
    assert summary.verdicts["error"] == 0


def test_a_wrong_scale_is_found_where_it_is_and_named(tmp_path: Path, dtype: torch.dtype) -> None:
    model = Model()
    model.blocks[2].attention.scale *= 1.3
    first = twinprobe.compare(record(tmp_path / "t", model, dtype), record(tmp_path / "g", Model(), dtype)).first
    assert first is not None
    assert first.module == "blocks.2.attention"
    assert "scaled_dot_product_attention" in first.op
    assert "scale: 0.325 against 0.25" in first.sentence
    assert first.kinds[0]["name"] == "argument"
    assert first.times_noise > 4


def test_a_fault_among_noise_is_found_in_bfloat16(tmp_path: Path) -> None:
    model = Model()
    for block in model.blocks:
        block.attention.written_out = True
    model.blocks[1].mlp[2].register_forward_hook(lambda _module, _inputs, output: output * 1.1)
    dumps = record(tmp_path / "t", model, torch.bfloat16), record(tmp_path / "g", Model(), torch.bfloat16)
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.module.startswith("blocks.1")


def test_what_dies_out_is_a_note(tmp_path: Path) -> None:
    model = Model()
    # Softmax takes no notice of what is added to all keys of a query: a key bias has no effect at all.
    with torch.no_grad():
        model.blocks[0].attention.qkv.bias[WIDTH : 2 * WIDTH] += 1.0
    result = twinprobe.compare(record(tmp_path / "t", model), record(tmp_path / "g", Model()))
    assert result.agrees, result.first
    assert "without effect on any result" in " ".join(result.notes + next(iter(result.pairs.values())).summary.notes)


def test_an_argument_that_changes_nothing_is_no_divergence(tmp_path: Path) -> None:
    dumps = []
    for side, inplace in (("t", True), ("g", False)):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Linear(8, 8), nn.ReLU(inplace=inplace), nn.Dropout(0.1 if inplace else 0.5), nn.Linear(8, 2)
        )
        with twinprobe.record(model.eval(), tmp_path / side, level="mix"):
            model(torch.ones(4, 8)).sum().backward()
        dumps.append(next((tmp_path / side).rglob("dump.json")))
    assert twinprobe.compare(*dumps).agrees


class Scaled(nn.Module):
    """A layer with a scale behind it, which a port may leave out; and an activation, which it may replace."""

    def __init__(self, activation: Callable[[torch.Tensor], torch.Tensor], *, scaled: bool) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.full((WIDTH,), 0.5))
        self.activation, self.scaled = activation, scaled

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.inner(x)) * self.activation(x)
        return y * self.scale if self.scaled else y


def scaled(activation: Callable[[torch.Tensor], torch.Tensor], *, scaled: bool = True) -> Model:
    model = Model()
    torch.manual_seed(3)
    model.blocks[1].mlp = Scaled(activation, scaled=scaled)
    return model


def test_a_call_that_is_missing_is_named_by_the_golden_run(tmp_path: Path, dtype: torch.dtype) -> None:
    dumps = [
        record(tmp_path / side, scaled(torch.sigmoid, scaled=side == "g"), dtype, update=lambda _loss: None)
        for side in "tg"
    ]
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert (first.module, first.begins) == ("blocks.1.mlp", "missing")
    assert first.op in json.loads(dumps[1].read_text())["data"]
    assert "__mul__" in first.op
    assert "only the golden run makes this call" in first.sentence
    assert Path(__file__).name in first.stack_line


def test_a_function_in_place_of_another_is_named_within_the_noise_of_its_dtype(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    dumps = [
        record(tmp_path / side, scaled(activation), dtype)
        for side, activation in (("t", functional.hardsigmoid), ("g", torch.sigmoid))
    ]
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.op == "Functional.hardsigmoid.0.forward"
    assert first.kinds[0]["name"] == "function"
    assert first.kinds[0]["sentence"] == "hardsigmoid against sigmoid"


def test_one_function_in_a_coarser_type_is_a_difference_not_its_noise(tmp_path: Path) -> None:
    def coarse(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x.bfloat16()).float()

    first = twinprobe.compare(
        record(tmp_path / "t", scaled(coarse)), record(tmp_path / "g", scaled(torch.sigmoid))
    ).first
    assert first is not None
    assert (first.module, first.op) == ("blocks.1.mlp", "Torch.sigmoid.0.forward")
    assert first.kinds[0]["name"] == "dtype"
    # A whole run in a coarser type is normal.
    whole = record(tmp_path / "b", scaled(torch.sigmoid), torch.bfloat16)
    assert twinprobe.compare(whole, tmp_path / "g").agrees


def test_a_scaled_loss_is_no_divergence_where_the_optimiser_sees_equal_gradients(tmp_path: Path) -> None:
    dumps = []
    for side, factor in (("t", 1024.0), ("g", 1.0), ("wrong", 2.0)):
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

        def update(loss: torch.Tensor, factor=factor, side=side, model=model, optimizer=optimizer) -> None:
            (loss * factor).backward() if factor > 1 else loss.backward()
            for parameter in model.parameters() if side == "t" else ():
                parameter.grad.div_(factor)
            optimizer.step()

        dumps.append(record(tmp_path / side, model, update=update))
    assert twinprobe.compare(dumps[0], dumps[1]).agrees
    first = twinprobe.compare(dumps[2], dumps[1]).first  # Adam's first update is the same: the gradients are not
    assert first is not None
    assert "factor" in [kind["name"] for kind in first.kinds]


def test_an_optimiser_may_take_its_parameters_in_another_order(tmp_path: Path) -> None:
    dumps = []
    for side in "tg":
        model = Model()
        groups = [[one for one in model.parameters() if (one.dim() > 1) == matrix] for matrix in (True, False)]
        ordered = [{"params": group} for group in groups] if side == "t" else model.parameters()
        optimizer = torch.optim.AdamW(ordered, foreach=False)

        def update(loss: torch.Tensor, optimizer=optimizer) -> None:
            loss.backward()
            optimizer.step()

        dumps.append(record(tmp_path / side, model, update=update))
    assert twinprobe.compare(*dumps).agrees


def test_weights_given_to_a_function_by_hand_are_parameters(tmp_path: Path) -> None:
    dumps = []
    for side in "tg":
        model = Model()
        layer = model.blocks[1].mlp[2]
        model.blocks[1].mlp = nn.Sequential(*model.blocks[1].mlp[:2], nn.Identity())
        head = model.head
        if side == "t":
            with torch.no_grad():
                layer.weight.copy_(layer.weight.flip(0))
        model.blocks[1].mlp.register_forward_hook(
            lambda _module, _inputs, output, layer=layer: functional.linear(output, layer.weight, layer.bias)
        )
        optimizer = torch.optim.SGD([*head.parameters(), *layer.parameters()], lr=0.1, foreach=False)

        def update(loss: torch.Tensor, optimizer=optimizer) -> None:
            loss.backward()
            optimizer.step()

        dumps.append(record(tmp_path / side, model, update=update))
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.begins == "parameter"
    assert "Functional.linear" in first.op


def steps(folder: Path, *, written_out: bool, faulty: bool) -> Path:
    """Three recorded steps with AdamW; the fault comes with the last."""
    model = Model()
    for block in model.blocks:
        block.attention.written_out = written_out
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with twinprobe.record(model, folder, level="mix") as recorder:
        for at in range(3):
            torch.manual_seed(at)
            x, labels = torch.randn(2, TOKENS, WIDTH), torch.randint(10, (2 * TOKENS,))
            if faulty and at == 2:
                model.blocks[1].attention.scale *= 1.3
            optimizer.zero_grad()
            functional.cross_entropy(model(x).flatten(0, 1), labels).backward()
            optimizer.step()
            recorder.step()
    return folder


def test_parameters_that_drift_in_training_are_no_divergence(tmp_path: Path) -> None:
    golden = steps(tmp_path / "g", written_out=False, faulty=False)
    clean = twinprobe.compare(steps(tmp_path / "t", written_out=True, faulty=False), golden)
    assert clean.agrees, clean.first
    moved = [pair.evidence.pairs.filter(pair.evidence.pairs["t_name"].str.contains("parameters.weight"))
             for pair in clean.pairs.values()]  # fmt: skip
    assert any((frame["t_norm"] != frame["g_norm"]).any() for frame in moved)  # they did drift
    firsts = twinprobe.compare(steps(tmp_path / "w", written_out=True, faulty=True), golden).pairs
    found = {name.partition("/")[0]: pair.summary.first for name, pair in firsts.items()}
    assert found["step0"] is None
    assert found["step1"] is None
    assert found["step2"] is not None
    # PyTorch 2.2 rounds its own attention more coarsely: forward, the fault stays within what may be noise.
    assert found["step2"].module == ("blocks.1.attention" if has("torch", "2.3") else "blocks.1.attention.qkv")


def test_values_that_are_rolled_between_two_calls_are_found(tmp_path: Path, dtype: torch.dtype) -> None:
    class Rolled(nn.Module):
        def __init__(self, by: int) -> None:
            super().__init__()
            self.first, self.second, self.by = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), by

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.first(x)
            y = torch.from_numpy(y.detach().float().numpy().copy()).to(y) + (y - y.detach())
            if self.by:  # below what is recorded; max, min and norm stay as they are
                y.data = torch.cat([y.data[:, self.by :], y.data[:, : self.by]], 1)
            return self.second(y)

    dumps = []
    for side, by in (("t", 1), ("g", 0)):
        model = Model()
        torch.manual_seed(4)
        model.blocks[1].mlp = Rolled(by)
        dumps.append(record(tmp_path / side, model, dtype))
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.module.startswith("blocks.1.mlp")


def test_gradients_pair_in_whatever_order_the_backward_pass_gives_them(tmp_path: Path) -> None:
    dumps = []
    for side, coarse in (("t", True), ("g", False)):
        model, folder = Model(), tmp_path / side
        x, labels = torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(1)), torch.arange(64) % 10
        with twinprobe.record(model, folder, level="L0"), torch.autocast("cpu", torch.bfloat16, enabled=coarse):
            functional.cross_entropy(model(x).flatten(0, 1), labels).backward()
        dumps.append(next(folder.rglob("dump.json")))
    orders = [
        [list(entry) for name, entry in json.loads(dump.read_text())["data"].items() if "parameters_grad" in name]
        for dump in dumps
    ]
    assert orders[0] != orders[1]  # weight and bias the other way round
    (pair,) = twinprobe.compare(*dumps).pairs.values()
    gradients = pair.evidence.pairs.filter(pair.evidence.pairs["t_name"].str.contains("parameters_grad"))
    assert gradients["g_name"].null_count() == 0
    assert pair.summary.first is None


def test_the_exit_code_is_that_of_a_divergence(tmp_path: Path) -> None:
    model = Model()
    model.blocks[2].attention.scale *= 1.3
    wrong, right = record(tmp_path / "t", model), record(tmp_path / "g", Model())
    for words, code in (((), 0), (("--fail-on",), 1), (("--fail-on", "error"), 1)):
        assert main(["compare", str(wrong), str(right), "-o", str(tmp_path / "out"), "--quiet", *words]) == code
    assert main(["compare", str(right), str(right), "-o", str(tmp_path / "out"), "--quiet", "--fail-on"]) == 0


def test_noise_as_measured_raises_what_is_expected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model()
    model.blocks[2].attention.scale *= 1.3
    wrong, right = record(tmp_path / "t", model), record(tmp_path / "g", Model())
    noise = record(tmp_path / "n", Model(), perturb=1)

    def times(*words: str) -> float:
        assert main(["compare", str(wrong), str(right), "-o", str(tmp_path / "out"), "--json", *words]) == 0
        return float(json.loads(capsys.readouterr().out)["first"]["times_noise"])

    assert times("--noise", str(noise)) <= times()
    # A perturbed run is neither target nor golden, and a rerun that is equal shows no noise.
    assert main(["compare", str(noise), str(right), "-o", str(tmp_path / "out")]) == 2
    assert "--noise" in capsys.readouterr().err
    assert main(["compare", str(wrong), str(right), "-o", str(tmp_path / "out"), "--noise", str(right)]) == 2
    assert "shows no noise" in capsys.readouterr().err


class Experts(nn.Module):
    """Each token goes to the two experts its router likes best; dealt out by indices, as grouped kernels want it."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1)
        weight, chosen = torch.softmax(self.router(tokens).float(), -1).topk(2, -1)
        order = torch.sort(chosen.flatten(), stable=True)[1]
        dealt = tokens.repeat_interleave(2, 0)[order]
        counts = torch.bincount(chosen.flatten(), minlength=4).tolist()
        made = torch.cat([expert(part) for expert, part in zip(self.experts, dealt.split(counts), strict=True)])
        made = made * weight.flatten()[order].unsqueeze(-1).to(made.dtype)
        return torch.zeros_like(tokens).index_add(0, order // 2, made).view_as(x)


def test_a_router_that_flips_within_rounding_is_no_fault(tmp_path: Path) -> None:
    dumps = []
    for side, noise in (("t", 1.0), ("g", 0.0)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Experts(), nn.Linear(WIDTH, 10)).bfloat16()
        with torch.no_grad():  # close calls: all experts are liked about as much
            model[1].router.weight.mul_(0.05)
        # Other kernels, imitated: every number of the first layer is rounded once more.
        by = 1 + noise * 2.0**-9 * torch.randn(2, TOKENS, WIDTH, generator=torch.Generator().manual_seed(4))
        model[0].register_forward_hook(lambda _module, _inputs, output, by=by: (output.float() * by).bfloat16())
        dumps.append(record(tmp_path / side, model, torch.bfloat16))
    result = twinprobe.compare(*dumps)
    assert result.first is None, result.first
    assert "other elements within rounding" in " ".join(next(iter(result.pairs.values())).summary.notes)


def test_a_small_factor_is_found_under_another_dtype(tmp_path: Path) -> None:
    """An error that points one way is none of rounding, though it is no larger than rounding errors can be."""
    model = Model()
    model.blocks[2].attention.out.register_forward_hook(lambda _module, _inputs, output: output * 1.05)
    result = twinprobe.compare(record(tmp_path / "t", model, torch.bfloat16), record(tmp_path / "g", Model()))
    assert result.first is not None
    assert result.first.module.startswith("blocks.2.attention.out")


def test_gradients_that_are_zero_in_theory_are_no_fault(tmp_path: Path) -> None:
    dumps = []
    for side in ("t", "g"):
        model = Model()
        for block in model.blocks:
            block.attention.written_out = side == "t"
            with torch.no_grad():  # the same attention to all: queries and keys get nothing but rounding back
                block.attention.qkv.weight[: 2 * WIDTH].mul_(1e-3)
        dumps.append(record(tmp_path / side, model, torch.bfloat16))
    result = twinprobe.compare(*dumps)
    assert result.first is None, result.first


class CastNorm(nn.Module):
    """Computes in float32 whatever comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.weight.float()).to(x.dtype)


class Shares(nn.Module):
    """Where both choices are one expert, the shares are equal, whatever the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.activation = nn.Parameter(torch.randn(4, 16) / 50), nn.Softplus()

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        shares = self.activation(functional.linear(x, self.weight)).gather(1, chosen)
        return 1.5 * shares / (shares.sum(-1, keepdim=True) + 1e-20)


class ExpertsByTable(nn.Module):
    """Experts as a hash chooses them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.shares = nn.Linear(16, 16), Shares()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 50)

    def forward(self, x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        shares, given = self.shares(x, chosen), torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            given.index_add_(0, token, expert(x[token]) * shares[token, place, None])
        return self.out(self.norm(x + given))


@pytest.mark.parametrize("level", ["mix", "L0"])
def test_shares_that_are_always_equal_have_no_gradient_but_rounding(tmp_path: Path, level: str) -> None:
    for dtype, folder in ((torch.bfloat16, "target"), (torch.float32, "golden")):
        torch.manual_seed(0)
        model, x, words = ExpertsByTable().to(dtype), torch.randn(24, 16).to(dtype), torch.randint(0, 50, (24,))
        with twinprobe.record(model, tmp_path / folder, level=level):
            functional.cross_entropy(model(x, torch.zeros(24, 2, dtype=torch.int64)).float(), words).backward()
    compared = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    assert compared.agrees
    assert "differs more than noise explains" not in compared.summary


def test_a_fault_is_followed_through_a_cast(tmp_path: Path) -> None:
    dumps = []
    for side in ("t", "g"):
        torch.manual_seed(0)
        up, gate = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

        class Gated(nn.Module):
            def __init__(self, up: nn.Module, gate: nn.Module) -> None:
                super().__init__()
                self.norm, self.up, self.gate = CastNorm(), up, gate

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                y = self.norm(x)
                return x + self.up(y) * functional.silu(self.gate(y))

        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Gated(up, gate), nn.Linear(WIDTH, 10))
        if side == "t":
            up.register_full_backward_hook(lambda _module, into, _out: tuple(grad * 1.3 for grad in into))
        dumps.append(record(tmp_path / side, model, torch.bfloat16))
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.module == "1.up"


class Masked(Model):
    """Each block is given a mask; one of them may be given another."""

    def __init__(self, open_at: int = -1) -> None:
        super().__init__()
        self.open_at = open_at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        causal = torch.full((TOKENS, TOKENS), torch.finfo(x.dtype).min, dtype=x.dtype).triu(1)
        windowed = causal + torch.full((TOKENS, TOKENS), torch.finfo(x.dtype).min, dtype=x.dtype).tril(-8)
        for at, block in enumerate(self.blocks):
            attention = block.attention
            y = attention.qkv(block.norm_1(x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in y)
            scores = q @ k.transpose(-1, -2) * attention.scale
            scores = scores + (windowed if at == self.open_at else causal)
            x = x + attention.out((torch.softmax(scores, -1) @ v).transpose(1, 2).flatten(-2))
            x = x + block.mlp(block.norm_2(x))
        return self.head(x)


def test_another_mask_is_found_where_it_is_added(tmp_path: Path, dtype: torch.dtype) -> None:
    """Fill values are left out of all sums: how many there are tells masks apart."""
    dumps = record(tmp_path / "t", Masked(open_at=2), dtype), record(tmp_path / "g", Masked(), dtype)
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert "__add__" in first.op
    assert first.kinds[0]["name"] == "mask"
    assert "another mask" in first.sentence


def test_a_loss_that_is_scaled_has_no_tick(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dumps = []
    for side, scale in (("t", 8.0), ("g", 2.0)):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(loss: torch.Tensor, scale: float = scale, model: Model = model, optimizer: Any = optimizer) -> None:
            (loss * scale).backward()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()

        dumps.append(record(tmp_path / side, model, update=step))
    assert main(["compare", *map(str, dumps), "-o", str(tmp_path / "o")]) == 0
    told = capsys.readouterr().out
    assert "loss differs (worst 300.00%" in told
    assert "No first divergence: loss differs, without effect on outputs" in told


def test_a_buffer_that_moves_at_another_rate_is_found(tmp_path: Path) -> None:
    class Average(nn.Module):
        def __init__(self, rate: float) -> None:
            super().__init__()
            self.rate = rate
            self.register_buffer("mean", torch.ones(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.mean.mul_(self.rate).add_(x.mean((0, 1)), alpha=1 - self.rate)
            return x

    dumps = []
    for side, rate in (("t", 0.99), ("g", 0.9)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), Average(rate), nn.Linear(WIDTH, 10))
        dumps.append(record(tmp_path / side, model))
    first = twinprobe.compare(*dumps).first
    assert first is not None
    assert first.op.startswith("Tensor.mul_")
    assert "0.99 against 0.9" in first.sentence


def test_an_argument_given_by_position_goes_by_its_name(tmp_path: Path) -> None:
    model = Model()
    model.blocks[1].norm_2.eps = 0.05
    first = twinprobe.compare(record(tmp_path / "t", model), record(tmp_path / "g", Model())).first
    assert first is not None
    assert "eps: 0.05 against 1e-05" in first.sentence


def test_padding_that_no_loss_reads_is_no_fault(tmp_path: Path) -> None:
    class Padded(Model):
        scale = 1.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return torch.cat([y[:, :-4], y[:, -4:] * self.scale], 1)

    dumps = []
    for side, scale in (("t", 3.0), ("g", 1.0)):
        model = Padded()
        model.scale = scale
        torch.manual_seed(2)
        x, labels = torch.randn(2, TOKENS, WIDTH), torch.randint(10, (2, TOKENS))
        labels[:, -4:] = -100
        with twinprobe.record(model, tmp_path / side, level="mix"), torch.no_grad():
            functional.cross_entropy(model(x).flatten(0, 1), labels.flatten(), ignore_index=-100)
        dumps.append(next((tmp_path / side).rglob("dump.json")))
    result = twinprobe.compare(*dumps)
    assert result.first is None, result.first


@needs("transformers", "5.0", "attention in one call fills padding otherwise")
def test_padding_that_one_attention_fills_otherwise_is_no_fault_in_bfloat16(tmp_path: Path) -> None:
    import transformers

    tokens, dumps = 16, []
    for attention in ("sdpa", "eager"):
        torch.manual_seed(1)
        config = transformers.Qwen2Config(
            hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=96, max_position_embeddings=64, initializer_range=0.08, attn_implementation=attention,
        )  # fmt: skip
        model = transformers.Qwen2ForCausalLM(config).to(torch.bfloat16)
        ids, mask = torch.randint(3, 96, (2, tokens)), torch.ones(2, tokens, dtype=torch.int64)
        ids[0, :4], mask[0, :4] = 0, 0
        labels = ids.masked_fill(mask == 0, -100)
        labels[0, 4] = -100
        with twinprobe.record(model, tmp_path / attention, level="mix"):
            model(input_ids=ids, attention_mask=mask, labels=labels, use_cache=False).loss.backward()
        dumps.append(next((tmp_path / attention).rglob("dump.json")))
    result = twinprobe.compare(*dumps)
    assert "outputs differ" in result.summary
    assert result.first is None, result.first


def test_results_are_no_further_off_than_noise_where_nothing_is_claimed(tmp_path: Path) -> None:
    """A compiled model, whose parts nobody sees, rounds otherwise: by some epsilons."""

    class Scaled(nn.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.layer, self.factor = nn.Linear(16, 8), factor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.factor

    for name, factor in (("target", 1 + 8 * 2.0**-23), ("golden", 1.0), ("other", 1 + 64 * 2.0**-23)):
        torch.manual_seed(0)
        model = nn.ModuleDict({"net": Scaled(factor)})
        with twinprobe.record(model, tmp_path / name, level="L0"), torch.no_grad():
            model["net"](torch.randn(32, 16))
    found = twinprobe.compare(tmp_path / "target", tmp_path / "golden")
    assert found.first is None
    assert "outputs agree" in found.summary
    assert twinprobe.compare(tmp_path / "other", tmp_path / "golden").first is not None
