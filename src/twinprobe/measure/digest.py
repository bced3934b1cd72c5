"""Checksums of a tensor's bytes."""

from __future__ import annotations

import zlib

import numpy as np

from twinprobe.measure.decode import COMPLEX, FLOAT64, INTEGERS, numbers
from twinprobe.runs.host_tensor import HostTensor

_WORD = 8


def crc32(tensor: HostTensor) -> str:
    """CRC-32 of the bytes in the tensor's own dtype, as eight hexadecimal digits."""
    return f"{zlib.crc32(tensor.data.view(np.uint8).data):08x}"


def xor64(tensor: HostTensor) -> str | float:
    """All 64-bit words of the bytes combined by exclusive or; a single number (0-d) stands for itself."""
    if tensor.shape == () and tensor.dtype not in COMPLEX:
        if tensor.dtype == "bool" or tensor.dtype in INTEGERS:
            return _hexadecimal(int(tensor.data[0]))
        return float(numbers(tensor.dtype, tensor.data, FLOAT64)[0])
    octets = tensor.data.view(np.uint8)
    whole = octets.size - octets.size % _WORD
    combined = int(np.bitwise_xor.reduce(octets[:whole].view("<u8")))
    rest = octets[whole:].tobytes().ljust(_WORD, b"\0")
    return _hexadecimal(combined ^ int.from_bytes(rest, "little"))


def _hexadecimal(word: int) -> str:
    return f"0x{word & 0xFFFF_FFFF_FFFF_FFFF:016x}"
