"""Paddle's tensors are held, not copied, until something is written: what was recorded is what was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
import pytest
import torch

from twinprobe import auto_diff
from twinprobe._record.memory.engine import aliases

X = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
EASY = {"atol": 1e-5, "rtol": 1e-5, "quiet": True}


def by_element(h: Any) -> Any:
    h[:] = h.detach() * 2
    return h


def by_value(h: Any) -> Any:
    h.set_value(h.numpy() * 2)
    return h


def by_memory(h: Any) -> Any:
    array = np.from_dlpack(h.detach())
    passed_on = h * 1  # noted after the memory was handed out, before it is written to
    array *= 2
    return h + passed_on * 0


class Layer(paddle.nn.Layer):
    """What the first layer gives is doubled in some way before the second takes it."""

    def __init__(self, write: Callable[[Any], Any]) -> None:
        super().__init__()
        self.one, self.two = paddle.nn.Linear(8, 8), paddle.nn.Linear(8, 8)
        self.write = write

    def forward(self, x: Any) -> Any:
        return self.two(self.write(self.one(x)))


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(self.one(x) * 2)


WRITES = {
    "method": lambda h: h.multiply_(paddle.to_tensor(2.0)),
    "scale": lambda h: h.scale_(2.0),
    "element": by_element,
    "value": by_value,
    "copy": lambda h: h.detach().copy_(h.detach() * 2, True) + h * 0,
    "memory": by_memory,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("reference", ["first", "second"])
def test_an_output_that_is_overwritten_is_compared_as_it_was_given(write: Callable[[Any], Any], reference: str) -> None:
    models = Layer(write), Module()
    result = auto_diff(*(models if reference == "first" else models[::-1]), X, **EASY)
    outputs = {one.raw: one for one in result.findings if one.phase == "forward" and one.place == "output"}
    assert not outputs["Module.one.Linear.forward.0"].differs
    assert not outputs["Module.two.Linear.forward.0"].differs
    assert not aliases._waiting


def test_parameters_are_compared_as_they_were_when_the_layer_ran() -> None:
    class Changing(Layer):
        def forward(self, x: Any) -> Any:
            h = super().forward(x)
            with paddle.no_grad():
                self.one.weight.set_value(self.one.weight * 3)
                self.two.bias.zero_()
            return h

    result = auto_diff(Module(), Changing(lambda h: h * 2), X, **EASY)
    weights = [one for one in result.findings if one.place == "parameter"]
    assert len(weights) == 4
    assert not any(one.differs for one in weights)


def twice(output: Any) -> Any:
    """A loss that runs a backward pass of its own before: the second one adds to the gradients of the first."""
    output.sum().backward(retain_graph=True)
    return output.mean()


def test_gradients_of_a_first_pass_are_those_before_a_second_one_adds_to_them() -> None:
    result = auto_diff(Module(), Layer(lambda h: h * 2), {"x": X}, loss_fns=[twice, twice], **EASY)
    first, second = (
        [one for one in result.findings if one.phase == "gradients" and f"parameters_grad.{number}" in one.raw]
        for number in (0, 1)
    )
    assert result
    assert len(first) == len(second) == 4


class Forked(paddle.nn.Layer):
    """Three uses of what the first layer gives: its gradient is added up where the first part of it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (paddle.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Any) -> Any:
        h = self.one(x)
        return self.two(h) + self.three(h) + h


class TorchForked(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (torch.nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.one(x)
        return self.two(h) + self.three(h) + h


def test_a_share_of_a_gradient_and_the_whole_of_it_are_not_taken_for_one() -> None:
    result = auto_diff(TorchForked(), Forked(), {"x": X}, **EASY)
    places = {one.place for one in result.findings if one.phase == "backward"}
    assert result
    assert places == {"gradient of output", "gradient of input"}


class Rows(paddle.nn.Layer):
    def forward(self, ids: Any, table: Any) -> Any:
        return paddle.nn.functional.embedding(ids, table, sparse=True)


class Table(paddle.nn.Layer):
    """A layer that is handed a parameter whose gradient is rows of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rows, self.last = self.create_parameter([10, 8]), Rows(), paddle.nn.Linear(8, 8)

    def forward(self, ids: Any) -> Any:
        return self.last(self.rows(ids, self.table))


def test_a_gradient_of_rows_passes_a_watched_layer() -> None:
    model = Table()
    assert auto_diff(model, model, {"ids": paddle.to_tensor([[1, 2, 3]])}, auto_weights=False, quiet=True)


def bent(nn: Any) -> type:
    """A model whose activation also goes around it: the gradient that leaves it is added to where it lies."""
    base = getattr(nn, "Layer", None) or nn.Module

    class Bent(base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.bend, self.last = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            return self.last(self.bend(y) + y)

    return Bent


def test_a_gradient_that_is_added_to_after_it_was_noted_is_noted_anew() -> None:
    models = bent(torch.nn)(), bent(paddle.nn)()
    result = auto_diff(*models, ({"x": torch.tensor(X)}, {"x": paddle.to_tensor(X)}), **EASY)
    assert result, result.first


class Sharing(paddle.nn.Layer):
    """Two models of one layer: clearing gradients before the second run frees those of the first."""

    def __init__(self, shared: Any, factor: float) -> None:
        super().__init__()
        self.shared, self.factor = shared, factor

    def forward(self, x: Any) -> Any:
        return self.shared(x) * self.factor


def test_gradients_of_a_parameter_that_both_models_have_are_those_of_each() -> None:
    shared = paddle.nn.Linear(8, 8)
    x = paddle.to_tensor(X)
    result = auto_diff(Sharing(shared, 1.0), Sharing(shared, 3.0), x, auto_weights=False, **EASY)
    gaps = {one.tensor: one.gap for one in result.findings if one.phase == "gradients"}
    once = shared(x).mean()
    shared.clear_gradients()
    once.backward()
    expected = abs(shared.bias.grad.numpy()).max() * 2  # three times it against once
    assert abs(gaps["bias"].max_abs - expected) < 1e-6


def test_gradients_of_each_step_are_read_before_the_optimizer_clears_them() -> None:
    layer, module = Layer(lambda h: h * 2), Module()
    optimizers = [paddle.optimizer.SGD(0.1, layer.parameters()), torch.optim.SGD(module.parameters(), 0.1)]
    result = auto_diff(module, layer, {"x": X}, optimizers=optimizers[::-1], steps=3, **EASY)
    assert result
    assert {one.step for one in result.findings if one.phase == "gradients"} == {0, 1, 2}


def test_a_second_pass_over_an_input_that_gets_a_gradient() -> None:
    """Paddle itself crashed in it while an input of a layer had an identity with a backward of its own before it."""
    x, y = paddle.to_tensor(X, stop_gradient=False), torch.tensor(X, requires_grad=True)
    layer, module = Layer(lambda h: h * 2), Module()
    result = auto_diff(module, layer, (y, x), loss_fns=[twice, twice], **EASY)
    assert result
    handed_on = [
        one for one in result.findings if (one.raw, one.place) == ("Module.one.Linear.backward.0", "gradient of input")
    ]
    assert len(handed_on) == 1
