"""The tensors of a row in memory: cards joined, fused parts laid side by side, integers dequantised."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe._measure.elements import FLOAT32, numbers
from twinprobe._runs.llm.files import INPUT, TensorFile, TokenFolder
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.whole_files import inside, whole_file
from twinprobe.errors import DamagedTensor

# Integers that stand for real numbers: value = (integer - offset) * scale.

_QUANTISED = frozenset({"int8", "uint8"})
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_SCALES, _OFFSETS = ("inputScale", "scale", "quantScale"), ("inputOffset", "offset", "quantOffset")
_MOST_BYTES = 1 << 20


def is_quantised(tensors: list[HostTensor]) -> bool:
    """Whether these are 8-bit (or unpacked 4-bit) integers."""
    return all(tensor.dtype in _QUANTISED for tensor in tensors)


def dequantised(token: TokenFolder, file: TensorFile, tensor: HostTensor) -> HostTensor:
    """The real numbers of an operator's integer output, by the scale and offset that the operator was given."""
    folder = next((folder for folder, listed in token.files.items() if file in listed), "")
    scale, offset = _from_param(token.root, token.name(file)), None
    if scale is None:
        found = list(_from_inputs(token, token.files.get(folder, ()), tensor))
        scale = next((values for values, is_scale in found if is_scale), None)
        offset = next((values for values, is_scale in found if not is_scale), None)
    else:
        scale, offset = scale[:1], scale[1:]
    if scale is None:
        raise DamagedTensor(
            "holds quantised integers, and neither the operator's parameters nor its inputs give their scale",
            where=token.root / token.name(file),
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
    if flat.size == 1 or (shape and flat.size == shape[-1]):
        return flat
    if len(shape) > 1 and flat.size == shape[0]:
        return flat.reshape(-1, *([1] * (len(shape) - 1)))
    raise DamagedTensor(f"has {flat.size} scales for a tensor of shape {list(shape)}")


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
    token: TokenFolder, files: Iterable[TensorFile], tensor: HostTensor
) -> Iterator[tuple[NDArray[Any], bool]]:
    """Small inputs after the first: a float one is the scale, an integer one the offset."""
    for file in [file for file in files if file.io == INPUT][1:]:
        values = token.open(file)
        if values.data.size not in (1, tensor.shape[-1] if tensor.shape else 1):
            continue
        if values.dtype in _FLOATS or values.dtype in _QUANTISED:
            yield numbers(values.dtype, values.data, FLOAT32), values.dtype in _FLOATS


@dataclass(frozen=True, slots=True)
class Loaded:
    """Both sides of a row, ready to be measured, and what was done to make them comparable."""

    target: HostTensor
    golden: HostTensor
    dtypes: tuple[str, str]
    shapes: tuple[str, str]
    remark: str = ""


def load_row(
    files: tuple[tuple[TensorFile, ...], tuple[TensorFile, ...]],
    tokens: tuple[TokenFolder, TokenFolder],
    *,
    partial: bool,
) -> Loaded:
    """Open both sides of a row."""
    sides = [[token.open(file) for file in listed] for token, listed in zip(tokens, files, strict=True)]
    dtypes, shapes = (
        (";".join(map(text, sides[0])), ";".join(map(text, sides[1])))
        for text in (lambda tensor: f"torch.{tensor.dtype}", lambda tensor: str(list(tensor.shape)))
    )
    if len(files[0]) == len(files[1]) == 1 and not partial:
        target, golden = sides[0][0], sides[1][0]
        if target.dtype == golden.dtype and target.data.size == golden.data.size:
            return Loaded(target, golden, dtypes, shapes)
    remarks = []
    for side in (0, 1):
        if is_quantised(sides[side]) and not is_quantised(sides[1 - side]) and len(files[side]) == 1:
            sides[side] = [dequantised(tokens[side], files[side][0], sides[side][0])]
            remarks.append("dequantised")
    sizes = [sum(tensor.data.size for tensor in side) for side in sides]
    for side in (0, 1):
        cards = len(tokens[side].cards)
        summed = partial and sizes[0] == sizes[1]
        if cards > 1 and (summed or sizes[side] * cards == sizes[1 - side]):
            sides[side] = _all_cards(tokens[side], files[side], sides[1 - side], summed=summed)
            remarks.append(f"{cards} cards {'summed' if summed else 'joined'}")
    joined = _side_by_side(sides[0], sides[1]), _side_by_side(sides[1], sides[0])
    return Loaded(*joined, dtypes, shapes, ", ".join(remarks))


def _side_by_side(parts: list[HostTensor], other: list[HostTensor]) -> HostTensor:
    """Parts of a fused projection, put together along the last axis as the fused one has them."""
    if len(parts) == 1:
        return parts[0]
    arrays = [numbers(part.dtype, part.data, FLOAT32).reshape(-1, part.shape[-1]) for part in parts if part.shape]
    if len({len(array) for array in arrays}) != 1 or len(arrays) != len(parts):
        raise DamagedTensor("the parts of a fused projection have different numbers of rows")
    whole = np.concatenate(arrays, axis=1)
    shape = other[0].shape if prod(other[0].shape) == whole.size else whole.shape
    return HostTensor("float32", shape, whole.reshape(-1))


def _all_cards(
    token: TokenFolder, files: tuple[TensorFile, ...], other: list[HostTensor], *, summed: bool
) -> list[HostTensor]:
    if len(files) == 1:
        shards = token.shards(files[0])
        if not summed and len(other) == 1 and shards[0].shape:
            widths = token.cut_widths(files[0], shards[0].shape[-1])
            if widths:  # every card's share of a fused projection, which the other side has fused as well
                return [_tensor(_joined_parts(_arrays(shards), widths))]
        return [_joined(shards, other, summed=summed)]
    return [_joined(token.shards(file), other[at : at + 1] or other, summed=summed) for at, file in enumerate(files)]


def _joined(shards: list[HostTensor], other: list[HostTensor], *, summed: bool) -> HostTensor:
    """One tensor of all cards: their sum, or their concatenation in the shape of the other side's."""
    arrays = _arrays(shards)
    whole: NDArray[Any]
    if summed:
        whole = np.add.reduce(arrays)
    elif len(other) > 1:
        whole = _joined_parts(arrays, [part.shape[-1] // len(arrays) for part in other if part.shape])
    else:
        whole = np.concatenate(arrays, axis=_split_axis(arrays[0].shape, other[0].shape, len(arrays)))
    return _tensor(whole)


def _tensor(whole: NDArray[Any]) -> HostTensor:
    return HostTensor("float32", whole.shape, np.ascontiguousarray(whole).reshape(-1))


def _arrays(shards: list[HostTensor]) -> list[NDArray[Any]]:
    arrays = [numbers(shard.dtype, shard.data, FLOAT32).reshape(shard.shape) for shard in shards]
    if len({array.shape for array in arrays}) != 1:
        raise DamagedTensor(f"the cards hold tensors of different shapes: {[array.shape for array in arrays]}")
    return arrays


def _joined_parts(arrays: list[NDArray[Any]], widths: list[int]) -> NDArray[Any]:
    """Every card fused its share of several projections: put the shares of each projection together first."""
    if sum(widths) != arrays[0].shape[-1]:
        return np.concatenate(arrays, axis=-1)
    cuts = np.cumsum(widths)[:-1]
    parts = [np.split(array, cuts, axis=-1) for array in arrays]
    return np.concatenate([card[index] for index in range(len(widths)) for card in parts], axis=-1)


def _split_axis(shard: tuple[int, ...], whole: tuple[int, ...], cards: int) -> int:
    """Along which axis the cards cut the tensor: where the sizes differ once axes of length 1 are left out."""
    kept = [axis for axis, length in enumerate(shard) if length != 1]
    sizes, wanted = [shard[axis] for axis in kept], [length for length in whole if length != 1]
    if len(sizes) == len(wanted):
        cut = [index for index, (length, full) in enumerate(zip(sizes, wanted, strict=True)) if length * cards == full]
        if len(cut) == 1 and all(sizes[index] == wanted[index] for index in range(len(sizes)) if index != cut[0]):
            return kept[cut[0]]
    return len(shard) - 1
