"""The tensors of a row in memory: cards joined, fused parts laid side by side, integers dequantised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twinprobe.compare.llm.quant import dequantised, is_quantised
from twinprobe.compare.llm.rows import Row
from twinprobe.errors import DamagedTensor
from twinprobe.measure.decode import FLOAT32, numbers
from twinprobe.runs.host_tensor import HostTensor
from twinprobe.runs.llm.files import OUTPUT, Files, TensorFile, under
from twinprobe.runs.llm.tensor import open_llm_tensor


@dataclass(frozen=True, slots=True)
class Store:
    """Where the files of one token lie, and where those of the same token on all cards, this one included."""

    root: Path
    folder: str
    cards: tuple[str, ...]
    files: Files

    @property
    def base(self) -> str:
        """What stands before the names of the files."""
        return f"{self.root}/{self.folder}/" if self.folder else f"{self.root}/"

    def open(self, file: TensorFile) -> HostTensor:
        return open_llm_tensor(self.root, under(self.folder, file), linked=file.linked)

    def dequantised(self, file: TensorFile, tensor: HostTensor) -> HostTensor:
        """The real numbers that a file's integers stand for."""
        return dequantised(self.root, self.folder, self.files, file, tensor)

    def cut_widths(self, file: TensorFile, width: int) -> list[int]:
        """How an operator beside this tensor's own cuts a tensor of this width: fused q, k and v have three widths."""
        operator = file.file.rsplit("/", 2)[0]
        parent = operator.rpartition("/")[0]
        for folder, files in self.files.items():
            if folder.rpartition("/")[0] == parent and "split" in folder.rpartition("/")[2].lower():
                widths = [shape[-1] for shape in map(self._shape, files) if shape] if len(files) > 1 else []
                if len(widths) > 1 and sum(widths) == width:
                    return widths
        return []

    def _shape(self, file: TensorFile) -> tuple[int, ...]:
        return self.open(file).shape if file.io == OUTPUT else ()

    def shards(self, file: TensorFile) -> list[HostTensor]:
        """The tensor of every card, in their order."""
        return [open_llm_tensor(self.root, under(folder, file)) for folder in self.cards]


@dataclass(frozen=True, slots=True)
class Loaded:
    """Both sides of a row, ready to be measured, and what was done to make them comparable."""

    my: HostTensor
    golden: HostTensor
    dtypes: tuple[str, str]
    shapes: tuple[str, str]
    remark: str = ""


def load_row(row: Row, my: Store, golden: Store) -> Loaded:
    """Open both sides of a row."""
    stores, files = (my, golden), (row.my, row.golden)
    sides = [[store.open(file) for file in listed] for store, listed in zip(stores, files, strict=True)]
    dtypes, shapes = (_dtypes(sides[0]), _dtypes(sides[1])), (_shapes(sides[0]), _shapes(sides[1]))
    if len(row.my) == len(row.golden) == 1 and not row.partial:
        my_tensor, golden_tensor = sides[0][0], sides[1][0]
        if my_tensor.dtype == golden_tensor.dtype and my_tensor.data.size == golden_tensor.data.size:
            return Loaded(my_tensor, golden_tensor, dtypes, shapes)
    remarks = []
    for side in (0, 1):
        if is_quantised(sides[side]) and not is_quantised(sides[1 - side]) and len(files[side]) == 1:
            sides[side] = [stores[side].dequantised(files[side][0], sides[side][0])]
            remarks.append("dequantised")
    sizes = [sum(tensor.data.size for tensor in side) for side in sides]
    for side in (0, 1):
        cards = len(stores[side].cards)
        summed = row.partial and sizes[0] == sizes[1]
        if cards > 1 and (summed or sizes[side] * cards == sizes[1 - side]):
            sides[side] = _all_cards(stores[side], files[side], sides[1 - side], summed=summed)
            remarks.append(f"{cards} cards {'summed' if summed else 'joined'}")
    mine, theirs = _side_by_side(sides[0], sides[1]), _side_by_side(sides[1], sides[0])
    return Loaded(mine, theirs, dtypes, shapes, ", ".join(remarks))


def _dtypes(tensors: Sequence[HostTensor]) -> str:
    return ";".join([f"torch.{tensor.dtype}" for tensor in tensors])


def _shapes(tensors: Sequence[HostTensor]) -> str:
    return ";".join([str(list(tensor.shape)) for tensor in tensors])


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
    store: Store, files: tuple[TensorFile, ...], other: list[HostTensor], *, summed: bool
) -> list[HostTensor]:
    if len(files) == 1:
        shards = store.shards(files[0])
        if not summed and len(other) == 1 and shards[0].shape:
            widths = store.cut_widths(files[0], shards[0].shape[-1])
            if widths:
                return [_joined_fused(shards, widths)]
        return [_joined(shards, other, summed=summed)]
    return [_joined(store.shards(file), other[at : at + 1] or other, summed=summed) for at, file in enumerate(files)]


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
    return HostTensor("float32", whole.shape, np.ascontiguousarray(whole).reshape(-1))


def _joined_fused(shards: list[HostTensor], widths: list[int]) -> HostTensor:
    """Every card's share of a fused projection, which the other side has fused as well."""
    whole = _joined_parts(_arrays(shards), widths)
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
    return np.concatenate([card[at] for at in range(len(widths)) for card in parts], axis=-1)


def _split_axis(shard: tuple[int, ...], whole: tuple[int, ...], cards: int) -> int:
    """Along which axis the cards cut the tensor: where the sizes differ once axes of length 1 are left out."""
    kept = [axis for axis, length in enumerate(shard) if length != 1]
    sizes, wanted = [shard[axis] for axis in kept], [length for length in whole if length != 1]
    if len(sizes) == len(wanted):
        cut = [at for at, (length, full) in enumerate(zip(sizes, wanted, strict=True)) if length * cards == full]
        if len(cut) == 1 and all(sizes[at] == wanted[at] for at in range(len(sizes)) if at != cut[0]):
            return kept[cut[0]]
    return len(shard) - 1
