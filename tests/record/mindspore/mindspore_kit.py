"""MindSpore as the shared tests see it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import mindspore_networks
import numpy as np
from framework_kit import Kit, Observe
from mindspore import nn, ops
from mindspore.experimental import optim
from mindspore.ops import assign_add as imported_assign_add
from mindspore.ops import functional as old_functions
from mindspore.ops.function.clip_func import _ClipByGlobalNorm
from mindspore_networks import Convolutional, PostNorm, Residual, WithJitted, batch, seeded

import twinprobe.mindspore
from models import small_transformer_mindspore
from twinprobe._record.mindspore.framework import JitExecutor
from twinprobe._record.mindspore.recorder import MindSporeRecorder

_ASSIGN_ADD = ops.AssignAdd()


def _ones(x: Any) -> Any:
    return ms.Tensor(np.ones(x.shape, np.float32))


def _plus_one(x: Any) -> Any:
    return x + 1


def _all_ones(x: Any) -> Any:
    return np.ones_like(x)


def _first_is_7(x: Any) -> Any:
    return np.concatenate([[7.0], x[1:]])


def _set_item(x: Any) -> None:
    x[0] = 7.0


def _write_to_the_array(x: Any) -> None:
    x.asnumpy()[...] = 1.0


@ms.jit
def _compiled(x: Any, y: Any) -> Any:
    ops.assign_add(x, y)
    return x


def _recomputed() -> nn.Cell:
    net = PostNorm()
    net.attention[1].recompute()
    return net


class MindSporeKit(Kit):
    api = twinprobe.mindspore
    networks = mindspore_networks
    transformer = small_transformer_mindspore
    container = "Cell"
    base = nn.Cell
    method = "construct"
    make_recorder = MindSporeRecorder
    models = {  # noqa: RUF012
        "dropout": Residual,
        "convolution": Convolutional,
        "many users of one tensor": PostNorm,
        "recompute": _recomputed,
        "a compiled cell": WithJitted,
    }
    writes = {  # noqa: RUF012
        "an element": (_set_item, _first_is_7),
        "an element of a view": (lambda x: _set_item(x.view(-1)), _first_is_7),
        "memory of an array": (_write_to_the_array, _all_ones),
        "function": (lambda x: ops.assign_add(x, _ones(x)), _plus_one),
        "imported function": (lambda x: imported_assign_add(x, _ones(x)), _plus_one),
        "function of an old name": (lambda x: old_functions.assign_add(x, _ones(x)), _plus_one),
        "primitive of a module": (lambda x: _ASSIGN_ADD(x, _ones(x)), _plus_one),
        "new primitive": (lambda x: ops.Assign()(x, _ones(x)), _all_ones),
        "method": (lambda x: x.copy_(_ones(x)), _all_ones),
        "method of a view": (lambda x: x.view(2, 2).copy_(_ones(x).view(2, 2)), _all_ones),
        "other memory": (lambda x: x.assign_value(_ones(x)), _all_ones),
        "compiled function": (lambda x: _compiled(x, _ones(x)), _plus_one),
        "data": (lambda x: setattr(x, "data", _ones(x)), _all_ones),
    }
    script = (
        f"import os, signal, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        """
import mindspore as ms
from mindspore_networks import Residual, batch
from twinprobe.mindspore import PrecisionDebugger
{before}
model = Residual()
debugger = PrecisionDebugger(dump_path={path!r}, level="mix", task={task!r})
for step in range(3):
    debugger.start(model=model)
    ms.grad(lambda x: model(x).sum())(batch())
    {inside}
    debugger.stop()
    debugger.step()
print("trained to the end", flush=True)
"""
    )
    seed_script = """
import mindspore as ms, numpy as np
from twinprobe.mindspore import seed_all
seed_all(7)
first = ms.ops.rand(3).asnumpy().tolist()
seed_all(7, mode=True)
assert ms.ops.rand(3).asnumpy().tolist() == first
cell = ms.nn.Dropout(p=0.5)
cell.set_train()
ones = ms.Tensor(np.ones(100, np.float32))
assert cell(ones).asnumpy().tolist() == [1.0] * 100
assert ms.ops.dropout(input=ones, p=0.5).asnumpy().tolist() == [1.0] * 100
assert ms.ops.dropout(ones, p=0.5).asnumpy().tolist() == [1.0] * 100
print("repeated")
"""

    def tensor(self, values: Any) -> ms.Tensor:
        return ms.Tensor(np.asarray(values, np.float32))

    def array(self, tensor: ms.Tensor) -> np.ndarray:
        return np.array(tensor.asnumpy())

    def bfloat16(self, values: Any) -> tuple[Any, Callable[[], Any], str]:
        value = self.tensor(values).astype(ms.bfloat16)
        return value, lambda: value.to(ms.float32), "Tensor.to.0.forward"

    def differentiate(self, function: Callable[..., Any], *inputs: Any) -> None:
        ms.grad(function, tuple(range(len(inputs))))(*inputs)

    def trained(self, make: Callable[[], Any], observe: Observe, **_: Any) -> list[np.ndarray]:
        model = seeded(make)
        model.set_train()
        optimizer = nn.Adam(model.trainable_params(), learning_rate=0.01)
        step = ms.value_and_grad(lambda x: ops.pow(model(x), 2).mean(), 0, model.trainable_params())
        seen: list[np.ndarray] = []
        with observe(model):
            for _ in range(2):
                loss, (inputs, gradients) = step(batch())
                seen += [self.array(one) for one in (loss, inputs, *gradients)]
                optimizer(gradients)
        seen += [self.array(one) for one in (*model.get_parameters(), *optimizer.get_parameters())]
        return [*seen, ops.rand(4).asnumpy(), np.asarray(ms.get_rng_state().asnumpy())]

    def gradients(self, transformer: Any) -> list[np.ndarray]:
        return [self.array(one) for one in small_transformer_mindspore.train_step(transformer)[1]]

    def functions(self) -> dict[str, Any]:
        found = {f"ops.{name}": getattr(ops, name) for name in dir(ops)}
        found |= {f"F.{name}": getattr(old_functions, name) for name in dir(old_functions)}
        found |= {f"mint.{name}": getattr(ms.mint, name) for name in dir(ms.mint)}
        found |= {f"Tensor.{name}": vars(ms.Tensor)[name] for name in vars(ms.Tensor)}
        found |= {f"jit.{name}": vars(JitExecutor)[name] for name in vars(JitExecutor)}
        return found | {"call": nn.Cell.__call__, "primitive": ops.MatMul.__call__, "assign": ops.Assign.__call__}

    def hooks(self, model: Any) -> int:
        return sum(bool(cell._forward_hook or cell._forward_pre_hook) for _, cell in model.cells_and_names())

    def optimizer_functions(self) -> dict[Any, Any]:
        return {kind: vars(kind).get("__call__") for kind in (nn.Optimizer, optim.Optimizer, _ClipByGlobalNorm)}
