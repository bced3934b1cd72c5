"""Cases in MindSpore and PaddlePaddle: the same small transformer, the same changes. Each framework is imported only
where its own interpreter records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judge import cases

LAYERS, WIDTH, INNER, HEADS, VOCABULARY, BATCH, TOKENS = 3, 64, 128, 4, 96, 2, 16
SIZE = WIDTH // HEADS


@dataclass
class Net:
    """A model, its step, and how a parameter gets another value."""

    model: Any
    step: Callable[[], float]
    assign: Callable[[Any, Any], None]
    gelu: Callable[[Any], Any]
    warm_up: Callable[[], Any]
    set_rate: Callable[[float], Any]
    warms_up: bool = False


def both(decorate: Callable[..., Any], *calls: str, **more: Any) -> Callable[..., Any]:
    """Register a case for both frameworks."""

    def register(change: Callable[[Net], None]) -> Callable[[Net], None]:
        for framework in FAMILIES:
            decorate(framework, *calls, framework=framework, dtypes="float32", **more)(change)
        return change

    return register


def build_mindspore() -> Net:
    """In MindSpore, with value_and_grad and SGD."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn, ops

    class Block(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm((WIDTH,)), nn.LayerNorm((WIDTH,))
            self.q, self.k, self.v, self.out = (nn.Dense(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Dense(WIDTH, INNER), nn.Dense(INNER, WIDTH)
            self.scale, self.residual, self.activation, self.prepare = SIZE**-0.5, True, ops.relu, None
            self.divides, self.scales_queries, self.axis = False, False, -1

        def construct(self, x: Any) -> Any:
            x = self.prepare(x) if self.prepare else x
            h = self.norm_1(x)
            shape = (BATCH, TOKENS, HEADS, SIZE)
            q, k, v = (one(h).reshape(shape).permute(0, 2, 1, 3) for one in (self.q, self.k, self.v))
            scores = ops.matmul(q * self.scale if self.scales_queries else q, ops.transpose(k, (0, 1, 3, 2)))
            if not self.scales_queries:
                scores = scores / math.sqrt(SIZE) if self.divides else scores * self.scale
            mixed = ops.matmul(ops.softmax(scores, self.axis), v).permute(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDTH)
            x = x + self.out(mixed) if self.residual else self.out(mixed)
            return x + self.down(self.activation(self.up(self.norm_2(x))))

    class Model(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.CellList([Block() for _ in range(LAYERS)])
            self.head = nn.Dense(WIDTH, VOCABULARY)

        def construct(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    ids = ms.Tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, TOKENS)).astype(np.int32))
    model = Model()
    _spread(model.trainable_params(), lambda one, value: one.set_data(ms.Tensor(value)))

    def loss() -> Any:
        return ops.cross_entropy(model(ids).reshape(-1, VOCABULARY), ids.reshape(-1))

    optimizer = nn.SGD(model.trainable_params(), 0.05)  # before recording: it copies every parameter

    def step() -> float:
        value, gradients = ms.value_and_grad(loss, None, optimizer.parameters)()
        optimizer(gradients)
        return float(value.asnumpy())

    def assign(parameter: Any, value: Any) -> None:
        parameter.set_data(ms.Tensor(value))

    return Net(model, step, assign, ops.gelu, loss, lambda rate: optimizer.learning_rate.set_data(ms.Tensor(rate)))


def build_paddle() -> Net:
    """In Paddle, with SGD."""
    import numpy as np
    import paddle
    from paddle import nn
    from paddle.nn import functional

    class Block(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
            self.scale, self.residual, self.activation, self.prepare = SIZE**-0.5, True, functional.relu, None
            self.divides, self.scales_queries, self.axis = False, False, -1

        def forward(self, x: Any) -> Any:
            x = self.prepare(x) if self.prepare else x
            h = self.norm_1(x)
            shape = [BATCH, TOKENS, HEADS, SIZE]
            q, k, v = (one(h).reshape(shape).transpose([0, 2, 1, 3]) for one in (self.q, self.k, self.v))
            scores = paddle.matmul(q * self.scale if self.scales_queries else q, k, transpose_y=True)
            if not self.scales_queries:
                scores = scores / math.sqrt(SIZE) if self.divides else scores * self.scale
            mixed = paddle.matmul(functional.softmax(scores, self.axis), v)
            mixed = mixed.transpose([0, 2, 1, 3]).reshape([BATCH, TOKENS, WIDTH])
            x = x + self.out(mixed) if self.residual else self.out(mixed)
            return x + self.down(self.activation(self.up(self.norm_2(x))))

    class Model(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, WIDTH)
            self.blocks = nn.LayerList([Block() for _ in range(LAYERS)])
            self.head = nn.Linear(WIDTH, VOCABULARY)

        def forward(self, ids: Any) -> Any:
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    ids = paddle.to_tensor(np.random.default_rng(0).integers(0, VOCABULARY, (BATCH, TOKENS)))
    model = Model()
    _spread(model.parameters(), lambda one, value: one.set_value(value))

    def loss() -> Any:
        return functional.cross_entropy(model(ids).reshape([-1, VOCABULARY]), ids.reshape([-1]))

    optimizer = paddle.optimizer.SGD(0.05, parameters=model.parameters())

    def step() -> float:
        value = loss()
        value.backward()
        optimizer.step()
        return float(value)

    return Net(model, step, lambda one, value: one.set_value(value), functional.gelu, loss, optimizer.set_lr)


def _spread(parameters: Any, assign: Callable[[Any, Any], None]) -> None:
    """Random values for every parameter, biases and norms too."""
    import numpy as np

    random = np.random.default_rng(5)
    for one in parameters:
        shape = tuple(one.shape)
        value = random.standard_normal(shape) * (0.12 if len(shape) > 1 else 0.1)
        is_gain = len(shape) == 1 and ("norm" in one.name and ("gamma" in one.name or "w_0" in one.name))
        assign(one, (value + is_gain).astype(np.float32))


FAMILIES: dict[str, Callable[[], Net]] = {"mindspore": build_mindspore, "paddle": build_paddle}


def record_case(case: cases.Case, side: str, dtype: str, level: str, task: str, folder: Path) -> dict[str, Any]:
    """Record one side of a case; dtype is float32."""
    assert dtype == "float32"
    if case.framework == "mindspore":
        from twinprobe.mindspore import record
    else:
        from twinprobe.paddle import record
    net = FAMILIES[case.framework]()
    if side == "target":
        case.change(net)
    with record(net.model, folder, level=level, task=task):
        if net.warms_up:
            net.warm_up()
        loss = net.step()
    updated = float(abs(net.model.head.bias.numpy()).sum())  # what the optimiser did
    return {"loss": loss, "digest": repr((loss, updated))}


def swapped(net: Net, one: Any, two: Any) -> None:
    """Exchange the values of two parameters."""
    first, second = one.numpy().copy(), two.numpy().copy()
    net.assign(one, second)
    net.assign(two, first)


@both(cases.bug, "blocks.1:*__mul__*", "blocks.1:mul*", kinds="argument factor")
def attention_scale(net: Net) -> None:
    """The scale of another head size."""
    net.model.blocks[1].scale *= 1.3


@both(cases.bug, "blocks.0.q:*", kinds="parameter")
def query_and_key_swapped(net: Net) -> None:
    """Two names mixed up in a converter."""
    swapped(net, net.model.blocks[0].q.weight, net.model.blocks[0].k.weight)


@both(cases.bug, "blocks.2.out:*", kinds="parameter transposition")
def square_weight_transposed(net: Net) -> None:
    """A weight of a framework that stores it the other way round."""
    weight = net.model.blocks[2].out.weight
    net.assign(weight, weight.numpy().T.copy())


@both(cases.bug, "blocks.1.down:*", kinds="parameter offset")
def bias_not_loaded(net: Net) -> None:
    """A key that the loader skipped."""
    bias = net.model.blocks[1].down.bias
    net.assign(bias, bias.numpy() * 0)


@both(cases.bug, "blocks.2:*add*", "blocks.2.norm_2:*", modules=("blocks.2", "blocks.2.norm_2"), kinds="missing")
def residual_forgotten(net: Net) -> None:
    """x = attention(x) instead of x = x + attention(x)."""
    net.model.blocks[2].residual = False


@both(
    cases.bug,
    "blocks.0:*gelu*",
    "blocks.0:*relu*",
    "blocks.0.down:*",
    modules=("blocks.0", "blocks.0.down"),
    kinds="function extra missing",
)
def gelu_instead_of_relu(net: Net) -> None:
    """The activation of another config."""
    net.model.blocks[0].activation = net.gelu


@both(cases.clean)
def divided_instead_of_multiplied(net: Net) -> None:
    """scores / sqrt(size) against scores * size**-0.5."""
    for block in net.model.blocks:
        block.divides = True


@both(cases.artefact)
def addition_of_zero(net: Net) -> None:
    """x + 0 in one block."""
    net.model.blocks[1].prepare = lambda x: x + 0


@both(cases.artefact)
def warm_up_pass(net: Net) -> None:
    """A forward pass before the step is recorded too."""
    net.warms_up = True


# The optimiser, from what it saw and did: its path is ``optimizer`` at every level.


@both(cases.bug, "optimizer:*", kinds="argument update")
def learning_rate_doubled(net: Net) -> None:
    """A rate that another schedule gave."""
    net.set_rate(0.1)


@both(cases.bug, "blocks.1.norm_2:*", kinds="argument function parameter")
def epsilon_of_a_norm(net: Net) -> None:
    """The default of another framework."""
    norm = net.model.blocks[1].norm_2
    if hasattr(norm, "layer_norm"):  # MindSpore: an attribute of the primitive
        from mindspore import ops

        norm.layer_norm = ops.LayerNorm(begin_norm_axis=-1, begin_params_axis=-1, epsilon=1e-3)
    else:
        norm._epsilon = 1e-3


@both(cases.bug, "blocks.0:*softmax*", kinds="argument transposition")
def softmax_over_queries(net: Net) -> None:
    """The axis of another layout of the scores."""
    net.model.blocks[0].axis = -2


@both(cases.bug, "blocks.2.k:*", kinds="parameter factor")
def weight_scaled_twice(net: Net) -> None:
    """A converter that folds a scale into the keys, which the model applies itself."""
    weight = net.model.blocks[2].k.weight
    net.assign(weight, weight.numpy() * 1.25)


@both(cases.clean)
def scores_from_scaled_queries(net: Net) -> None:
    """(q * scale) @ k against (q @ k) * scale."""
    for block in net.model.blocks:
        block.scales_queries = True
