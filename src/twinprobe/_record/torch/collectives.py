"""torch.distributed: collectives and point-to-point calls by their public names, with the arguments as written."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FrameType
from typing import Any

import torch

from twinprobe._record.calls import words
from twinprobe._record.entries import without_values
from twinprobe._record.torch.hooks import is_compiling
from twinprobe._record.torch.tensors import silence
from twinprobe._record.torch.values import UNSEEN

# The name inside torch.distributed.distributed_c10d -> the public name that dumps use.
_PUBLIC = words(
    """
    send recv isend irecv broadcast all_reduce reduce all_gather gather scatter reduce_scatter _reduce_scatter_base
    _all_gather_base all_to_all_single all_to_all all_gather_into_tensor reduce_scatter_tensor batch_isend_irecv
    """
)
COLLECTIVE_NAMES = {name: name for name in _PUBLIC} | {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
# Buffers that are only written: their content before the call means nothing.
_RECEIVES: dict[str, tuple[int | str, ...]] = {
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
    "all_gather": (0, "tensor_list"),
    "gather": (1, "gather_list"),
    "scatter": (0, "tensor"),
    "reduce_scatter": (0, "output"),
    "_reduce_scatter_base": (0, "output"),
    "_all_gather_base": (0, "output_tensor"),
    "all_to_all_single": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "reduce_scatter_tensor": (0, "output"),
}
# Those that add up what the ranks hold.
_REDUCTIONS = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "_reduce_scatter_base")
_NARROW = (torch.float16, torch.bfloat16)
# P2POp asks whether its operation *is* one of these; the function mode sees them called directly.
_COMPARED = frozenset({"isend", "irecv"})
_ASYNC = frozenset({"isend", "irecv", "batch_isend_irecv"})


class Collectives:
    """Wraps the public functions while recording; what was imported before is seen by the function mode."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self._originals: list[tuple[Any, str, Any]] = []
        self.inside = False

    def attach(self) -> None:
        """Put wrappers in place of the public names."""
        if not torch.distributed.is_available():
            return
        # Before collectives told the function mode of themselves, nobody but a wrapper sees these two.
        seen = _COMPARED if hasattr(torch.distributed.distributed_c10d, "has_torch_function") else frozenset[str]()
        for name in sorted(set(COLLECTIVE_NAMES.values()) - seen):
            original = getattr(torch.distributed, name, None)
            if original is not None:
                wrapper = self._wrapper(name, original)
                self._originals.append((torch.distributed, name, original))
                setattr(torch.distributed, name, _Equal(original, wrapper) if name in _COMPARED else wrapper)
        # FSDP2 fills gathered parameters and then sets their version back: what was noted before is not there now. No
        # public hook tells of that; a torch without this class leaves versions as they are.
        home = getattr(torch.autograd, "_unsafe_preserve_version_counter", None)
        if home is None:
            return
        inner = home.__exit__

        @functools.wraps(inner)
        def leave(context: Any, *args: Any) -> Any:
            result = inner(context, *args)
            self._recorder.work("measuring after a hidden write", self._recorder.registry.forget)
            return result

        self._originals.append((home, "__exit__", inner))
        home.__exit__ = leave

    def detach(self) -> None:
        """Put the originals back."""
        for home, name, original in self._originals:
            setattr(home, name, original)
        self._originals.clear()
        self.inside = False

    def _wrapper(self, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            recorder = self._recorder
            compiled = is_compiling() or recorder.mode.aside > 0  # asked first: what follows is compiled
            if compiled or not recorder.active or recorder.muted or self.inside:
                return original(*args, **kwargs)
            return self.record(name, original, args, kwargs, sys._getframe(1), kwargs)

        return wrapped

    def record(self, name: str, func: Any, args: Any, kwargs: Any, frame: FrameType, written: dict[str, Any]) -> Any:
        """Run one collective and record it with the keywords as ``written``. Its result is what its arguments hold
        afterwards."""
        recorder = self._recorder
        engine = recorder.engine
        prefix = f"Distributed.{name}."
        try:
            entry = f"{prefix}{engine.count(prefix)}.forward"
        except Exception as error:
            recorder.trouble("counting a collective's calls", error)
            return recorder.mode.pass_on(UNSEEN, func, args, kwargs)
        parts: dict[str, Any] | None = None
        with silence():
            recorder.work("measuring before a collective", recorder.registry.forget)
            try:
                calls = recorder.modules.calls
                engine.link(entry, calls[-1].name if calls else recorder.loose_parent())
                engine.filter.entering(entry)
                if recorder.forward and recorder.wants(entry):
                    engine.stack(entry, frame)
                    parts = self._inputs(name, args, written)
            except Exception as error:
                parts = recorder.mark("recording a collective's inputs", error, parts)
        self.inside = True
        try:
            result = func(*args, **kwargs)
        finally:
            self.inside = False
        with silence():
            # Buffers are written without a new version.
            recorder.work("measuring after a collective", recorder.registry.forget)
            try:
                if parts is not None:
                    if recorder.outputs:
                        parts["output"] = self._outputs(name, args, written, result)
                    recorder.emit_forward(entry, parts)
            except Exception as error:
                recorder.trouble("recording a collective's outputs", error)
            recorder.work("measuring after a collective", recorder.registry.forget)
            engine.filter.leaving(entry)
        return result

    def _inputs(self, name: str, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if not self._recorder.inputs:
            return {}
        empty = _RECEIVES.get(name, ())
        capture = self._recorder.capture
        return {
            "input_args": [None if at in empty else capture(item) for at, item in enumerate(args)],
            "input_kwargs": {key: None if key in empty else capture(item, key) for key, item in kwargs.items()},
        }

    def _outputs(self, name: str, args: Any, kwargs: dict[str, Any], result: Any) -> list[Any]:
        capture = self._recorder.capture
        outputs = [capture(item) for item in args] + [capture(item, key) for key, item in kwargs.items()]
        if name in _ASYNC or (kwargs.get("async_op") and result is not None):
            outputs = [without_values(item) for item in outputs]  # still on its way; waiting would change the run
        if name == "isend" and outputs:
            outputs[0] = None
        return outputs


class ReducedGradients:
    """Knows the 16-bit types in which gradients are reduced, at every level: communication hooks of DDP choose one.

    Collectives are recorded at some levels only, but the precision of gradients depends on these types.
    """

    def __init__(self) -> None:
        self._originals: list[tuple[str, Any]] = []
        self.types: set[str] = set()

    def attach(self) -> None:
        """Watch the reductions."""
        for name in _REDUCTIONS if torch.distributed.is_available() and not self._originals else ():
            original = getattr(torch.distributed, name, None)
            if original is not None:
                self._originals.append((name, original))
                setattr(torch.distributed, name, self._watched(original))

    def detach(self) -> None:
        """Put the originals back."""
        for name, original in self._originals:
            setattr(torch.distributed, name, original)
        self._originals.clear()

    def _watched(self, original: Any) -> Any:
        @functools.wraps(original)
        def reduce(*args: Any, **kwargs: Any) -> Any:
            # What is compiled stays as it is. Gradients are reduced while backward runs.
            if not is_compiling() and torch._C._current_graph_task_id() != -1:
                tensor = args[0] if args else next(iter(kwargs.values()), None)
                if isinstance(tensor, torch.Tensor) and tensor.dtype in _NARROW:
                    self.types.add(str(tensor.dtype))
            return original(*args, **kwargs)

        return reduce


class _Equal:
    """A wrapper that passes for what it wraps when the two are compared."""

    def __init__(self, original: Any, wrapper: Any) -> None:
        functools.update_wrapper(self, original)
        self._original = original
        self._wrapper = wrapper

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapper(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)


def as_written(func: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Without the keywords that only repeat a default: the function mode sees them all."""
    try:
        defaults = {key: one.default for key, one in inspect.signature(func).parameters.items()}
    except (TypeError, ValueError):
        return dict(kwargs)
    return {key: item for key, item in kwargs.items() if key not in defaults or item is not defaults[key]}
