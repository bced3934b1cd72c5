"""Element types by meaning: Float32, torch.float32 and paddle.float32 are one type."""

from __future__ import annotations

_EPSILON = {
    "float64": 2.0**-52,
    "float32": 2.0**-23,
    "float16": 2.0**-10,
    "bfloat16": 2.0**-7,
    "float8_e4m3fn": 2.0**-3,
    "float8_e4m3fnuz": 2.0**-3,
    "float8_e5m2": 2.0**-2,
    "float8_e5m2fnuz": 2.0**-2,
    "complex64": 2.0**-23,
    "complex128": 2.0**-52,
}
_SAME = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32", "bool_": "bool"}


def canonical(dtype: str | None) -> str | None:
    """The framework-free name of a dtype; other texts (Python classes) stay as they are."""
    if dtype is None or dtype.startswith("<"):
        return dtype
    name = dtype.rpartition(".")[2].lower()
    return _SAME.get(name, name)


def epsilon(dtype: str | None) -> float:
    """The machine epsilon of a dtype, 0 for those that hold their values exactly."""
    return _EPSILON.get(canonical(dtype) or "", 0.0)
