"""Which kernel measures what, with which constants. Imported only where there is a device."""

from __future__ import annotations

from typing import Any

import numpy as np

from twinprobe._measure import cuda_crc, cuda_kernels
from twinprobe._measure.cuda import Kernel

kernels: Any = cuda_kernels
checksum_kernels: Any = cuda_crc

CHUNK = 65536
_CRC_WORDS = 32768
_XOR_WORDS = 16384


class Variants:
    """The kernels of one device, each with the number of elements that fill one slot."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._known: dict[Any, tuple[Kernel, int]] = {}

    def statistics(self, dtype: Any, aligned: bool) -> tuple[Kernel, int]:
        """The kernel for one element type."""
        key = (dtype, aligned)
        if key not in self._known:
            self._known[key] = self._floats(dtype, aligned) if dtype.is_floating_point else self._integers(dtype)
        return self._known[key]

    def checksums(self, mode: str) -> tuple[Kernel, int]:
        """The kernel for ``md5`` or ``xor``."""
        if mode not in self._known:
            self._known[mode] = self._crc() if mode == "md5" else self._xor()
        return self._known[mode]

    def _floats(self, dtype: Any, aligned: bool) -> tuple[Kernel, int]:
        acc = kernels.tl.float64 if dtype == self._torch.float64 else kernels.tl.float32
        constants = {"ACC": acc, "ALIGNED": aligned, "CHUNK": CHUNK, "BLOCK": 2048}
        return Kernel(kernels.float_statistics, (self._example(dtype),), constants, {"num_warps": 8}), CHUNK

    def _integers(self, dtype: Any) -> tuple[Kernel, int]:
        constants = {"CHUNK": CHUNK, "BLOCK": 1024}
        return Kernel(kernels.integer_statistics, (self._example(dtype),), constants, {}), CHUNK

    def _xor(self) -> tuple[Kernel, int]:
        return Kernel(kernels.xor_chunks, (), {"CHUNK": _XOR_WORDS, "BLOCK": 1024}, {}), _XOR_WORDS

    def _crc(self) -> tuple[Kernel, int]:
        from twinprobe._measure.crc32 import power_of_x, table_of, times

        stride = 32 * 128
        lanes = [times(power_of_x(-32 * stride), power_of_x(32 * (128 - lane))) for lane in range(128)]
        by_stride = self._torch.from_numpy(table_of(power_of_x(stride)).reshape(-1).copy())
        factors = self._torch.from_numpy(np.array(lanes, dtype=np.uint32))
        constants = (by_stride.to(self._device), factors.to(self._device))
        return Kernel(checksum_kernels.crc_chunks, constants, {}, {"num_warps": 4}), _CRC_WORDS

    def _example(self, dtype: Any) -> Any:
        stored = self._torch.uint8 if dtype == self._torch.bool else dtype
        return self._torch.empty(16, dtype=stored, device=self._device)
