"""PyTorch's own values as leaves: tensors, sizes, dtypes, devices, process groups, point-to-point operations."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Mapping
from typing import Any

import torch

from twinprobe._record.render import NOT_MINE
from twinprobe._record.rows import Leaf, Note, Row
from twinprobe._record.torch.host import host_digest, host_statistics
from twinprobe._record.torch.tensors import TensorBook

_DTYPE_KEYS = frozenset({"dtype", "output_dtype"})


class TorchValues:
    """The part of capturing that knows PyTorch. ``save`` is set while a call's real tensors are wanted."""

    def __init__(self, book: TensorBook, digest: str | None) -> None:
        self._book = book
        self._digest = digest
        self.save = False

    def tensor(self, value: torch.Tensor) -> Note:
        """Note one tensor."""
        return self._book.note(value, self.save)

    def __call__(self, value: Any, key: str | None) -> Any:  # noqa: PLR0911
        if isinstance(value, torch.Tensor):
            return self._book.note(value, save=self.save)
        if isinstance(value, torch.Size):
            return Leaf({"type": "torch.Size", "value": [int(size) for size in value]})
        if isinstance(value, torch.dtype):
            return Leaf({"type": "torch.dtype", "value": str(value)} if key in _DTYPE_KEYS else {})
        if isinstance(value, torch.device):
            return Leaf(_device(value, key))
        if isinstance(value, torch.memory_format):
            return Leaf({"type": "torch.memory_format", "format": str(value).rpartition(".")[2]})
        if type(value).__module__ == "numpy" and type(value).__name__ == "ndarray":
            return self._array(value)
        if type(value).__module__.startswith("torch"):
            return self._from_torch(value)
        if isinstance(value, str) and key == "device":
            return Leaf({"type": "torch.device", "value": value})
        return NOT_MINE

    def _from_torch(self, value: Any) -> Any:
        name = type(value).__name__
        if name in {"SymInt", "SymFloat", "SymBool"}:
            return None
        distributed = getattr(torch, "distributed", None)
        if distributed is None or not distributed.is_available():
            return NOT_MINE
        if isinstance(value, distributed.ProcessGroup):
            ranks = distributed.get_process_group_ranks(value)
            return Leaf({"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": group_id(ranks)})
        if name in {"ReduceOp", "RedOpType"} or isinstance(value, distributed.ReduceOp):
            return Leaf({"type": "torch.distributed.ReduceOp", "value": _reduce_name(value)})
        if isinstance(value, distributed.P2POp):
            return self._point_to_point(value)
        return NOT_MINE

    def _point_to_point(self, value: Any) -> Leaf:
        group = value.group if value.group is not None else torch.distributed.group.WORLD
        ranks = torch.distributed.get_process_group_ranks(group)
        return Leaf(
            {
                "class_type": "torch.distributed.P2POp",
                "tensor": self._book.note(value.tensor, save=self.save),
                "op": value.op.__name__,
                "peer": value.peer,
                "tag": value.tag,
                "group_id": group_id(ranks),
            }
        )

    def _array(self, value: Any) -> Note:
        row = Row()
        if value.size and value.dtype.kind in "biufc":
            tensor = torch.from_numpy(value.copy())
            row.values = host_statistics(tensor)
            if self._digest:
                row.digest = host_digest(tensor, self._digest)
            if self.save:
                row.payload = tensor
        return Note("numpy.ndarray", str(value.dtype), tuple(value.shape), row, None, self.save)


def group_id(ranks: list[int]) -> str:
    """The name of a process group that two runs agree on: the checksum of its list of ranks."""
    return f"{zlib.crc32(str(ranks).encode()):08x}"


def _device(value: torch.device, key: str | None) -> dict[str, Any]:
    if key == "device":
        return {"type": "torch.device", "value": str(value)}
    return {}


def _reduce_name(value: Any) -> str:
    op = getattr(value, "op", value)
    return str(op).replace("ReduceOp.", "")


# Tensors inside nested arguments.

_DEPTH_LIMIT = 400
_tensor_type, _parameter_type = torch.Tensor, torch.nn.Parameter
_SCALARS = frozenset({int, float, bool, str, type(None)})


def tensors_in(value: Any, found: list[torch.Tensor], depth: int = 0) -> list[torch.Tensor]:
    """Append every tensor inside ``value``, in the order in which it is recorded."""
    kind = type(value)
    if kind is _tensor_type or kind is _parameter_type:
        found.append(value)
    elif kind in _SCALARS:
        return found
    elif isinstance(value, torch.Tensor):
        found.append(value)
    elif depth < _DEPTH_LIMIT:
        if isinstance(value, list | tuple):
            for item in value:
                tensors_in(item, found, depth + 1)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            for field in dataclasses.fields(value):
                tensors_in(getattr(value, field.name, None), found, depth + 1)
        elif isinstance(value, Mapping):
            for item in value.values():
                tensors_in(item, found, depth + 1)
    return found


def differentiable(value: Any, found: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those that could carry a gradient by their element type."""
    return [one for one in tensors_in(value, found) if one.is_floating_point() or one.is_complex()]
