"""Tensors in host memory: measured at once, without copying where the memory allows it."""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, sqrt
from typing import Any

import numpy as np
import torch

from twinprobe._measure.engine import engine_for
from twinprobe._measure.loops.sums import BLOCK, FLOATS
from twinprobe._measure.sketch import measured, measured_at, sketch
from twinprobe._measure.statistics import Statistics, crc32, statistics, statistics_at, xor64
from twinprobe._record.entries import KERNELS_AFTER, Row, load_kernels_beside
from twinprobe._record.torch.placements import placement_of
from twinprobe._runs.dtypes import STORAGE, dtype_name
from twinprobe._runs.sketches import PARTIAL
from twinprobe._runs.tensors.elements import HostTensor

_short = {getattr(torch, name): (name, width) for name, width in FLOATS.items()}
_measured = 0


def packed(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """The distinct elements as one dense run, in any order, and how often each of them counts.

    Transposed tensors are read in memory order, broadcast ones once: statistics do not depend on the order.
    """
    if tensor.is_contiguous():
        return tensor, 1
    repeats = 1
    strides = tensor.stride()
    if 0 in strides:
        for dim, stride in enumerate(strides):
            if stride == 0 and tensor.shape[dim] > 1:
                repeats *= tensor.shape[dim]
                tensor = tensor.narrow(dim, 0, 1)
    if _dense(tensor.shape, tensor.stride()):
        return tensor.as_strided((tensor.numel(),), (1,)), repeats
    return tensor.contiguous(), repeats


@lru_cache(maxsize=4096)
def _dense(shape: torch.Size, strides: tuple[int, ...]) -> bool:
    expected = 1
    for stride, size in sorted(pair for pair in zip(strides, shape, strict=True) if pair[1] != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def repeated(values: Statistics, repeats: int) -> Statistics:
    """The statistics of a tensor in which every element occurs ``repeats`` times."""
    if repeats == 1 or values.norm is None:
        return values
    root = isqrt(repeats)
    factor = root if root * root == repeats else sqrt(repeats)
    return values._replace(norm=values.norm * factor, nan=values.nan * repeats, inf=values.inf * repeats)


def host_tensor(tensor: torch.Tensor) -> HostTensor | None:
    """A dense host tensor as the kernels take it; None for element types that they do not know."""
    name = dtype_name(tensor.dtype)
    if name not in STORAGE:
        return None
    if tensor.is_conj() or tensor.is_neg():  # memory holds something else
        tensor = tensor.resolve_conj().resolve_neg()
    return HostTensor(name, tuple(tensor.shape), np.asarray(_Memory(tensor, STORAGE[name])))


class _Memory:
    """A dense host tensor's elements for numpy. ``Tensor.numpy()`` would forbid the tensor's storage to be resized ever
    after, and so would end the training of a model that is sharded: FSDP frees its parameters like this."""

    def __init__(self, tensor: torch.Tensor, storage: str) -> None:
        self._owner = tensor  # numpy keeps this object alive, and this one the memory
        self.__array_interface__ = {
            "version": 3,
            "shape": (tensor.numel(),),
            "typestr": np.dtype(storage).str,
            "data": (tensor.data_ptr(), False),
        }


def _count() -> None:
    global _measured  # noqa: PLW0603
    if _measured < KERNELS_AFTER:
        _measured += 1
        if _measured == KERNELS_AFTER:
            load_kernels_beside()


LARGEST_COPY = 1 << 28  # bytes; a larger view that repeats its elements gets no sketch


def host_measures(tensor: torch.Tensor) -> tuple[Statistics | None, bytes | None]:
    """Statistics and sketch of a host tensor, in one pass where its floats lie one after the other."""
    _count()
    # A sketch tells elements apart by their place: the order of a transposed view's memory will not do.
    if not tensor.is_contiguous():
        if tensor.nbytes > LARGEST_COPY and not _dense(tensor.shape, tensor.stride()):
            return host_statistics(tensor), None
        tensor = tensor.detach().contiguous()
    known = _short.get(tensor.dtype)
    if known is not None:
        size, address = tensor.numel(), tensor.data_ptr()
        name, width = known
        if not address % width:
            return measured_at(name, address, size)
    host = host_tensor(tensor.detach())
    return (host_statistics(tensor), None) if host is None else measured(host)


def shard_sketch(tensor: Any, local: torch.Tensor) -> Row | None:
    """The sketch of a DTensor's part on this rank, counted by its place in the whole: those of all ranks add up.

    ``local`` is that part as a plain tensor: a DTensor may hold one that a collective still writes to.

    None where it is the whole tensor, where the place is not known, and for parts on a device, which are marked local.
    """
    placements = tensor.placements
    plain = all(type(one).__name__ in ("Shard", "Replicate", "Partial") for one in placements)
    if not plain or not local.is_cpu or not local.numel() or all(one.is_replicate() for one in placements):
        return None
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:  # before 2.5
        from torch.distributed._tensor._utils import compute_local_shape_and_global_offset

    shape, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, placements)
    host = host_tensor(local.detach().contiguous())
    if host is None or tuple(shape) != host.shape:
        return None
    flags = PARTIAL if any(one.is_partial() for one in placements) else 0
    return Row(sketch=sketch(host, tensor.shape, offsets, flags=flags).tobytes())


def host_statistics(tensor: torch.Tensor) -> Statistics | None:
    """Statistics of a host tensor of any layout of strides."""
    _count()
    values = _of_few(tensor)
    if values is not None:
        return values
    dense, repeats = packed(tensor.detach())
    values = None if tensor.is_contiguous() else _of_few(dense)
    if values is None:
        host = host_tensor(dense)
        if host is None:
            return None
        values = statistics(host)
    return repeated(values, repeats)


def _of_few(tensor: torch.Tensor) -> Statistics | None:
    """The short way for what recorders meet most: few floats, one after the other."""
    known = _short.get(tensor.dtype)
    if known is None or not tensor.is_contiguous():
        return None
    size, address = tensor.numel(), tensor.data_ptr()
    name, width = known
    return statistics_at(name, address, size) if size <= BLOCK and not address % width else None


def host_digest(tensor: torch.Tensor, mode: str) -> str | float | None:
    """The checksum of a host tensor: ``md5`` (CRC-32) or ``xor``."""
    if mode == "md5" and tensor.dtype in _short and tensor.is_contiguous() and not tensor.is_neg():
        size = tensor.nbytes
        if size:  # as most are: straight from memory
            return f"{engine_for(0).crc32_at(tensor.data_ptr(), size):08x}"
    host = host_tensor(tensor.detach().contiguous())
    if host is None:
        return None
    return crc32(host) if mode == "md5" else xor64(host)


# Kinds of tensors: what each is called in a dump, and which plain tensor holds its values, if one does.

_PLAIN_DEVICES = frozenset({"cpu", "cuda", "mps", "npu", "xpu", "hpu"})
_DENSE = 1 << 28  # bytes: larger sparse tensors are measured by what they store


def measurable(tensor: torch.Tensor) -> bool:
    """Whether the values can be read straight from memory."""
    if tensor.layout is not torch.strided or tensor.device.type not in _PLAIN_DEVICES:
        return False
    return not (tensor.is_quantized or _functorch_level(tensor) or tensor.is_nested)


def describe(tensor: torch.Tensor) -> tuple[str, dict[str, Any] | None]:
    """The type text of an unusual tensor and its extra fields."""
    if _functorch_level(tensor):
        batched = torch._C._functorch.is_batchedtensor(tensor)
        return ("BatchedTensor" if batched else "GradTrackingTensor"), None
    kind = type(tensor)
    if kind.__name__ == "DTensor":
        return "torch.distributed.tensor.DTensor", placement_of(tensor)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return "torch.Tensor", None
    if kind.__module__.startswith("torch.") and kind.__name__ in {
        "FakeTensor",
        "AsyncCollectiveTensor",
        "NestedTensor",
    }:
        return f"{kind.__module__}.{kind.__name__}", None
    return "torch.Tensor", None


def plain_type(tensor: torch.Tensor) -> torch.Tensor | None:  # noqa: PLR0911
    """The plain tensor that holds an unusual tensor's values; None when there are none to read."""
    if _functorch_level(tensor):
        return None
    name = type(tensor).__name__
    if name == "FakeTensor" or tensor.device.type == "meta":
        return None
    if name == "DTensor":
        local = tensor.to_local()
        return local if type(local) is torch.Tensor else plain_type(local)
    if name == "AsyncCollectiveTensor":
        return tensor.trigger_wait()  # which the program will do as well, before anyone reads it
    with torch.no_grad():
        if tensor.is_quantized:
            return tensor.dequantize()
        if tensor.is_nested:
            return tensor.values() if tensor.layout is torch.jagged else None
        if tensor.layout in (torch.sparse_coo, torch.sparse_csr):
            # What is not stored is zero, and what is stored twice adds up: a sparse gradient is a dense one's equal.
            if tensor.numel() * tensor.element_size() <= _DENSE:
                return tensor.to_dense()
            return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor.values()
        if tensor.layout is not torch.strided:
            return tensor.values() if hasattr(tensor, "values") else None
        plain = tensor.as_subclass(torch.Tensor)
    return plain if measurable(plain) and _has_memory(plain) else None


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return bool(tensor.data_ptr()) or not tensor.numel()
    except RuntimeError:
        return False


def _functorch_level(tensor: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))
