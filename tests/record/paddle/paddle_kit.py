"""Paddle as the shared tests see it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle_networks
from framework_kit import Kit, Observe
from paddle_networks import Convolutional, PostNorm, Recomputed, Residual, batch

import twinprobe.paddle
from models import small_transformer_paddle
from twinprobe._record.paddle.recorder import PaddleRecorder, with_subclasses


def _ones(x: Any) -> Any:
    return paddle.ones(x.shape)


def _plus_one(x: Any) -> Any:
    return x + 1


def _all_ones(x: Any) -> Any:
    return np.ones_like(x)


def _set_item(x: Any) -> None:
    x[0] = 7.0


def _optimized(x: Any) -> None:
    """One step of a optimiser whose rate is 1, on a gradient of ones."""
    update, rate = paddle._C_ops.sgd_, paddle.ones([1])
    update(x, rate, -_ones(x), None, False)


def _write_to_the_array(x: Any) -> None:
    np.from_dlpack(x.detach())[...] = 1.0


class PaddleKit(Kit):
    api = twinprobe.paddle
    networks = paddle_networks
    transformer = small_transformer_paddle
    container = "Module"
    base = paddle.nn.Layer
    method = "forward"
    make_recorder = PaddleRecorder
    models = {  # noqa: RUF012
        "in-place and dropout": Residual,
        "recompute": Recomputed,
        "convolution": Convolutional,
        "many users of one tensor": PostNorm,
    }
    writes = {  # noqa: RUF012
        "an element": (_set_item, lambda x: np.concatenate([[7.0], x[1:]])),
        "memory of an array": (_write_to_the_array, _all_ones),
        "memory of the inner tensor": (
            lambda x: x.get_tensor().set(np.ones(4, np.float32), paddle.CPUPlace()),
            _all_ones,
        ),
        "method": (lambda x: x.add_(_ones(x)), _plus_one),
        "copy": (lambda x: x.copy_(_ones(x), True), _all_ones),
        "value": (lambda x: x.set_value(_ones(x)), _all_ones),
        "view": (lambda x: x.view([2, 2]).add_(paddle.ones([2, 2])), _plus_one),
        "function with an output": (lambda x: paddle.assign(_ones(x), output=x), _all_ones),
        "operation of an optimiser": (_optimized, _plus_one),
        "data": (lambda x: setattr(x, "data", _ones(x)), _all_ones),
    }
    script = (
        f"import os, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        """
import paddle
from paddle_networks import Residual, batch
from twinprobe.paddle import PrecisionDebugger
{before}
model = Residual()
debugger = PrecisionDebugger(dump_path={path!r}, level="mix", task={task!r})
for step in range(3):
    debugger.start(model=model)
    model(batch()).sum().backward()
    {inside}
    debugger.stop()
    debugger.step()
print("trained to the end", flush=True)
"""
    )
    seed_script = """
import paddle
from twinprobe.paddle import seed_all
seed_all(7)
first = paddle.rand([3]).tolist()
seed_all(7, mode=True)
assert paddle.rand([3]).tolist() == first
layer = paddle.nn.Dropout(0.5)
assert layer(paddle.ones([100])).tolist() == [1.0] * 100
assert paddle.nn.functional.dropout(x=paddle.ones([100]), p=0.5).tolist() == [1.0] * 100
assert paddle.nn.functional.dropout(paddle.ones([100]), p=0.5).tolist() == [1.0] * 100
print("repeated")
"""

    def tensor(self, values: Any) -> paddle.Tensor:
        return paddle.to_tensor(np.asarray(values, np.float32))

    def array(self, tensor: paddle.Tensor) -> np.ndarray:
        return np.array(tensor.numpy())

    def bfloat16(self, values: Any) -> tuple[Any, Callable[[], Any], str]:
        value = self.tensor(values).astype("bfloat16")
        return value, lambda: value.astype("float32"), "Tensor.astype.0.forward"

    def differentiate(self, function: Callable[..., Any], *inputs: Any) -> None:
        for one in inputs:
            one.stop_gradient = False
        function(*inputs).backward()

    def trained(self, make: Callable[[], Any], observe: Observe, **options: Any) -> list[np.ndarray]:
        paddle.seed(5)
        model = make()
        optimizer = paddle.optimizer.AdamW(parameters=model.parameters(), learning_rate=0.01)
        seen: list[np.ndarray] = []
        with observe(model):
            for _ in range(2):
                inputs = batch()
                inputs.stop_gradient = False
                with paddle.amp.auto_cast(level="O1", dtype="bfloat16") if options.get("amp") else nullcontext():
                    output = model(inputs)
                    loss = output.astype("float32").pow(2).mean()
                loss.backward()
                seen += [self.array(one) for one in (output, loss, inputs.grad)]
                seen += [self.array(one.grad) for one in model.parameters() if one.grad is not None]
                optimizer.step()
                optimizer.clear_grad()
        state = [one for one in optimizer.state_dict().values() if isinstance(one, paddle.Tensor)]
        seen += [self.array(one) for one in (*model.state_dict().values(), *state)]
        return [*seen, paddle.rand([4]).numpy()]

    def gradients(self, transformer: Any) -> list[np.ndarray]:
        small_transformer_paddle.train_step(transformer)
        return [self.array(one.grad) for one in transformer.parameters()]

    def functions(self) -> dict[str, Any]:
        found = {"call": paddle.nn.Layer.__call__, "apply": vars(paddle.autograd.PyLayer).get("apply")}
        for space in (paddle, paddle.nn.functional, paddle._C_ops, paddle._legacy_C_ops, paddle.Tensor):
            found |= {f"{space!r}.{name}": value for name, value in vars(space).items()}
        return found

    def hooks(self, model: Any) -> int:
        return sum(bool(layer._forward_pre_hooks or layer._forward_post_hooks) for layer in model.sublayers())

    def optimizer_functions(self) -> dict[Any, Any]:
        kinds = with_subclasses(paddle.optimizer.Optimizer)
        found = {(kind, name): vars(kind).get(name) for kind in kinds for name in ("step", "minimize")}
        found["inside"] = vars(paddle.nn.clip.ClipGradBase)["__call__"]
        return found | {"before": paddle.nn.utils.clip_grad_norm_}
