"""Pictures of tensors: every number against numpy on the whole array."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from twinprobe._measure import blocks
from twinprobe._measure.blocks import TensorSlice, block_summary, checked_cut, usual_cut
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe.errors import BadInput


def host(array: NDArray[Any]) -> HostTensor:
    return HostTensor(str(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1))


def unpacked(packed: dict[str, Any], size: list[int]) -> NDArray[np.float64]:
    shares = np.frombuffer(base64.b64decode(packed["f16"]), dtype="<f2").astype(np.float64)
    return shares.reshape(size) * float(packed["scale"])


def pair(shape: tuple[int, ...], seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    rng = np.random.default_rng(seed)
    golden = rng.standard_normal(shape).astype(np.float32)
    return golden + 1e-2 * rng.standard_normal(shape).astype(np.float32) ** 3, golden


@pytest.mark.parametrize(
    ("shape", "rows", "columns", "ranges"),
    [
        ((5, 6, 40, 50), 2, 3, ((0, 5), (0, 6), (0, 40), (0, 50))),
        ((5, 6, 40, 50), 0, 1, ((0, 5), (0, 6), (0, 40), (0, 50))),
        ((5, 6, 40, 50), 2, 3, ((3, 4), (2, 3), (10, 31), (7, 50))),
        ((5, 6, 40, 50), 3, 1, ((0, 5), (1, 5), (7, 8), (0, 50))),
        ((70000,), -1, 0, ((0, 70000),)),
    ],
)
def test_blocks_are_the_largest_and_the_mean_of_their_part(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], rows: int, columns: int, ranges: Any
) -> None:
    monkeypatch.setattr(blocks, "STRIP", 1000)  # strips that begin and end anywhere
    target, golden = pair(shape)
    found = block_summary(host(target), host(golden), TensorSlice(rows, columns, ranges), most=(7, 9))
    part = tuple(slice(*span) for span in ranges)
    t, g = target[part].astype(np.float64), golden[part].astype(np.float64)
    order = [axis for axis in (rows, columns) if axis >= 0]
    rest = [axis for axis in range(len(shape)) if axis not in order]
    wide = [np.transpose(values, [*order, *rest]) for values in (t, g)]
    lengths = [ranges[axis][1] - ranges[axis][0] for axis in order]
    counts = [min(length, limit) for length, limit in zip(lengths, (7, 9)[-len(order) :], strict=True)]
    places = [np.arange(length) * count // length for length, count in zip(lengths, counts, strict=True)]
    off, means = unpacked(found["max"], found["size"]), unpacked(found["golden"], found["size"])
    for block in np.ndindex(*counts):
        chosen = np.ix_(*(at == number for at, number in zip(places, block, strict=True)))
        inside = [values[chosen] for values in wide]
        where = block if rows >= 0 else (0, *block)
        assert off[where] == pytest.approx(np.abs(inside[0] - inside[1]).max(), rel=2e-3)
        assert means[where] == pytest.approx(inside[1].mean(), abs=1e-3 * float(found["golden"]["scale"]) + 1e-9)
    index, one, other, worst = found["worst"][0]
    assert worst == pytest.approx(np.abs(t - g).max(), rel=1e-5)
    assert (target[tuple(index)], golden[tuple(index)]) == (
        pytest.approx(one, rel=1e-5),
        pytest.approx(other, rel=1e-5),
    )
    assert sum(found["histogram"]["counts"][1]) + found["histogram"]["zeros"][1] == t.size
    assert found["elements"] == found["read"] == t.size


def test_a_factor_is_found_and_noise_is_none() -> None:
    target, golden = pair((64, 64))
    assert block_summary(host(golden * np.float32(1.5)), host(golden), usual_cut((64, 64)), most=(8, 8))["slope"] == 1.5
    assert block_summary(host(target), host(golden), usual_cut((64, 64)), most=(8, 8))["slope"] is None


def test_what_is_no_number_is_counted_and_comes_first() -> None:
    target, golden = pair((8, 8))
    target[3, 4], golden[3, 4] = np.nan, 1.0
    target[5, 5] = golden[5, 5] = np.inf
    found = block_summary(host(target), host(golden), usual_cut((8, 8)), most=(8, 8))
    assert found["worst"][0][0] == [3, 4]
    assert found["worst"][0][3] == "inf"
    assert found["histogram"]["odd"] == [2, 1, 1]
    assert [5, 5] not in [entry[0] for entry in found["worst"]]


def test_a_slice_of_a_large_file_reads_little_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, golden = pair((64, 32, 64))
    for name, array in (("t", target), ("g", golden)):
        np.save(tmp_path / f"{name}.npy", array)
    sides = [open_tensor(tmp_path / f"{name}.npy", at_once=1) for name in "tg"]
    read = 0
    usual = type(sides[0].data)._read

    def counting(self: Any, start: int, stop: int) -> Any:
        nonlocal read
        read += stop - start
        return usual(self, start, stop)

    monkeypatch.setattr(type(sides[0].data), "_read", counting)
    found = block_summary(*sides, TensorSlice(1, 2, ((7, 8), (0, 32), (0, 64))), most=(32, 64))
    assert found["read"] == 32 * 64
    assert read == 2 * 32 * 64
    assert unpacked(found["max"], [32, 64]).max() == pytest.approx(np.abs(target[7] - golden[7]).max(), rel=2e-3)


def test_more_than_a_screen_can_show_is_read_at_even_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "STRIP", 256)
    monkeypatch.setattr(blocks, "_MOST_READ", 1 << 12)
    target, golden = pair((256, 256))
    found = block_summary(host(target), host(golden), usual_cut((256, 256)), most=(8, 8))
    assert found["elements"] == 1 << 16
    assert found["read"] == 1 << 12


@pytest.mark.parametrize(
    ("rows", "columns", "ranges"), [(0, 0, []), (5, 1, []), (0, 1, [(0, 9), (0, 2)]), (0, 1, [(2, 2)]), (-2, 1, [])]
)
def test_a_part_that_the_tensor_does_not_have_is_refused(rows: int, columns: int, ranges: list[Any]) -> None:
    with pytest.raises(BadInput):
        checked_cut((4, 5), rows, columns, ranges)
