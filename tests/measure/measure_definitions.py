"""What the numbers mean, written down once more with plain Python and numpy, slowly and without any cleverness."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors.elements import HostTensor

NARROW = {name for name in STORAGE if name.startswith(("float8", "bfloat16"))} | {"float16", "float32"}
FLOAT8 = {  # mantissa bits, bias
    "float8_e4m3fn": (3, 7),
    "float8_e4m3fnuz": (3, 8),
    "float8_e5m2": (2, 15),
    "float8_e5m2fnuz": (2, 16),
}


def host(dtype: str, stored: Any, shape: tuple[int, ...] | None = None) -> HostTensor:
    data = np.asarray(stored, dtype=STORAGE[dtype]).reshape(-1)
    return HostTensor(dtype, (data.size,) if shape is None else shape, data)


def values(tensor: HostTensor) -> NDArray[Any]:
    """The exact numbers that a tensor's elements stand for: float64, complex128, or integers as Python objects."""
    if tensor.dtype == "bfloat16":
        codes = [struct.unpack(">f", struct.pack(">HH", code, 0))[0] for code in range(0x10000)]
        return np.array(codes)[tensor.data]
    if tensor.dtype.startswith("float8"):
        return np.array([float8_value(tensor.dtype, code) for code in range(256)])[tensor.data]
    if tensor.dtype.startswith("complex"):
        return tensor.data.astype(np.complex128)
    return tensor.data.astype(np.float64)


def float8_value(dtype: str, code: int) -> float:
    if dtype == "float8_e8m0fnu":
        return math.nan if code == 255 else 2.0 ** (code - 127)
    mantissa_bits, bias = FLOAT8[dtype]
    sign = -1.0 if code & 0x80 else 1.0
    exponent = (code & 0x7F) >> mantissa_bits
    mantissa = code & ((1 << mantissa_bits) - 1)
    if dtype.endswith("fnuz") and code == 0x80:
        return math.nan
    if dtype == "float8_e4m3fn" and code & 0x7F == 0x7F:
        return math.nan
    if dtype == "float8_e5m2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


def relative_errors(target: NDArray[Any], golden: NDArray[Any], kind: Any) -> NDArray[Any]:
    """|(N - B) / B|, each step rounded to ``kind``; epsilon is added to both where B is zero."""
    n, b = target.astype(kind), golden.astype(kind)
    eps = np.finfo(kind).eps
    with np.errstate(all="ignore"):
        n = np.where(b == 0, n + eps, n).astype(kind)
        b = np.where(b == 0, b + eps, b).astype(kind)
        return np.abs((n - b) / b)


def pair_by_definition(target: HostTensor, golden: HostTensor) -> dict[str, Any]:
    """Every field of PairMetrics for two tensors with the same shape and more than one element, unrounded."""
    n, b = values(target), values(golden)
    nan_n, nan_b, inf_n, inf_b = np.isnan(n), np.isnan(b), np.isinf(n), np.isinf(b)
    inf_places = (inf_n != inf_b) & (nan_n == nan_b)
    inf_values = inf_n & inf_b & ~nan_n & ~nan_b & (n != b)
    finite = np.isfinite(n) & np.isfinite(b)
    same_places = bool((nan_n == nan_b).all() and (inf_n == inf_b).all())
    equal = (n == b) | (nan_n & nan_b)
    found: dict[str, Any] = {
        "status": "ok" if same_places else "N/A",
        "identical": bool(equal.all()) and exactly_equal(target, golden),
        "nan_only_target": int((nan_n & ~nan_b).sum()),
        "nan_only_golden": int((nan_b & ~nan_n).sum()),
        "inf_differs": int((inf_places | inf_values).sum()),
        "elements": n.size,
    }
    gap, reference = math.sqrt((np.abs(n[finite] - b[finite]) ** 2).sum()), math.sqrt((np.abs(b[finite]) ** 2).sum())
    found["relative_norm"] = 0.0 if gap == 0 else math.inf if reference == 0 else gap / reference
    n, b = np.where(finite, n, 0).real, np.where(finite, b, 0).real
    kind = np.float32 if {target.dtype, golden.dtype} <= NARROW else np.float64
    relative = relative_errors(n, b, kind)
    norms = math.sqrt((n * n).sum()), math.sqrt((b * b).sum())
    tiny = [norm <= np.finfo(np.float64).eps for norm in norms]
    found |= {
        "cosine": 1.0 if all(tiny) else math.nan if any(tiny) else (n * b).sum() / (norms[0] * norms[1]),
        "euclid": math.sqrt(((n - b) ** 2).sum()),
        "max_abs": float(np.abs(n - b).max()),
        "max_rel": float(relative.max()),
        "one_thousandth": float((relative < kind(0.001)).sum() / n.size),
        "five_thousandths": float((relative < kind(0.005)).sum() / n.size),
    }
    return found


def exactly_equal(target: HostTensor, golden: HostTensor) -> bool:
    wide = {"int64", "uint64"}
    if not wide & {target.dtype, golden.dtype}:
        return True
    sides = []
    for tensor in (target, golden):
        whole = tensor.dtype.startswith(("int", "uint", "bool"))
        numbers = tensor.data.tolist() if whole else values(tensor).real.tolist()
        if not whole and not np.isfinite(numbers).all():
            return False
        sides.append([int(number) for number in numbers])
    return sides[0] == sides[1]
