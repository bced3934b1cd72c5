"""PyTorch's own values as leaves: tensors, sizes, dtypes, devices, process groups, point-to-point operations."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from twinprobe._record.render import NOT_MINE
from twinprobe._record.rows import Leaf, Note, Row
from twinprobe._record.torch.host import host_digest, host_measures, host_statistics

_DTYPE_KEYS = frozenset({"dtype", "output_dtype"})


class TorchValues:
    """The part of capturing that knows PyTorch."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def tensor(self, value: torch.Tensor) -> Note:
        """Note one tensor."""
        return self._recorder.book.note(value, self._recorder.save)  # type: ignore[no-any-return]

    def __call__(self, value: Any, key: str | None) -> Any:  # noqa: PLR0911
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        if isinstance(value, torch.Size):
            return Leaf({"type": "torch.Size", "value": [int(size) for size in value]})
        if isinstance(value, torch.dtype):
            return Leaf({"type": "torch.dtype", "value": str(value)} if key in _DTYPE_KEYS else {})
        if isinstance(value, torch.device):
            return Leaf({"type": "torch.device", "value": str(value)} if key == "device" else {})
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
            operation = str(getattr(value, "op", value)).replace("ReduceOp.", "")
            return Leaf({"type": "torch.distributed.ReduceOp", "value": operation})
        if isinstance(value, distributed.P2POp):
            return self._point_to_point(value)
        return NOT_MINE

    def _point_to_point(self, value: Any) -> Leaf:
        group = value.group if value.group is not None else torch.distributed.group.WORLD
        ranks = torch.distributed.get_process_group_ranks(group)
        return Leaf(
            {
                "class_type": "torch.distributed.P2POp",
                "tensor": self.tensor(value.tensor),
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
            config = self._recorder.config
            if config.sketches:
                row.values, row.sketch = host_measures(tensor)
            else:
                row.values = host_statistics(tensor)
            digest = config.digest
            if digest:
                row.digest = host_digest(tensor, digest)
            if self._recorder.save:
                row.payload = tensor
        return Note("numpy.ndarray", str(value.dtype), tuple(value.shape), row, None, self._recorder.save)


def group_id(ranks: list[int]) -> str:
    """The name of a process group that two runs agree on: the checksum of its list of ranks."""
    return f"{zlib.crc32(str(ranks).encode()):08x}"
