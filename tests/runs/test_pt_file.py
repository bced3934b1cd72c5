"""Files by torch.save are read without torch, bit for bit as torch itself reads them."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from math import prod
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._runs.dtypes import STORAGE
from twinprobe._runs.tensors import elements as file_contents
from twinprobe._runs.tensors.elements import FileElements, HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe.errors import DamagedTensor

torch = pytest.importorskip("torch")


def raw_bytes(tensor) -> bytes:
    if tensor.numel() == 0:
        return b""
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(read: HostTensor, tensor) -> None:
    assert read.dtype == str(tensor.dtype).removeprefix("torch.")
    assert read.shape == tuple(tensor.shape)
    assert read.data.tobytes() == raw_bytes(tensor)


def saved(tensor, path: Path, **options) -> Path:
    torch.save(tensor, path, **options)
    return path


def of_dtype(name: str, count: int):
    dtype = getattr(torch, name)
    if name == "bool":
        return torch.randint(0, 2, (count,), dtype=torch.uint8).bool()
    return torch.randint(0, 256, (count * dtype.itemsize,), dtype=torch.uint8).view(dtype)


def young(name: str):
    """A dtype that not every supported torch can save."""
    try:
        torch.save(torch.zeros(1, dtype=torch.uint8).repeat(4).view(getattr(torch, name)), io.BytesIO())
    except (AttributeError, KeyError):
        pytest.skip(f"this torch cannot save {name}")
    return getattr(torch, name)


def repacked(source: Path, target: Path, method: int = zipfile.ZIP_STORED, **replaced: bytes) -> Path:
    """The same members written by another zip program, some with other contents."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", method) as new:
        for info in old.infolist():
            new.writestr(info.filename, replaced.get(info.filename.split("/")[-1], old.read(info)))
    return target


def can_save(name: str) -> bool:
    """An older torch lacks some dtypes, or has them and cannot save them."""
    try:
        torch.save(of_dtype(name, 1), io.BytesIO())
    except (AttributeError, KeyError):
        return False
    return True


KNOWN = [name for name in STORAGE if can_save(name)]
VARIED = {"float32", "bfloat16", "uint8", "uint64", "complex64", "float8_e5m2"}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("count", [1, 12, 70_000])
def test_every_dtype_keeps_its_bits(name: str, count: int, tmp_path: Path) -> None:
    tensor = of_dtype(name, count)
    assert_same(open_tensor(saved(tensor, tmp_path / "t.pt")), tensor)


@pytest.mark.parametrize("name", KNOWN)
def test_every_dtype_survives_a_view_with_offset_and_strides(name: str, tmp_path: Path) -> None:
    tensor = of_dtype(name, 60).view(3, 4, 5)[1:].transpose(0, 2)[1:, ::2]
    assert_same(open_tensor(saved(tensor, tmp_path / "t.pt")), tensor)


@settings(deadline=None, max_examples=120)
@given(
    shape=st.lists(st.integers(0, 4), max_size=5),
    strides=st.lists(st.integers(0, 7), min_size=5, max_size=5),
    offset=st.integers(0, 9),
    name=st.sampled_from([one for one in KNOWN if one in VARIED]),
)
def test_any_strided_view_reads_as_torch_reads_it(shape, strides, offset, name, tmp_path: Path) -> None:
    tensor = of_dtype(name, 160).as_strided(shape, strides[: len(shape)], offset)
    path = saved(tensor, tmp_path / "t.pt")
    assert_same(open_tensor(path), torch.load(path, weights_only=True))


def with_attribute(tensor):
    tensor.note = {"axis": 1, "names": ["a", ("b", 2.5)], "big": 2**62, "neg": -3}
    return tensor


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor(1.5),
        lambda: torch.zeros(0),
        lambda: torch.zeros(3, 0, 2),
        lambda: torch.randn(4, 6).t(),
        lambda: torch.randn(3, 1, 5)[:, :, 2],
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(3, 1).expand(3, 1000),
        lambda: torch.randn(100_000)[5:-5],
        lambda: torch.randn(6, dtype=torch.complex128).conj(),
        lambda: torch.randn(6, dtype=torch.complex64).conj().imag,
        lambda: torch.randn(5, requires_grad=True),
        lambda: torch.nn.Parameter(torch.randn(2, 3)),
        lambda: torch.nn.Parameter(torch.arange(6), requires_grad=False),
        lambda: torch.nn.Parameter(torch.randn(2, 3).bfloat16().t()),
        lambda: with_attribute(torch.nn.Parameter(torch.randn(2, 3))),
        lambda: with_attribute(torch.randn(3, 2)),
        lambda: with_attribute(torch.tensor([7, 65535], dtype=young("uint16"))),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_form_of_one_tensor_is_read(make, protocol: int, tmp_path: Path) -> None:
    torch.manual_seed(1)
    tensor = make()
    assert_same(open_tensor(saved(tensor, tmp_path / "t.pth", pickle_protocol=protocol)), tensor)


def test_a_very_large_contiguous_tensor_is_read_strip_by_strip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_contents, "LARGEST_READ", 1 << 16)
    tensor = torch.randn(300, 1000)[100:]
    read = open_tensor(saved(tensor, tmp_path / "t.pt"))
    assert_same(read, tensor)
    assert isinstance(read.data, FileElements)
    strip = read.data[1000:3000]
    assert strip.tolist() == tensor.reshape(-1)[1000:3000].tolist()
    assert strip.flags.aligned
    assert not strip.flags.writeable


def test_a_compressed_file_is_unpacked(tmp_path: Path) -> None:
    tensor = torch.randn(50, 40).t()
    path = repacked(saved(tensor, tmp_path / "a.pt"), tmp_path / "b.pt", zipfile.ZIP_DEFLATED)
    assert_same(open_tensor(path), tensor)


def test_a_compressed_file_of_much_repetition_is_unpacked_whole(tmp_path: Path) -> None:
    tensor = torch.ones(3_000_000)
    path = repacked(saved(tensor, tmp_path / "a.pt"), tmp_path / "b.pt", zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 100_000
    assert_same(open_tensor(path), tensor)


def test_elements_that_another_zip_program_left_misaligned_come_out_aligned(tmp_path: Path) -> None:
    tensor = torch.randn(5_000, dtype=torch.float64)  # elements of a larger file are read to a place of their own
    seen = set()
    for length in range(1, 9):
        path = saved(tensor, tmp_path / f"{'a' * length}.pt")
        read = open_tensor(repacked(path, tmp_path / "b.pt"))
        assert_same(read, tensor)
        assert read.data.flags.aligned
        seen.add(read.data.flags.owndata)
    assert True in seen  # at least one of the lengths did misalign them


@pytest.mark.parametrize("name", ["float32", "bfloat16", "complex128", "uint8"])
def test_a_big_endian_file_is_swapped_as_torch_swaps_it(name: str, tmp_path: Path) -> None:
    path = saved(of_dtype(name, 64).view(8, 8).t(), tmp_path / "a.pt")
    path = repacked(path, tmp_path / "b.pt", byteorder=b"big")
    assert_same(open_tensor(path), torch.load(path, weights_only=True))


def test_a_file_without_a_byte_order_is_little_endian(tmp_path: Path) -> None:
    tensor = torch.randn(5)
    with zipfile.ZipFile(saved(tensor, tmp_path / "a.pt")) as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for info in old.infolist():
            if not info.filename.endswith(("byteorder", ".format_version", ".storage_alignment")):
                new.writestr(info.filename, old.read(info))
    assert_same(open_tensor(tmp_path / "b.pt"), tensor)


def test_a_file_beyond_four_gigabytes_is_mapped(tmp_path: Path) -> None:
    """A sparse file with the zip64 records that such a size needs."""
    count = (5 << 30) // 4
    small = saved(torch.zeros(7), tmp_path / "t.pt")
    with zipfile.ZipFile(small) as zipped:
        pickled = zipped.read("t/data.pkl")
    assert pickled.count(b"K\x07") == 2
    pickled = pickled.replace(b"K\x07", b"J" + struct.pack("<i", count))
    size = count * 4
    first = b"PK\3\4" + struct.pack("<5H3I2H", 45, 0, 0, 0, 0, 0, len(pickled), len(pickled), 10, 0) + b"t/data.pkl"
    unset = 0xFFFFFFFF
    extra = struct.pack("<2H2Q", 1, 16, size, size)
    second = b"PK\3\4" + struct.pack("<5H3I2H", 45, 0, 0, 0, 0, 0, unset, unset, 8, 0) + b"t/data/0"
    second_at = len(first) + len(pickled)
    padding = -(second_at + len(second)) % 64
    second = second[:28] + struct.pack("<H", padding) + second[30:] + bytes(padding)
    start = second_at + len(second)
    entry = struct.Struct("<4s6H3I5H2I")
    central = (
        entry.pack(b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, len(pickled), len(pickled), 10, 0, 0, 0, 0, 0, 0) + b"t/data.pkl"
    )
    central += entry.pack(b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, unset, unset, 8, len(extra), 0, 0, 0, 0, second_at)
    central += b"t/data/0" + extra
    at = start + size
    end64 = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, 2, 2, len(central), at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, at + len(central), 1)
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 2, 2, len(central), unset, 0)
    path = tmp_path / "large.pt"
    with path.open("wb") as file:
        file.write(first + pickled + second)
        file.seek(at - 4)
        file.write(struct.pack("<f", 2.5) + central + end64 + locator + end)
    read = open_tensor(path)
    assert read.shape == (count,)
    assert read.data[0] == 0
    assert read.data[-1] == 2.5


@pytest.mark.filterwarnings("ignore:.*(quantize|ComplexHalf)")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: {"weight": torch.zeros(2)}, "no bare tensor but: dict"),
        (lambda: [torch.zeros(2)], "no bare tensor but: list"),
        (lambda: (torch.zeros(2), 1), "no bare tensor but: tuple"),
        (lambda: torch.nn.Linear(2, 2).state_dict(), "no bare tensor but: dict"),
        (lambda: 3, "no bare tensor but: int"),
        (lambda: torch.nn.Linear(2, 2), r"'torch\.nn\.modules\.linear\.Linear'"),
        (lambda: torch.zeros(3, 3).to_sparse(), "a sparse tensor"),
        (lambda: torch.quantize_per_tensor(torch.zeros(3), 1.0, 0, torch.quint8), "a quantized tensor"),
        (lambda: torch.zeros(3, device="meta"), "a meta tensor"),
        (lambda: torch.zeros(3, dtype=young("complex32")), "unsupported dtype"),
        (lambda: torch.zeros(4, dtype=torch.uint8).view(young("float4_e2m1fn_x2")), "unsupported dtype.*float4_e2m1fn"),
    ],
)
def test_what_is_no_plain_tensor_is_named(make, message: str, tmp_path: Path) -> None:
    path = saved(make(), tmp_path / "t.pt")
    with pytest.raises(DamagedTensor, match=message) as caught:
        open_tensor(path)
    assert str(caught.value).startswith(str(path))


def test_the_old_format_is_named_with_the_way_to_convert_it(tmp_path: Path) -> None:
    path = saved(torch.randn(3), tmp_path / "t.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(DamagedTensor, match=r"old format of torch\.save.*convert it once with torch"):
        open_tensor(path)
    torch.save(torch.load(path, weights_only=True), path)
    assert open_tensor(path).shape == (3,)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_program_is_named(tmp_path: Path) -> None:
    torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)).save(str(tmp_path / "t.pt"))
    with pytest.raises(DamagedTensor, match="TorchScript"):
        open_tensor(tmp_path / "t.pt")


def in_fresh_interpreter(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    tensor = torch.randn(3, 4).bfloat16().t()
    path = saved(tensor, tmp_path / "t.pt")
    program = (
        "import sys; from pathlib import Path; from twinprobe._runs.tensors.tensor_files import open_tensor;"
        "t = open_tensor(Path(sys.argv[1]));"
        "heavy = {'torch', 'numba', 'polars', 'pickle'} & set(sys.modules) - set(sys.argv[2].split());"
        "print(t.dtype, t.shape, t.data.tobytes().hex(), sorted(heavy))"
    )
    numpy_brings = in_fresh_interpreter("import sys, numpy; print(' '.join(sys.modules))")
    printed = in_fresh_interpreter(program, str(path), numpy_brings)
    assert printed.strip() == f"bfloat16 (4, 3) {raw_bytes(tensor).hex()} []"


def test_every_reference_file_reads_as_torch_reads_it(reference: Path) -> None:
    paths = sorted(reference.rglob("*.pt"))
    assert len(paths) > 1000
    for path in paths:
        tensor = torch.load(path, weights_only=True)
        read = open_tensor(path)
        assert prod(read.shape) == tensor.numel()
        assert_same(read, tensor)
