"""Views whose elements do not lie in order have the sketches of their elements in order. On the device they are read by
their strides, without a copy."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinprobe._measure.cuda.measure import View, view_of
from twinprobe._measure.sketch import block_length
from twinprobe._record.torch.host import host_measures

LIMIT = 1 << 31


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes and strides of views: transposed, sliced, stepped, broadcast."""
    shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    room = [size + draw(st.integers(0, 2)) for size in shape]
    strides = [prod(room[axis + 1 :]) for axis in range(len(shape))]
    for axis in range(len(shape)):
        how = draw(st.sampled_from(["as it is", "as it is", "stepped", "broadcast"]))
        if how == "stepped":
            shape[axis] = -(-shape[axis] // 2)
            strides[axis] *= 2
        elif how == "broadcast":
            strides[axis] = 0
    order = draw(st.permutations(range(len(shape))))
    return tuple(shape[axis] for axis in order), tuple(strides[axis] for axis in order)


def distances(view: View, elements: int) -> list[int]:
    """Where each element lies, as the kernel computes it from the words of the table."""
    (last, third, second, shifts), (step, step_3, step_2, step_1) = view.words

    def quotient(number: int, word: int, shift: int) -> int:
        return (number * (word & 0xFFFFFFFF) // 2**32 + number) >> (shift & 255)

    found = []
    for place in range(0, elements, view.width):
        row = quotient(place // view.width, last, shifts)
        plane = quotient(row, third, shifts >> 8)
        volume = quotient(plane, second, shifts >> 16)
        distance = (place // view.width - row * (last >> 32)) * step + (row - plane * (third >> 32)) * step_3
        distance += (plane - volume * (second >> 32)) * step_2 + volume * step_1
        found += [distance * view.width + lane for lane in range(view.width)]
    return found


@settings(deadline=None, max_examples=200)
@given(layouts(), st.sampled_from([1, 2, 4, 8]), st.booleans())
@example(((2, 4, 30, 16), (1920, 16, 64, 1)), 2, True)
@example(((2, 4, 16, 30), (1920, 16, 1, 64)), 2, True)
def test_the_table_tells_where_every_element_lies(
    layout: tuple[tuple[int, ...], tuple[int, ...]], itemsize: int, aligned_floats: bool
) -> None:
    shape, strides = layout
    view = view_of(shape, strides, itemsize, aligned_floats)
    if view is None:
        assert len([size for size in shape if size > 1]) in (0, 5)
        return
    places = np.indices(shape).reshape(len(shape), -1)
    assert distances(view, prod(shape)) == (np.array(strides) @ places).tolist()
    assert (view.length, view.slots % view.pieces) == (block_length(prod(shape)), 0)


def test_neighbours_are_read_together_where_they_lie_together() -> None:
    heads = view_of((2, 16, 2048, 128), (2048 * 2048, 128, 2048, 1), 2, True)
    assert heads is not None
    assert heads.width == 8
    keys = view_of((2, 16, 128, 2048), (2048 * 2048, 128, 1, 2048), 2, True)
    assert keys is not None
    assert (keys.width, keys.words[0][3] >> 24) == (1, 5)  # 32 rows at a time: 32 neighbours
    pixels = view_of((8, 1000, 300), (300_000, 1, 1000), 2, True)
    assert pixels is not None
    assert (pixels.words[0][3] >> 24, pixels.pieces) == (7, 4)  # rows are short: 128 at a time
    short = view_of((500_000, 10), (1, 500_000), 2, True)
    assert short is not None
    assert (short.words[0][3] >> 24, short.pieces) == (0, 5)
    odd = view_of((2, 16, 2048, 128), (2048 * 2048, 128, 2048, 1), 2, False)
    assert odd is not None
    assert odd.width == 1


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((64, 64, 64, 64), (1, 1 << 18, 64, 4096)),  # neighbours are far apart in every order but their own
        ((1 << 15, 1 << 15), (1, 1 << 15)),  # too many to count in 32 bits
        ((2, 2), (1, LIMIT)),  # too far apart
        ((2,) * 5, (1, 4, 16, 64, 256)),
    ],
)
def test_what_the_kernel_cannot_take_is_copied(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    assert view_of(shape, strides, 2, True) is None


@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 40, 64, 4095, 4096, 4097, (1 << 29) - 1, 1 << 29])
def test_divisions_by_multiplication_are_exact(divisor: int) -> None:
    view = view_of((3, divisor), (1, 3), 4, False) if divisor > 1 else view_of((3, 5), (0, 1), 4, False)
    if view is None:  # so many elements are copied
        assert 3 * divisor > 1 << 29
        return
    word, shift = view.words[0][0], view.words[0][3] & 255
    for number in (0, 1, divisor - 1, divisor, divisor + 1, 12345678, LIMIT // divisor * divisor - 1, LIMIT - 1):
        assert (number * (word & 0xFFFFFFFF) // 2**32 + number) >> shift == number // (word >> 32)


@settings(deadline=None, max_examples=100)
@given(layouts(), st.sampled_from(["float32", "bfloat16", "float64", "int64", "bool", "complex64"]), st.integers(0, 9))
def test_on_the_host_a_view_has_the_sketch_of_its_elements(
    layout: tuple[tuple[int, ...], tuple[int, ...]], dtype: str, offset: int
) -> None:
    shape, strides = layout
    size = sum((count - 1) * step for count, step in zip(shape, strides, strict=True)) + 1 + offset
    elements = (torch.randn(size, generator=torch.Generator().manual_seed(size)) * 9).to(getattr(torch, dtype))
    view = elements.as_strided(shape, strides, offset)
    dense = torch.tensor(view.flatten().tolist(), dtype=view.dtype).reshape(shape)
    assert host_measures(view) == host_measures(dense)


SCRIPT = """
import sys
from math import prod
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
sys.path.insert(0, sys.argv[1])
from test_device_views import layouts
from twinprobe._measure.cuda import measure
from twinprobe._record.entries import Row
from twinprobe._record.torch.device import DeviceRows
from twinprobe._record.torch.host import host_measures
from twinprobe._runs.sketches import ROW

measure._CHUNK = 1024  # so that small tensors have several chunks
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int16, torch.uint8,
          torch.bool, torch.complex64, torch.float8_e4m3fn]
copied = []
contiguous = torch.Tensor.contiguous
torch.Tensor.contiguous = lambda self, *more: copied.append(self) or contiguous(self, *more)

def check(tensor):
    rows, row = DeviceRows(torch.device("cpu"), values=True, digest=None, sketch=True), Row()
    rows.add(tensor, row, None, tensor.data_ptr())
    del copied[:]
    rows.collect()()
    strided = not any(one.shape == tensor.shape for one in copied)
    values, sketch = host_measures(tensor)
    found, expected = (np.frombuffer(one, ROW)[0] for one in (row.sketch, sketch))
    reach = 1e-6 * max(float(expected["norm"]), float(expected["count"]) ** 0.5)
    for field in ROW.names:
        exact = expected["flags"] & 2 and field != "norm" or expected[field].dtype.kind in "ui"
        where = (field, tensor.dtype, tuple(tensor.shape), tensor.stride(), found[field], expected[field])
        if exact:
            assert (found[field] == expected[field]).all(), where
        else:
            assert np.allclose(found[field], expected[field], rtol=2e-6, atol=reach), where
    assert np.allclose(*([float(one) for one in side] for side in (row.values, values)), rtol=2e-6, atol=reach,
                       equal_nan=True), (row.values, values, tensor.dtype, tuple(tensor.shape), tensor.stride())
    return strided

def filled(dtype, size, seed):
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 4
    if dtype == torch.bool:
        return values > 0
    if dtype in (torch.uint8,):
        return values.abs().to(dtype)
    values = values.to(dtype)
    if seed % 3 == 0 and dtype.is_floating_point and dtype.itemsize > 1:
        values[seed % size], values[seed // 3 % size] = float("nan"), torch.finfo(dtype).max
        values[seed // 5 % size] = float("-inf")
    return values

@settings(deadline=None, max_examples=int(sys.argv[2]), derandomize=True, suppress_health_check=list(HealthCheck))
@given(layouts(), st.sampled_from(DTYPES), st.integers(0, 9), st.integers(0, 1 << 20))
def views(layout, dtype, offset, seed):
    shape, strides = layout
    size = sum((n - 1) * step for n, step in zip(shape, strides)) + 1
    tensor = filled(dtype, size + offset, seed).as_strided(shape, strides, offset)
    if not tensor.is_contiguous():
        check(tensor)

views()
# Those of a transformer, with chunks that are full and chunks that are not: none of them is copied.
def kinds(dtype, tokens, width, seed):
    heads = filled(dtype, 2 * tokens * 4 * width, seed).view(2, tokens, 4, width)
    rows = heads.view(2 * tokens, 4 * width)
    return [heads.transpose(1, 2), heads.permute(0, 2, 3, 1), rows.t(), rows[:, None].expand(2 * tokens, 2, 4 * width),
            rows[:, width : 3 * width]]

odd = [kinds(torch.bfloat16, 150, 24, 4)[0], kinds(torch.float32, 150, 24, 6)[1]]
some = [kinds(dtype, 128, 16, 3 * at)[(2 * at + more) % 5] for at, dtype in enumerate(DTYPES) for more in (0, 1)]
for view in [*odd, *some]:
    assert not view.is_contiguous()
    strided, dtype = check(view), view.dtype
    assert strided or dtype.is_complex or dtype.itemsize == 1 and dtype.is_floating_point, (dtype, view.shape)
measure._CHUNK = 65536
measure.view_of.cache_clear()
measure._sketch_room.cache_clear()
tall = filled(torch.float32, 65 * 1040, 1).view(65, 1040).t()
assert measure.view_of(tuple(tall.shape), tall.stride(), 4, True).words[0][3] >> 24 == 6
check(tall)
print("the same")
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_sketches_of_views_are_those_of_the_host() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), "30"],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )
    assert "the same" in done.stdout, done.stderr[-3000:]
