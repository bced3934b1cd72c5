"""What an optimizer of Paddle saw and did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared_updates import *  # noqa: F403

from twinprobe.paddle import record


def test_names_and_rates_of_parameters_are_their_own(tmp_path: Path) -> None:
    """A parameter of the model itself; a rate that a parameter scales by its attribute, or its group does."""
    import paddle

    class Scaled(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.scale = self.create_parameter([2])
            self.shift = self.create_parameter([2], attr=paddle.ParamAttr(learning_rate=0.5))

        def forward(self, x: Any) -> Any:
            return (self.scale * x + self.shift).sum()

    for groups in (False, True):
        net = Scaled()
        rates = [{"params": [net.scale]}, {"params": [net.shift], "learning_rate": 0.25}]
        optimizer = paddle.optimizer.AdamW(0.1, parameters=rates if groups else net.parameters())
        folder = tmp_path / str(groups)
        with record(net, folder, level="L0"):
            net(paddle.ones([2])).backward()
            optimizer.step()
        data = updates(folder)  # noqa: F405
        assert [*data][:2] == ["Optimizer.scale.AdamW.0.forward", "Optimizer.shift.AdamW.0.forward"]
        lr = [entry["input_kwargs"]["lr"]["value"] for entry in [*data.values()][:2]]
        assert lr == [0.1, 0.025 if groups else 0.05]


def test_models_that_share_names_are_told_apart(tmp_path: Path) -> None:
    import paddle

    class Net(paddle.nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.fc = paddle.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return self.fc(x)

    nets = [Net(), Net()]
    optimizers = [paddle.optimizer.SGD(0.1, parameters=net.parameters()) for net in nets]
    with record(nets, tmp_path / "run", level="L0"):
        nets[1](nets[0](paddle.ones([2, 3]))).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    names = {name.partition(".fc.")[0] for name in updates(tmp_path / "run")}  # noqa: F405
    assert {"Optimizer.0", "Optimizer.1"} <= names


def test_parameters_that_a_function_leaves_out_do_not_decay(tmp_path: Path) -> None:
    import paddle

    net = paddle.nn.Linear(3, 3)
    kept = {net.weight.name}
    for name, optimizer in {
        "adamw": paddle.optimizer.AdamW(
            0.05, parameters=net.parameters(), weight_decay=0.2, apply_decay_param_fun=kept.__contains__
        ),
        "lamb": paddle.optimizer.Lamb(
            0.05, lamb_weight_decay=0.2, parameters=net.parameters(),
            exclude_from_weight_decay_fn=lambda parameter: parameter.name not in kept,
        ),
    }.items():  # fmt: skip
        with record(net, tmp_path / name, level="L0"):
            net(paddle.ones([2, 3])).sum().backward()
            optimizer.step()
            optimizer.clear_grad()
        data = updates(tmp_path / name)  # noqa: F405
        given = {key: one["input_kwargs"] for key, one in data.items() if "input_kwargs" in one}
        decay = {key.split(".")[1]: one["weight_decay"]["value"] for key, one in given.items() if "weight_decay" in one}
        assert decay == {"weight": 0.2, "bias": 0.0}
