"""npy files are read as numpy reads them, without evaluating their header."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy

from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors import elements as file_contents
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe.errors import DamagedTensor

DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


def assert_same(path: Path) -> None:
    expected = np.load(path, allow_pickle=False)
    read = open_tensor(path)
    assert read.dtype == expected.dtype.newbyteorder("=").name
    assert read.shape == expected.shape
    assert read.data.dtype == np.dtype(STORAGE[read.dtype])
    assert read.data.tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(DTYPES),
    order=st.sampled_from("<>="),
    layout=st.sampled_from("CF"),
    shape=st.lists(st.integers(0, 5), max_size=4),
    seed=st.integers(0, 9999),
)
def test_every_dtype_byte_order_and_layout_reads_as_numpy_reads_it(kind, order, layout, shape, seed, tmp_path) -> None:
    array = np.random.default_rng(seed).integers(0, 2 if kind == "?" else 100, shape)
    path = tmp_path / "a.npy"
    np.save(path, np.asarray(array.astype(np.dtype(kind).newbyteorder(order)), order=layout))
    assert_same(path)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_format_is_read(version, tmp_path: Path) -> None:
    with (tmp_path / "a.npy").open("wb") as file:
        npy.write_array(file, np.arange(12.0).reshape(3, 4), version=version)
    assert_same(tmp_path / "a.npy")


@pytest.mark.parametrize("largest_read", [1 << 30, 1 << 16], ids=["at once", "by strips"])
def test_the_elements_of_a_large_array_cannot_be_written(
    largest_read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_contents, "LARGEST_READ", largest_read)
    np.save(tmp_path / "a.npy", np.arange(100_000.0))
    read = open_tensor(tmp_path / "a.npy")
    assert not read.data[:].flags.owndata
    assert not read.data[:].flags.writeable
    assert_same(tmp_path / "a.npy")


def test_a_large_fortran_ordered_array_is_turned_round(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.asfortranarray(np.random.default_rng(0).standard_normal((300, 1, 200))))
    assert_same(tmp_path / "a.npy")


def with_header(text: str, body: bytes = bytes(96)) -> bytes:
    header = text.encode("latin-1")
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + body


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }",
        "{'shape': (3, 2), 'fortran_order': False, 'descr': '<f4'}\n",
        '{"descr": "<f4", "fortran_order": False, "shape": (3,2)}',
        "{'descr':'<f4','fortran_order':False,'shape':(3L, 2L)}          \n",
    ],
)
def test_headers_of_other_writers_are_understood(header: str, tmp_path: Path) -> None:
    body = np.arange(6, dtype="<f4").tobytes()
    (tmp_path / "a.npy").write_bytes(with_header(header, body))
    read = open_tensor(tmp_path / "a.npy")
    assert (read.dtype, read.shape) == ("float32", (3, 2))
    assert read.data.tolist() == [0, 1, 2, 3, 4, 5]
    assert read.data.flags.aligned


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a", "bc"]), "holds text"),
        (np.array([b"a", b"bc"]), "holds text"),
        (np.array([{}, 1], dtype=object), "Python objects"),
        (np.zeros(2, [("a", "f4"), ("b", "i4")]), "structured dtype"),
        (np.zeros(2, "M8[ns]"), "dtype '<M8\\[ns\\]'"),
        (np.zeros(2, "m8[s]"), "not supported"),
        (np.zeros(2, "V2"), "not supported"),
        (np.zeros(2, np.longdouble), "not supported"),
    ],
)
def test_what_is_no_plain_number_is_named(array, message: str, tmp_path: Path) -> None:
    if array.dtype == np.float64:
        pytest.skip("a long double is a plain double here")
    path = tmp_path / "a.npy"
    np.save(path, array, allow_pickle=True)
    with pytest.raises(DamagedTensor, match=message) as caught:
        open_tensor(path)
    assert str(caught.value).startswith(str(path))


def test_an_npz_archive_is_named(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.zeros(3))
    (tmp_path / "a.npy").write_bytes(buffer.getvalue())
    with pytest.raises(DamagedTensor, match="npz"):
        open_tensor(tmp_path / "a.npy")


def test_every_reference_file_reads_as_numpy_reads_it(reference: Path) -> None:
    paths = sorted(reference.rglob("*.npy"))
    assert len(paths) > 500
    for path in paths:
        assert_same(path)
