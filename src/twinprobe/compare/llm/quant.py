"""Integers that stand for real numbers: value = (integer - offset) * scale."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.errors import DamagedTensor
from twinprobe.measure.decode import FLOAT32, numbers
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.inside import inside
from twinprobe.runs.llm.files import INPUT, Files, TensorFile, under
from twinprobe.runs.llm.tensor import open_llm_tensor
from twinprobe.runs.whole_file import whole_file

_QUANTISED = frozenset({"int8", "uint8"})
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_SCALES, _OFFSETS = ("inputScale", "scale", "quantScale"), ("inputOffset", "offset", "quantOffset")
_MOST_BYTES = 1 << 20


def is_quantised(tensors: list[HostTensor]) -> bool:
    """Whether these are 8-bit (or unpacked 4-bit) integers."""
    return all(tensor.dtype in _QUANTISED for tensor in tensors)


def dequantised(root: Path, token: str, files: Files, file: TensorFile, tensor: HostTensor) -> HostTensor:
    """The real numbers of an operator's integer output, by the scale and offset that the operator was given."""
    folder = _operator_folder(files, file)
    scale, offset = _from_param(root, under(token, file)), None
    if scale is None:
        found = list(_from_inputs(root, token, files.get(folder, ()), tensor))
        scale = next((values for values, is_scale in found if is_scale), None)
        offset = next((values for values, is_scale in found if not is_scale), None)
    else:
        scale, offset = scale[:1], scale[1:]
    if scale is None:
        raise DamagedTensor(
            "holds quantised integers, and neither the operator's parameters nor its inputs tell their scale",
            where=root / under(token, file),
        )
    return apply_scale(tensor, scale, offset)


def apply_scale(tensor: HostTensor, scale: NDArray[Any], offset: NDArray[Any] | None) -> HostTensor:
    """``(tensor - offset) * scale``, one scale for all or one for each entry of an axis."""
    values = numbers(tensor.dtype, tensor.data, FLOAT32).reshape(tensor.shape)
    if offset is not None and offset.size:
        values = values - _spread(offset, tensor.shape)
    values = values * _spread(scale, tensor.shape)
    return HostTensor("float32", tensor.shape, np.ascontiguousarray(values, np.float32).reshape(-1))


def _spread(factors: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    flat: NDArray[Any] = factors.reshape(-1)
    if flat.size == 1:
        return flat
    if shape and flat.size == shape[-1]:
        return flat
    if len(shape) > 1 and flat.size == shape[0]:
        return flat.reshape(-1, *([1] * (len(shape) - 1)))
    raise DamagedTensor(f"has {flat.size} scales for a tensor of the shape {list(shape)}")


def _operator_folder(files: Files, file: TensorFile) -> str:
    return next((folder for folder, listed in files.items() if file in listed), "")


def _from_param(root: Path, file: str) -> NDArray[Any] | None:
    """Scale and offset from op_param.json beside the folder of the file."""
    operator = file.rsplit("/", 2)[0]
    try:
        path = inside(root, f"{operator}/op_param.json")
        if path.stat().st_size > _MOST_BYTES:
            return None
        document = json.loads(whole_file(path))
    except (OSError, ValueError, RecursionError, DamagedTensor):
        return None
    flat = _flat(document) if isinstance(document, dict) else {}
    scale = next((flat[name] for name in _SCALES if flat.get(name)), None)
    offset = next((flat[name] for name in _OFFSETS if name in flat), 0.0)
    return None if scale is None else np.array([scale, offset], np.float32)


def _flat(document: dict[str, Any]) -> dict[str, float]:
    found = {}
    for key, value in document.items():
        if isinstance(value, dict):
            found.update({name: number for name, number in value.items() if isinstance(number, int | float)})
        elif isinstance(value, int | float):
            found[key] = value
    return {key: float(value) for key, value in found.items()}


def _from_inputs(
    root: Path, token: str, files: Iterable[TensorFile], tensor: HostTensor
) -> Iterator[tuple[NDArray[Any], bool]]:
    """Small inputs after the first: a float one is the scale, an integer one the offset."""
    for file in [file for file in files if file.io == INPUT][1:]:
        values = open_llm_tensor(root, under(token, file), linked=file.linked)
        if values.data.size not in (1, tensor.shape[-1] if tensor.shape else 1):
            continue
        if values.dtype in _FLOATS or values.dtype in _QUANTISED:
            yield numbers(values.dtype, values.data, FLOAT32), values.dtype in _FLOATS
