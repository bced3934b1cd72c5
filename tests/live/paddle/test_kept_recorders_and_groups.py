"""Recorders that are kept between runs, tensors that are not, and the weights of grouped layers."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import paddle
import pytest
import torch

from twinprobe import LayerMap, auto_diff

EASY = {"atol": 1e-4, "rtol": 1e-4, "quiet": True}
X = np.random.default_rng(1).standard_normal((4, 12)).astype(np.float32)


def test_a_function_replaced_between_two_runs_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorders are kept between runs, but not what they found when somebody has changed the framework since."""

    class Activated(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear = paddle.nn.Linear(12, 5)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return paddle.nn.functional.relu(self.linear(x))

    base = torch.nn.Sequential()
    base.add_module("linear", torch.nn.Linear(12, 5))
    base.add_module("act", torch.nn.ReLU())
    layer = Activated()
    assert auto_diff(base, layer, X, **EASY)
    original = paddle.nn.functional.relu
    with monkeypatch.context() as patched:
        patched.setattr(paddle.nn.functional, "relu", lambda x: original(x) + 1)
        assert not auto_diff(base, layer, X, **EASY)
    assert auto_diff(base, layer, X, **EASY)


def test_in_place_writes_leave_what_was_recorded_alone_and_nothing_is_held_afterwards() -> None:
    held = []

    class Writes(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.linear1, self.linear2 = paddle.nn.Linear(12, 12), paddle.nn.Linear(12, 5)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            h = self.linear1(x)
            held.append(weakref.ref(h))
            return self.linear2(paddle.nn.functional.relu_(h) + x)

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear1, self.linear2 = torch.nn.Linear(12, 12), torch.nn.Linear(12, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = self.linear1(x)
            held.append(weakref.ref(h))
            return self.linear2(torch.relu(h) + x)

    result = auto_diff(Plain(), Writes(), X, **EASY)
    assert result, result
    assert any(one.raw == "Module.linear1.Linear.forward.0" and one.place == "output" for one in result.findings)
    gc.collect()
    assert [one() for one in held] == [None] * len(held)


@pytest.mark.parametrize("to_paddle", [True, False])
def test_weights_of_grouped_layers_are_turned_and_copied(to_paddle: bool) -> None:
    class Apart(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.last = torch.nn.Linear(12, 7), torch.nn.Linear(7, 12), torch.nn.Linear(12, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.down(self.up(x)))

    class Together(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.block = paddle.nn.Sequential(paddle.nn.Linear(12, 7), paddle.nn.Linear(7, 12))
            self.last = paddle.nn.Linear(12, 3)

        def forward(self, x: paddle.Tensor) -> paddle.Tensor:
            return self.last(self.block(x))

    module, layer = Apart(), Together()
    layer_map = LayerMap()
    layer_map.group([module.up, module.down], layer.block)
    models = (module, layer) if to_paddle else (layer, module)
    assert auto_diff(*models, X, layer_map=layer_map, **EASY)
    np.testing.assert_array_equal(layer.block[1].weight.numpy(), module.down.weight.detach().numpy().T)


def test_a_changed_gradient_in_a_residual_block_is_found_run_after_run() -> None:
    """A block hands back the sum of two ways; a recorder that is used again must see both of them."""

    def net(kind: object, hooked: bool = False) -> object:
        framework = paddle if kind is paddle.nn.Layer else torch

        class Block(kind):
            def __init__(self, wrong: bool) -> None:
                super().__init__()
                self.linear, self.wrong = framework.nn.Linear(12, 12), wrong

            def forward(self, x: object) -> object:
                h = self.linear(x)
                if self.wrong:
                    h.register_hook(lambda gradient: gradient * 3)
                h += x
                return framework.nn.functional.relu(h)

        class Net(kind):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two, self.three = Block(False), Block(hooked), Block(False)

            def forward(self, x: object) -> object:
                return self.three(self.two(self.one(x)))

        return Net()

    base = net(torch.nn.Module)
    for _ in range(2):
        result = auto_diff(base, net(paddle.nn.Layer), X, **EASY)
        assert result, result
        shares = {one.raw for one in result.findings if one.place == "gradient of input"}
        assert {"Module.two.Block.backward.0", "Module.three.Block.backward.0"} <= shares
        result = auto_diff(base, net(paddle.nn.Layer, hooked=True), X, **EASY)
        assert (result.first.phase, result.first.raw) == ("backward", "Module.two.linear.Linear.backward.0")


def test_q_k_and_v_of_paddle_are_one_layer_in_torch_and_the_other_way_round() -> None:
    class Joined(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = torch.nn.Linear(6, 18), torch.nn.Linear(6, 6)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.out(q * k + v)

    class PaddleJoined(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.qkv, self.out = paddle.nn.Linear(6, 18), paddle.nn.Linear(6, 6)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            return self.out(q * k + v)

    class Apart(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (torch.nn.Linear(6, 6) for _ in range(4))

        def forward(self, x):
            return self.out(self.q(x) * self.k(x) + self.v(x))

    class PaddleApart(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (paddle.nn.Linear(6, 6) for _ in range(4))

        def forward(self, x):
            return self.out(self.q(x) * self.k(x) + self.v(x))

    x = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
    for joined, apart in ((Joined(), PaddleApart()), (PaddleJoined(), Apart())):
        layer_map = LayerMap()
        layer_map.group([joined.qkv], [apart.q, apart.k, apart.v])
        for pair in ((joined, apart), (apart, joined)):
            assert auto_diff(*pair, x, layer_map=layer_map, atol=1e-5, rtol=1e-5, quiet=True)
