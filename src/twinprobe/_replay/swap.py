"""Run a model with golden's values at one place: does the rest agree once this place is mended?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from twinprobe._replay.recorded import as_torch
from twinprobe._runs.run import Run, open_run, run_folders
from twinprobe._runs.table import OUTPUT, TENSOR
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import BadInput, did_you_mean

Recorded = list[list[torch.Tensor]]  # the outputs of each call of a module


@contextmanager
def swap(
    model: torch.nn.Module,
    path: str,
    *,
    with_: torch.nn.Module | Run | str | os.PathLike[str] | torch.Tensor | Sequence[torch.Tensor],
    dtype: torch.dtype | None = None,
) -> Iterator[torch.nn.Module]:
    """Within the block the module at ``path`` of the model gives golden's values; afterwards the model is as it was.

    ``with_`` is golden's module, which then computes in place of the model's own (in ``dtype``, or in the dtype of its
    parameters), or what golden's module gave: a recording with tensors, or the tensors themselves. Recorded values take
    the place of the module's own; gradients still flow through the module.
    """
    try:
        module = model.get_submodule(path)
    except AttributeError:
        known = [name for name, _ in model.named_modules() if name]
        raise BadInput(f"the model has no module {path!r}", hint=did_you_mean(path, known).strip() or None) from None
    own = module.forward
    if isinstance(with_, torch.nn.Module):
        forward = _computing(with_, dtype)
    else:
        forward = _giving(path, own, _recorded(path, with_))
    before = module.__dict__.get("forward")  # a program may have put its own function there
    module.forward = forward
    try:
        yield model
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.forward = before


def _computing(golden: torch.nn.Module, dtype: torch.dtype | None) -> Any:
    """Golden's module on the target's inputs. Its parameters gather no gradients and its buffers stay as they are."""

    def moved(tensor: torch.Tensor, kind: torch.dtype | None, device: torch.device) -> torch.Tensor:
        floating = tensor.is_floating_point() and kind is not None
        return tensor.to(device=device, dtype=kind if floating else tensor.dtype)

    def forward(*args: Any, **kwargs: Any) -> Any:
        given = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        floats = [tensor for tensor in given if tensor.is_floating_point()]
        device = (floats or given or [torch.empty(0)])[0].device
        weights = [weight for weight in golden.parameters() if weight.is_floating_point()]
        inside = dtype or (weights[0].dtype if weights else None)
        state = {name: moved(tensor.detach(), dtype, device) for name, tensor in golden.named_parameters()}
        state |= {name: moved(tensor.detach().clone(), dtype, device) for name, tensor in golden.named_buffers()}
        args, kwargs = tree_map(
            lambda value: moved(value, inside, device) if isinstance(value, torch.Tensor) else value, (args, kwargs)
        )
        output = torch.func.functional_call(golden, state, args, kwargs)
        outside = floats[0].dtype if floats else None
        return tree_map(
            lambda value: moved(value, outside, device) if isinstance(value, torch.Tensor) else value, output
        )

    return forward


def _giving(path: str, own: Any, recorded: Recorded) -> Any:
    """The module's own call, with recorded values in place of its outputs."""
    calls = 0

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        leaves, shape = tree_flatten(own(*args, **kwargs))
        places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        if calls >= len(recorded):
            raise BadInput(f"{path} is called more than {len(recorded)} times, which is all that golden recorded")
        values = recorded[calls]
        shapes = [
            [tuple(tensor.shape) for tensor in tensors] for tensors in ([leaves[place] for place in places], values)
        ]
        if shapes[0] != shapes[1]:
            raise BadInput(f"{path} returns tensors of the shapes {shapes[0]}, golden's are {shapes[1]}")
        calls += 1
        for place, value in zip(places, values, strict=True):
            leaf = leaves[place]
            leaves[place] = _WithGradientOf.apply(leaf, value.to(device=leaf.device, dtype=leaf.dtype))
        return tree_unflatten(leaves, shape)

    return forward


class _WithGradientOf(torch.autograd.Function):  # type: ignore[misc]
    """The second value with the gradient of the first."""

    @staticmethod
    def forward(_ctx: Any, own: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return value.clone()

    @staticmethod
    def backward(_ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


def _recorded(path: str, given: Any) -> Recorded:
    if isinstance(given, torch.Tensor):
        return [[given]]
    if not isinstance(given, Run | str | os.PathLike):
        values = list(given)
        if not values or not all(isinstance(value, torch.Tensor) for value in values):
            raise BadInput("with_ is a module, a recording, a tensor or a list of tensors")
        return [values]
    run = given if isinstance(given, Run) else _open(Path(given))
    calls = [index for index, op in enumerate(run.op_names)
             if op.is_module and op.body == path and op.direction == "forward"]  # fmt: skip
    if not calls:
        known = [op.body for op in run.op_names if op.is_module]
        raise BadInput(f"holds no call of the module {path!r}", where=run.path, hint=did_you_mean(path, known) or None)
    recorded: Recorded = []
    for call in sorted(calls, key=lambda index: run.op_names[index].call):
        rows = run.table.filter(
            (run.table["op"] == call) & (run.table["role"] == OUTPUT) & (run.table["kind"] == TENSOR)
        )
        if rows["file"].null_count():
            raise BadInput(
                f"{run.ops[call]}: its tensors were not kept", where=run.path, hint="record with task tensor"
            )
        recorded.append([as_torch(open_named(run.tensor_folder, name)) for name in rows["file"]])
    return recorded


def _open(path: Path) -> Run:
    """The run at this place; of a folder of steps and ranks the first."""
    try:
        return open_run(path)
    except BadInput:
        if not path.is_dir():
            raise
        return open_run(run_folders(path)[0].path)
