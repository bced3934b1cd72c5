"""A fresh recording against the kept one of PyTorch: equal weights, other names, a layer mapping between them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cross import DATA, assert_fault_found, assert_forward_agrees, compared

sys.path.insert(0, str(DATA))


def test_every_forward_pair_agrees_within_rounding(tmp_path: Path) -> None:
    from remake import record

    record("paddle", tmp_path / "run")
    comparison = compared(tmp_path / "run", DATA / "torch", "paddle_torch.yaml")
    assert_forward_agrees(comparison, calls=21, parts=("input", "output", "parameters"))


def test_a_planted_fault_is_found(tmp_path: Path) -> None:
    from remake import record

    record("paddle", tmp_path / "run", fault=True)
    comparison = compared(tmp_path / "run", DATA / "torch", "paddle_torch.yaml")
    assert_fault_found(comparison, "Module.blocks.1.ffn.down.")


@pytest.mark.parametrize("kept", [0.9, 0.7])
def test_the_momentum_of_running_statistics_says_what_is_kept(tmp_path: Path, kept: float) -> None:
    """Paddle's 0.9 is PyTorch's 0.1; another one shows in no result of this step, and is named."""
    import paddle
    import torch

    import twinprobe

    values = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    nn = paddle.nn
    ours = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1D(8, momentum=kept), nn.ReLU(), nn.Linear(8, 3))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    for at in (0, 3):
        ours[at].weight.set_value(theirs[at].weight.detach().T.numpy())
        ours[at].bias.set_value(theirs[at].bias.detach().numpy())
    for model, x, name in ((ours, paddle.to_tensor(values.numpy()), "paddle"), (theirs, values, "torch")):
        with twinprobe.record(model, tmp_path / name, level="mix"):
            model(x).square().mean().backward()
    dumps = [next((tmp_path / name).rglob("dump.json")) for name in ("paddle", "torch")]
    first = twinprobe.compare(*dumps).first
    assert (first is None) == (kept == 0.9), first
    assert first is None or "momentum: 0.3 against 0.1" in first.sentence


def test_a_factor_transposed_by_a_flag_is_the_same_factor(tmp_path: Path) -> None:
    """paddle.matmul transposes by transpose_y what PyTorch transposes before the product."""
    import numpy as np
    import paddle
    import torch

    import twinprobe

    class Ours(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = paddle.nn.Linear(6, 8), paddle.nn.Linear(6, 8)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return paddle.matmul(self.q(x), self.k(x), transpose_y=True)

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k = torch.nn.Linear(6, 8), torch.nn.Linear(6, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.q(x) @ self.k(x).transpose(-1, -2)

    values = np.random.default_rng(0).standard_normal((2, 5, 6)).astype("float32")
    ours, theirs = Ours(), Theirs()
    for name in ("q", "k"):
        getattr(ours, name).weight.set_value(getattr(theirs, name).weight.detach().T.numpy())
        getattr(ours, name).bias.set_value(getattr(theirs, name).bias.detach().numpy())
    for model, x, name in ((ours, paddle.to_tensor(values), "paddle"), (theirs, torch.from_numpy(values), "torch")):
        with twinprobe.record(model, tmp_path / name, level="mix", task="tensor"):
            model(x).square().mean().backward()
    dumps = [next((tmp_path / name).rglob("dump.json")) for name in ("paddle", "torch")]
    found = twinprobe.compare(*dumps)
    assert found.agrees
    factor = found.table.filter(found.table["target"] == "Paddle.matmul.0.forward.input.1")
    assert factor["verdict"].to_list() == ["pass"]
    assert "axes 0 2 1" in factor["paired_by"][0]


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize(("level", "task"), [("L0", "statistics"), ("mix", "statistics"), ("L0", "tensor")])
def test_a_square_weight_that_was_not_transposed_is_named(
    tmp_path: Path, transposed: bool, level: str, task: str
) -> None:
    """Its statistics are golden's; only its elements are in golden's places, not in those of its own framework."""
    import paddle
    import torch

    import twinprobe

    values = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3))
    ours = paddle.nn.Sequential(paddle.nn.Linear(6, 8), paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 3))
    for at in range(3):
        weight = theirs[at].weight.detach().numpy()
        ours[at].weight.set_value(weight.T if transposed or at != 1 else weight)
        ours[at].bias.set_value(theirs[at].bias.detach().numpy())
    for model, x, name in ((ours, paddle.to_tensor(values.numpy()), "paddle"), (theirs, values, "torch")):
        with twinprobe.record(model, tmp_path / name, level=level, task=task):
            model(x).square().mean().backward()
    first = twinprobe.compare(*(next((tmp_path / name).rglob("dump.json")) for name in ("paddle", "torch"))).first
    assert (first is None) == transposed, first
    assert first is None or (first.module == "1" and "it was not transposed" in first.sentence), first


def test_a_dropout_that_scales_in_evaluation_is_named(tmp_path: Path) -> None:
    import paddle
    import torch

    import twinprobe

    values = torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    ours = paddle.nn.Sequential(paddle.nn.Dropout(0.25, mode="downscale_in_infer"), paddle.nn.ReLU())
    theirs = torch.nn.Sequential(torch.nn.Dropout(0.25), torch.nn.ReLU())
    for model, x, name in ((ours, paddle.to_tensor(values.numpy()), "paddle"), (theirs, values, "torch")):
        model.eval()
        with twinprobe.record(model, tmp_path / name, level="L0"):
            model(x)
    first = twinprobe.compare(*(next((tmp_path / name).rglob("dump.json")) for name in ("paddle", "torch"))).first
    assert first is not None
    assert "nothing is dropped, and target is 0.75 x golden" in first.sentence


@pytest.mark.parametrize("causal", [True, False])
def test_the_attention_of_paddle_has_words_before_heads(tmp_path: Path, causal: bool) -> None:
    """There are as many heads as words: no shape shows the other layout."""
    import numpy as np
    import paddle
    import torch

    import twinprobe

    values = np.random.default_rng(0).standard_normal((2, 4, 12)).astype("float32")

    class Ours(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc = paddle.nn.Linear(12, 36)

        def forward(self, x):
            q, k, v = self.fc(x).reshape([2, 4, 3, 4, 3]).unbind(2)
            return paddle.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal).flatten(2)

    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(12, 36)

        def forward(self, x):
            q, k, v = (part.transpose(1, 2) for part in self.fc(x).view(2, 4, 3, 4, 3).unbind(2))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return mixed.transpose(1, 2).flatten(2)

    ours, theirs = Ours(), Theirs()
    twinprobe.copy_weights(ours, theirs)
    for model, x, name in ((ours, paddle.to_tensor(values), "paddle"), (theirs, torch.as_tensor(values), "torch")):
        with twinprobe.record(model, tmp_path / name, level="mix"):
            model(x).square().mean().backward()
    first = twinprobe.compare(*(next((tmp_path / name).rglob("dump.json")) for name in ("paddle", "torch"))).first
    assert (first is None) is causal, first
    assert first is None or "is_causal: False against True" in first.sentence


def test_the_gradient_of_what_an_adaptive_pooling_takes(tmp_path: Path) -> None:
    """Paddle hands the pooling's kernel another handle of the tensor."""
    import paddle

    import twinprobe

    class Squeeze(paddle.nn.Layer):
        def forward(self, x):
            return x * paddle.nn.functional.adaptive_avg_pool2d(x, 1)

    x = paddle.randn([2, 3, 4, 4])
    x.stop_gradient = False
    model = paddle.nn.Sequential(Squeeze())
    with twinprobe.record(model, tmp_path / "run", level="mix"):
        model(x * 1.0).square().sum().backward()
    run = twinprobe.open(tmp_path / "run")
    norms = {row["name"]: row["norm"] for row in run.table.to_dicts()}
    assert "Functional.adaptive_avg_pool2d.0.backward.output.0" in norms
    own = norms["Module.0.Squeeze.backward.0.output.0"]
    assert abs(own - float(x.grad.norm())) < 1e-4 * own
