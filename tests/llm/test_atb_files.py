"""ATB tensor files: every element type, every odd header, and what is wrong with a file said by name."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from llm_dumps import CODES, atb_bytes, write_atb

from twinprobe._measure.elements import FLOAT64, numbers
from twinprobe._runs.llm.files import open_llm_tensor
from twinprobe._runs.tensors.atb_file import read_header, tensor_of
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe.errors import DamagedTensor


def _read(data: bytes) -> HostTensor:
    return tensor_of(data, read_header(data))


def values_of(data: bytes) -> list[float]:
    tensor = _read(data)
    return numbers(tensor.dtype, tensor.data, FLOAT64).tolist()


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(sorted(CODES)))
def test_what_numpy_can_hold_comes_back_bit_by_bit(data: st.DataObject, dtype: str) -> None:
    shape = data.draw(arrays.array_shapes(max_dims=4, max_side=5))
    array = data.draw(arrays.arrays(dtype, shape))
    tensor = _read(atb_bytes(array.tobytes(), array.shape, CODES[dtype]))
    assert tensor.dtype == dtype
    assert tensor.shape == array.shape
    assert tensor.data.tobytes() == array.tobytes()


def test_the_example_of_the_format_is_read() -> None:
    head = b"$Version=1.0\n$Object.Count=1\n$Object.Length=4\nformat=2\ndtype=1\ndims=1,1,2\n$Object.data=0,4\n$End=1\n"
    tensor = _read(head + np.array([1.5, -2], np.float16).tobytes())
    assert (tensor.dtype, tensor.shape, tensor.data.tolist()) == ("float16", (1, 1, 2), [1.5, -2.0])


def test_a_minimal_header_is_enough_and_unknown_names_are_passed_over() -> None:
    data = b"dtype=0\ndims=2\nanything=else\n$End=1\n" + np.array([3, 4], np.float32).tobytes()
    assert _read(data).data.tolist() == [3.0, 4.0]


def test_bfloat16_and_eight_bit_floats_have_their_values() -> None:
    assert values_of(atb_bytes(np.array([0x3F80, 0xC000], np.uint16).tobytes(), (2,), 27)) == [1.0, -2.0]
    assert values_of(atb_bytes(bytes([0x3C, 0xC0]), (2,), 35)) == [1.0, -2.0]
    assert values_of(atb_bytes(bytes([0x38, 0xC0]), (2,), 36)) == [1.0, -2.0]
    assert values_of(atb_bytes(bytes([127, 128]), (2,), 37)) == [1.0, 2.0]


def test_four_bit_integers_are_unpacked_low_half_first() -> None:
    assert values_of(atb_bytes(bytes([0x21, 0xF8, 0x07]), (5,), 29)) == [1.0, 2.0, -8.0, -1.0, 7.0]


def test_four_bit_integers_may_lie_one_per_byte() -> None:
    assert values_of(atb_bytes(bytes([0x01, 0x0F, 0x07]), (3,), 29)) == [1.0, -1.0, 7.0]


def test_single_bits_are_unpacked() -> None:
    assert values_of(atb_bytes(bytes([0b00000101]), (4,), 30)) == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("code", "stored", "values"),
    [
        (40, [0x21, 0xA7], [0.5, 1.0, 6.0, -1.0]),  # e2m1
        (41, [0x41, 0xC7], [0.25, 1.0, 1.75, -1.0]),  # e1m2
        (38, [12, 31, 44, 1], [1.0, 28.0, -1.0, 0.0625]),  # e3m2, one per byte
        (39, [8, 31, 40, 1], [1.0, 7.5, -1.0, 0.125]),  # e2m3
    ],
)
def test_tiny_floats_have_their_values(code: int, stored: list[int], values: list[float]) -> None:
    assert values_of(atb_bytes(bytes(stored), (4,), code)) == values


def test_six_bit_floats_may_be_packed() -> None:
    bits = sum(code << (6 * at) for at, code in enumerate([12, 31, 44, 1]))
    assert values_of(atb_bytes(bits.to_bytes(3, "little"), (4,), 38)) == [1.0, 28.0, -1.0, 0.0625]


def test_hifloat8_follows_its_definition() -> None:
    # Zero, the smallest number, one, two, the largest finite one, infinity, minus one.
    codes = [0x00, 0x01, 0x08, 0x10, 0x6E, 0x6F, 0x88]
    assert values_of(atb_bytes(bytes(codes), (7,), 34)) == [0.0, 2.0**-22, 1.0, 2.0, 32768.0, float("inf"), -1.0]
    assert np.isnan(values_of(atb_bytes(bytes([0x80]), (1,), 34))[0])


def test_all_hifloat8_numbers_are_distinct_and_in_order_of_size() -> None:
    table = values_of(atb_bytes(bytes(range(128)), (128,), 34))
    finite = sorted(value for value in table if np.isfinite(value))
    assert len(set(finite)) == 127
    assert finite[0] == 0.0


def test_half_precision_complex_numbers_are_read() -> None:
    tensor = _read(atb_bytes(np.array([1, 2, 3, -4], np.float16).tobytes(), (2,), 33))
    assert (tensor.dtype, tensor.data.tolist()) == ("complex64", [1 + 2j, 3 - 4j])


def test_statistics_are_read_without_elements() -> None:
    text = b"format=2\ntype=1\ndims=2,3\nmax=1.5\nmin=-2\nmean=0.25\nl2norm=nan\n$End=1"
    header = read_header(text)
    assert (header.shape, header.statistics["max"], header.statistics["min"]) == ((2, 3), 1.5, -2.0)
    with pytest.raises(DamagedTensor, match="statistics only"):
        _read(text)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "no \\$End"),
        (b"dtype=0\ndims=4\n", "no \\$End"),
        (b"dtype=0\n$End=1\n", "lacks dtype or dims"),
        (b"dtype=0\ndims=4\n$End=1\n", "description only"),
        (b"dtype=0\ndims=4\n$End=1\n1234", "claims 16 bytes"),
        (b"dtype=0\ndims=-4\n$End=1\n", "impossible shape"),
        (b"dtype=0\ndims=4000000000,4000000000\n$End=1\n", "impossible shape"),
        (b"dtype=0\ndims=a\n$End=1\n", "not a number"),
        (b"dtype=nan\ndims=4\n$End=1\n", "not a number"),
        (b"dtype=13\ndims=1\n$End=1\nx", "text"),
        (b"dtype=-1\ndims=1\n$End=1\nx", "undefined"),
        (b"dtype=99\ndims=1\n$End=1\nx", "unknown"),
        (b"dtype 0\ndims=1\n$End=1\nx", "without '='"),
        (b"dtype=29\ndims=400\n$End=1\nx", "claims"),
        (b"x" * 100_000, "no \\$End"),
    ],
)
def test_a_damaged_file_is_told_by_what_is_wrong_with_it(tmp_path: Path, data: bytes, words: str) -> None:
    (tmp_path / "outtensor0.bin").write_bytes(data)
    with pytest.raises(DamagedTensor, match=words if data else "empty") as caught:
        open_llm_tensor(tmp_path, "outtensor0.bin")
    assert "outtensor0.bin" in str(caught.value)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300), st.sampled_from([b"", b"dtype=0\ndims=2,2\n", b"$Version=1.0\n"]))
def test_no_bytes_whatever_raise_anything_else(noise: bytes, head: bytes) -> None:
    for data in (head + noise, head + noise + b"\n$End=1\n", head + b"$End=1\n" + noise):
        try:
            _read(data)
        except DamagedTensor:
            continue


def alias(target: str) -> bytes:
    return f"dtype=0\ndims=2\ndata={target}\n$End=1\n".encode()


def test_an_alias_leads_to_the_file_of_the_named_operator(tmp_path: Path) -> None:
    round_folder = tmp_path / "tensors" / "0_7" / "0"
    write_atb(round_folder / "3_Layer" / "1_LinearOperation" / "after" / "outtensor0.bin", np.array([5, 6], np.float32))
    target = round_folder / "4_Layer" / "before" / "intensor0.bin"
    target.parent.mkdir(parents=True)
    target.write_bytes(alias("3_1_outtensor0.bin"))
    tensor = open_llm_tensor(tmp_path, "tensors/0_7/0/4_Layer/before/intensor0.bin")
    assert tensor.data.tolist() == [5.0, 6.0]


@pytest.mark.parametrize("target", ["9_outtensor0.bin", "../../../../../etc/passwd", "intensor0.bin", "missing.bin"])
def test_an_alias_that_leads_nowhere_or_in_a_circle_is_one_damaged_file(tmp_path: Path, target: str) -> None:
    file = tmp_path / "tensors" / "0_7" / "0" / "4_Layer" / "before" / "intensor0.bin"
    file.parent.mkdir(parents=True)
    file.write_bytes(alias(target))
    with pytest.raises(DamagedTensor):
        open_llm_tensor(tmp_path, "tensors/0_7/0/4_Layer/before/intensor0.bin")


def test_a_link_inside_the_dump_is_followed_and_one_to_the_outside_is_not(tmp_path: Path) -> None:
    write_atb(tmp_path / "dump" / "a.bin", np.array([1], np.float32))
    write_atb(tmp_path / "secret.bin", np.array([2], np.float32))
    (tmp_path / "dump" / "inside.bin").symlink_to("a.bin")
    (tmp_path / "dump" / "outside.bin").symlink_to(tmp_path / "secret.bin")
    (tmp_path / "dump" / "circle.bin").symlink_to("circle.bin")
    assert open_llm_tensor(tmp_path / "dump", "inside.bin").data.tolist() == [1.0]
    for name in ("outside.bin", "circle.bin"):
        with pytest.raises(DamagedTensor):
            open_llm_tensor(tmp_path / "dump", name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no fifos here")
def test_a_fifo_does_not_make_the_reader_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "outtensor0.bin")
    with pytest.raises(DamagedTensor, match="regular"):
        open_llm_tensor(tmp_path, "outtensor0.bin")


def test_large_elements_off_their_boundaries_are_measured_right(tmp_path: Path) -> None:
    from twinprobe._measure.llm_metrics import measure_llm_pair

    array = np.random.default_rng(0).standard_normal(50_000)
    for name, pad in (("a.bin", ""), ("b.bin", "x")):
        (tmp_path / name).write_bytes(atb_bytes(array.tobytes(), array.shape, 11, note=pad))
    metrics = measure_llm_pair(open_llm_tensor(tmp_path, "a.bin"), open_llm_tensor(tmp_path, "b.bin"))
    assert metrics.identical
    assert metrics.cosine == 1.0
