"""A torch file is known again by all that its reader looks at, and by nothing less."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._runs.tensors.pt_file import read_pt
from twinprobe._runs.tensors.small_files import ElementLayout, HeaderCache

torch = pytest.importorskip("torch")


def _described(data: bytes) -> ElementLayout | None:
    return HeaderCache().described("tensor.pth", memoryview(data), 0, len(data))


def saved(tensor: object) -> bytes:
    out = io.BytesIO()
    torch.save(tensor, out)
    return out.getvalue()


def test_a_torch_file_is_known_again_by_all_that_its_reader_looks_at() -> None:
    first, second = saved(torch.arange(6.0).reshape(2, 3)), saved(torch.full((2, 3), 7.0))
    one, two = _described(first), _described(second)
    assert one is not None
    assert one == two
    assert np.frombuffer(second, np.float32, one.elements, one.start).tolist() == [7.0] * 6
    other = _described(saved(torch.zeros(3, 2)))
    assert other is not None
    assert other.shown_shape == "[3, 2]"


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_changed_torch_file_is_never_taken_for_the_one_before(data: st.DataObject) -> None:
    sound = saved(torch.arange(6.0))
    _described(sound)
    changed = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    found = _described(bytes(changed))
    if found is not None:
        tensor = read_pt(bytes(changed))
        assert (found.dtype, found.shown_shape) == (tensor.dtype, str(list(tensor.shape)))
        assert tensor.data.tobytes() == bytes(changed[found.start : found.end])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(6),
        torch.zeros(0),
        torch.arange(6.0, dtype=torch.float64),
        {"a": torch.zeros(2)},
    ],
    ids=["strided", "integers", "empty", "float64", "no tensor"],
)
def test_other_torch_files_are_left_to_their_reader(tensor: object) -> None:
    assert _described(saved(tensor)) is None


def test_files_of_one_name_are_told_apart_by_their_bytes() -> None:
    known = HeaderCache()
    for tensor in (torch.arange(6.0), torch.full((6,), 7.0), torch.zeros(3, 2), torch.arange(6.0).half()):
        data = saved(tensor)
        memory = memoryview(bytes(64) + data)
        found = known.described("output.pth", memory, 64, len(data))
        assert found is not None
        assert found.shown_dtype == str(tensor.dtype)
        assert found.shown_shape == str(list(tensor.shape))
        assert data[found.start : found.end] == tensor.numpy().tobytes()
    assert known.described("output.pth", memoryview(data[:-1]), 0, len(data) - 1) is None
    assert known.described("output.npy", memoryview(data), 0, len(data)) is None


def test_a_view_of_a_large_storage_is_described_and_not_kept() -> None:
    storage = torch.zeros(20_000)
    known = HeaderCache()
    data = saved(storage[5:9])
    found = known.described("output.pth", memoryview(data), 0, len(data))
    assert found is not None
    assert (found.elements, found.end - found.start) == (4, 16)
    assert not known._heads
    assert not known._frames
