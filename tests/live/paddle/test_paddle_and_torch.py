"""Paddle models against PyTorch models: the scenarios of everyday work, in both directions."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import paddle
import pytest
import torch

from twinprobe import LayerMap, auto_diff
from twinprobe.errors import BadInput

EASY = {"atol": 1e-4, "rtol": 1e-4, "quiet": True}


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    paddle.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)


def array(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class PaddleNet(paddle.nn.Layer):
    """A residual MLP; ``change`` comes between the layers."""

    def __init__(self, change=None) -> None:
        super().__init__()
        self.linear1 = paddle.nn.Linear(12, 12)
        self.linear2 = paddle.nn.Linear(12, 5)
        self.act = paddle.nn.ReLU()
        self.change = change

    def forward(self, x):
        h = self.act(self.linear1(x) + x)
        return self.linear2(self.change(h) if self.change is not None else h)


class TorchNet(torch.nn.Module):
    def __init__(self, change=None) -> None:
        super().__init__()
        self.linear1 = torch.nn.Linear(12, 12)
        self.linear2 = torch.nn.Linear(12, 5)
        self.act = torch.nn.ReLU(inplace=True)
        self.change = change

    def forward(self, x):
        h = self.act(self.linear1(x) + x)
        return self.linear2(self.change(h) if self.change is not None else h)


X = array(4, 12)


def test_weights_go_either_way() -> None:
    assert auto_diff(PaddleNet(), TorchNet(), X, **EASY)
    assert auto_diff(TorchNet(), PaddleNet(), X, **EASY)
    assert auto_diff(PaddleNet(), PaddleNet(), X, **EASY)
    layer, module = PaddleNet(), TorchNet()
    kept = module.linear1.weight.detach().clone()
    result = auto_diff(module, layer, ({"x": torch.as_tensor(X)}, {"x": paddle.to_tensor(X)}), **EASY)
    assert result
    assert torch.equal(module.linear1.weight, kept)
    assert np.array_equal(layer.linear1.weight.numpy().T, kept.numpy())


def test_without_weights_the_first_layer_is_named() -> None:
    result = auto_diff(PaddleNet(), TorchNet(), X, auto_weights=False, **EASY)
    assert not result
    assert result.first.raw == "Module.linear1.Linear.forward.0"


@pytest.mark.parametrize("base", ["paddle", "torch"])
def test_a_fault_between_layers_is_found_forward_and_backward(base: str) -> None:
    def doubled(h):
        h.register_hook(lambda gradient: gradient * 2)
        return h

    for change, phase in ((lambda h: h * 1.01, "forward"), (doubled, "backward")):
        pair = (PaddleNet(), TorchNet(change)) if base == "paddle" else (TorchNet(), PaddleNet(change))
        result = auto_diff(*pair, X, **EASY)
        assert not result
        assert result.first.phase == phase
        named = "linear2" if phase == "forward" else "act"
        assert result.first.raw.startswith(f"Module.{named}.")
        assert Path(__file__).name in result.first.raw_line
        fed = auto_diff(*pair, X, single_step=True, **EASY)
        assert not fed
        assert len({one.raw for one in fed.differences if one.decides and one.phase == phase}) == 1
        assert fed.first.phase == phase


def test_single_step_agrees_in_both_directions() -> None:
    assert auto_diff(PaddleNet(), TorchNet(), X, single_step=True, **EASY)
    assert auto_diff(TorchNet(), PaddleNet(), X, single_step=True, **EASY)


def test_optimizers_and_losses_over_ten_steps() -> None:
    layer, module = PaddleNet(), TorchNet()
    optimizers = [
        paddle.optimizer.Adam(1e-3, parameters=layer.parameters()), torch.optim.Adam(module.parameters(), 1e-3)
    ]  # fmt: skip
    label = array(4, 5, seed=2)
    losses = [
        partial(paddle.nn.functional.mse_loss, label=paddle.to_tensor(label)),
        partial(torch.nn.functional.mse_loss, target=torch.as_tensor(label)),
    ]
    result = auto_diff(
        module, layer, X, optimizers=optimizers[::-1], loss_fns=losses[::-1], steps=10, apis=False, **EASY
    )
    assert result
    assert result.steps == 10
    assert {"loss", "weights"} <= set(result.table["phase"])
    wrong = [losses[0], lambda output: losses[1](output) + 100]
    result = auto_diff(PaddleNet(), TorchNet(), X, loss_fns=wrong, **EASY)
    assert result.first.phase == "loss"


def test_swapped_optimizers_and_another_mode_are_told() -> None:
    layer, module = PaddleNet(), TorchNet()
    swapped = [
        torch.optim.Adam(module.parameters(), 1e-3), paddle.optimizer.Adam(1e-3, parameters=layer.parameters())
    ]  # fmt: skip
    with pytest.raises(
        BadInput, match=r"base model PaddleNet .* is one of another framework \(Adam\): are they swapped"
    ):
        auto_diff(layer, module, X, optimizers=swapped, **EASY)
    stranger = paddle.optimizer.Adam(1e-3, parameters=PaddleNet().parameters())
    with pytest.raises(BadInput, match="none of the parameters of this model"):
        auto_diff(layer, module, X, optimizers=[stranger, swapped[0]], **EASY)
    layer.eval()
    notes = auto_diff(layer, module, X, **EASY).notes
    assert notes == ["the base model is in evaluation mode, the raw model in training mode"]


def test_dropout_masks_are_shared_between_the_frameworks() -> None:
    layer = paddle.nn.Sequential(paddle.nn.Linear(12, 40), paddle.nn.Dropout(0.5), paddle.nn.Linear(40, 3))
    module = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.Dropout(0.5), torch.nn.Linear(40, 3))
    assert auto_diff(layer, module, X, **EASY)
    assert not auto_diff(layer, module, X, random="seed", **EASY)
    assert layer[1](paddle.ones([100])).max() == 2.0, "the framework's own dropout is back"


class PaddleMixed(paddle.nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.embed = paddle.nn.Embedding(20, 8)
        self.attn = paddle.nn.MultiHeadAttention(8, 2)
        self.lstm = paddle.nn.LSTM(8, 8, num_layers=2)
        self.norm = paddle.nn.LayerNorm(8)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = self.norm(h + self.attn(h, h, h))
        return self.lstm(h)[0]


class TorchMixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(20, 8)
        self.attn = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.lstm = torch.nn.LSTM(8, 8, num_layers=2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, tokens):
        h = self.embed(tokens)
        h = self.norm(h + self.attn(h, h, h)[0])
        return self.lstm(h)[0]


@pytest.mark.parametrize("mapped", ["by hand", "auto", "not at all"])
@pytest.mark.parametrize("turned", [False, True])
def test_attention_and_recurrent_layers(mapped: str, turned: bool) -> None:
    layer, module = PaddleMixed(), TorchMixed()
    layer_map = LayerMap()
    if mapped == "by hand":
        layer_map.map = {layer.attn: module.attn, module.lstm: layer.lstm}
    elif mapped == "auto":
        assert layer_map.auto(layer, module)
    tokens = np.random.default_rng(0).integers(0, 20, (2, 5))
    pair = (module, layer) if turned else (layer, module)
    assert auto_diff(*pair, tokens, layer_map=layer_map, **EASY)


def test_convolution_and_batch_norm_in_both_modes() -> None:
    layer = paddle.nn.Sequential(paddle.nn.Conv2D(3, 4, 3), paddle.nn.BatchNorm2D(4), paddle.nn.ReLU())
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    with torch.no_grad():
        module[1].running_mean.uniform_()
        module[1].running_var.uniform_(1, 2)
    for mode in ("train", "eval"):
        getattr(layer, mode)()
        getattr(module, mode)()
        assert auto_diff(module, layer, array(2, 3, 8, 8), **EASY)


class Block(torch.nn.Module):
    def __init__(self, taken: int, given: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(taken, given, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(given)
        self.conv2 = torch.nn.Conv2d(given, given, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(given)
        self.shortcut = None
        if stride != 1:
            conv = torch.nn.Conv2d(taken, given, 1, stride, bias=False)
            self.shortcut = torch.nn.Sequential(conv, torch.nn.BatchNorm2d(given))

    def forward(self, x):
        h = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(h + (x if self.shortcut is None else self.shortcut(x)))


class ResNet18(torch.nn.Module):
    """As the library of the other framework has it, in other words and another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 64, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(64)
        self.pool = torch.nn.MaxPool2d(3, 2, 1)
        widths = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))
        taken = [64] + [width for width, _ in widths[:-1]]
        self.blocks = torch.nn.Sequential(*[Block(a, b, stride) for a, (b, stride) in zip(taken, widths, strict=True)])
        self.last = torch.nn.Linear(512, 10)

    def forward(self, x):
        x = self.blocks(self.pool(torch.relu(self.norm(self.conv(x)))))
        return self.last(x.mean((2, 3)))


def test_resnet_18_of_the_library_agrees_and_a_fault_is_found() -> None:
    x = array(4, 3, 64, 64)
    options = {"atol": 1e-3, "rtol": 1e-3, "quiet": True}
    raw = paddle.vision.models.resnet18(num_classes=10)
    assert auto_diff(ResNet18(), raw, x, **options)
    raw.layer3[1].bn1._epsilon = 0.1
    result = auto_diff(ResNet18(), raw, x, **options)
    assert not result
    assert result.first.raw == "Module.layer3.1.bn1.BatchNorm2D.forward.0"
    assert result.first.base == "Module.blocks.5.bn1.BatchNorm2d.forward.0"


def test_functions_wrappers_and_lists_of_outputs() -> None:
    class PaddleHeads(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.body = paddle.nn.Sequential(paddle.nn.Linear(12, 6))
            self.heads = paddle.nn.LayerList([paddle.nn.Linear(6, width) for width in (2, 3)])

        def forward(self, x, y):
            h = paddle.nn.functional.relu(self.body(x)) * 2 + 1
            return [head(h) for head in self.heads] + [self.heads[0](y)]

    class TorchHeads(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Linear(12, 6)
            self.relu = torch.nn.ReLU()
            self.small, self.large = torch.nn.Linear(6, 2), torch.nn.Linear(6, 3)

        def forward(self, x, y):
            h = self.relu(self.stem(x)) * 2 + 1
            return [self.small(h), self.large(h), self.small(y)]

    both = {"x": X, "y": array(4, 6)}
    result = auto_diff(PaddleHeads(), TorchHeads(), (both, both), **EASY)
    assert result
    outputs = [one for one in result.findings if one.raw == "Module.TorchHeads.forward.0" and one.place == "output"]
    assert len(outputs) == 3


def test_shapes_that_do_not_fit_and_bfloat16() -> None:
    with pytest.raises(BadInput, match=r"\[12, 7\]|\[7, 12\]"):
        auto_diff(
            paddle.nn.Sequential(paddle.nn.Linear(12, 7)), torch.nn.Sequential(torch.nn.Linear(12, 5)), X, quiet=True
        )

    class Halved(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(12, 4)

        def forward(self, x):
            return self.linear(x).bfloat16()

    class PaddleHalved(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = paddle.nn.Linear(12, 4)

        def forward(self, x):
            return self.linear(x).astype("bfloat16")

    assert auto_diff(Halved(), PaddleHalved(), X, diff_phase="forward", quiet=True)


def test_after_an_exception_paddle_is_as_before() -> None:
    def raises(h):
        raise ValueError("on purpose")

    call, dropout, relu = paddle.nn.Layer.__call__, paddle.nn.functional.dropout, paddle.nn.functional.relu
    for single_step in (False, True):
        with pytest.raises(BadInput, match="raw model PaddleNet"):
            auto_diff(TorchNet(), PaddleNet(raises), X, single_step=single_step, quiet=True)
    assert paddle.nn.Layer.__call__ is call
    assert paddle.nn.functional.dropout is dropout
    assert paddle.nn.functional.relu is relu
    assert auto_diff(TorchNet(), PaddleNet(), X, **EASY)


def test_a_torch_recording_stands_for_the_torch_model(tmp_path: Path) -> None:
    from twinprobe.torch import record

    module = TorchNet()
    with record(module, tmp_path / "run", level="mix", task="tensor"):
        module(torch.as_tensor(X)).mean().backward()
    assert auto_diff(PaddleNet(), tmp_path / "run", X, **EASY)
    result = auto_diff(PaddleNet(lambda h: h + 0.1), tmp_path / "run", X, **EASY)
    assert result.first.raw == "Module.linear2.Linear.forward.0"


def test_this_ran_with_both_frameworks() -> None:
    assert os.environ.get("TWINPROBE_ENV") in (None, "paddle")


def test_padding_before_a_convolution_is_padding_in_it_and_a_slice() -> None:
    class Causal(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.out = torch.nn.Conv1d(4, 6, 3, padding=2), torch.nn.Linear(6, 2)

        def forward(self, x):
            return self.out(torch.relu(self.conv(x)[..., : x.shape[2]]).transpose(1, 2))

    class Padded(paddle.nn.Layer):
        def __init__(self, left: int) -> None:
            super().__init__()
            self.conv, self.out, self.left = paddle.nn.Conv1D(4, 6, 3), paddle.nn.Linear(6, 2), left

        def forward(self, x):
            h = self.conv(paddle.nn.functional.pad(x, [self.left, 2 - self.left], data_format="NCL"))
            return self.out(paddle.nn.functional.relu(h).transpose([0, 2, 1]))

    x = array(2, 4, 7)
    assert auto_diff(Causal(), Padded(2), x, **EASY)
    wrong = auto_diff(Causal(), Padded(1), x, **EASY)
    assert not wrong
    assert "conv.Conv1D.forward.0.input.0" in str(wrong.first)


def test_another_formula_of_an_optimizer_is_told() -> None:
    """Paddle's RMSProp adds eps under the root; where gradients are large, this changes nothing."""
    for eps, agrees in ((1e-24, True), (1e-3, False)):
        module, layer = TorchNet(), PaddleNet()
        optimizers = [
            torch.optim.RMSprop(module.parameters(), 1e-2, alpha=0.9, eps=eps),
            paddle.optimizer.RMSProp(1e-2, rho=0.9, epsilon=eps, parameters=layer.parameters()),
        ]
        result = auto_diff(module, layer, X, optimizers=optimizers, quiet=True)
        assert bool(result) is agrees, result.first
        assert agrees or "under the root" in str(result.first)
