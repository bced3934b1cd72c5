"""Hostile tensor files: each tries something, none gets it, none costs more than a small multiple of its size."""

from __future__ import annotations

import os
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hostile_tensor_files import ELEMENTS, HEADERS, PICKLES, TENSORS, ZIPS, calls, container, described, npy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor
from twinprobe.errors import DamagedTensor

ATTACKS = [
    pytest.param(build, message, suffix, id=f"{group}: {what}")
    for group, suffix, table in (
        ("pickle", ".pt", PICKLES),
        ("tensor", ".pt", TENSORS),
        ("zip", ".pt", ZIPS),
        ("npy", ".npy", HEADERS),
    )
    for what, (build, message) in table.items()
]


def peak_bytes(path: Path) -> tuple[int, HostTensor | DamagedTensor]:
    """Memory taken at most while the file was opened, and what came of it."""
    tracemalloc.start()
    try:
        try:
            result: HostTensor | DamagedTensor = open_tensor(path)
        except DamagedTensor as error:
            result = error
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


def test_the_file_that_all_attacks_are_made_from_is_sound(tmp_path: Path) -> None:
    for raw in (container(), container(method=zipfile.ZIP_DEFLATED), container(t__byteorder=b"little")):
        (tmp_path / "t.pt").write_bytes(raw)
        assert open_tensor(tmp_path / "t.pt").data.tolist() == [0, 1, 2, 3, 4, 5]
    (tmp_path / "t.npy").write_bytes(npy(described(), ELEMENTS))
    assert open_tensor(tmp_path / "t.npy").data.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("build", "message", "suffix"), ATTACKS)
def test_an_attack_ends_in_one_message_and_takes_no_memory(build, message: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes(build())
    peak, result = peak_bytes(path)
    assert isinstance(result, DamagedTensor)
    assert re.search(message, str(result))
    assert str(result).startswith(str(path))
    assert str(result).isprintable()
    assert len(str(result)) < len(str(path)) + 400
    assert peak < (32 << 20) + 3 * path.stat().st_size


def test_a_pickle_that_would_write_a_file_writes_none(tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    command = f"touch {mark}".encode()
    argument = b"X" + struct.pack("<I", len(command)) + command + b"\x85"
    (tmp_path / "t.pt").write_bytes(calls(os.system.__module__, "system", argument))
    with pytest.raises(DamagedTensor, match="system"):
        open_tensor(tmp_path / "t.pt")
    assert not mark.exists()


def test_lying_headers_cost_no_memory_at_all(tmp_path: Path) -> None:
    for name in ("BINBYTES8 bomb", "LONG_BINPUT bomb", "frame that lies"):
        (tmp_path / "t.pt").write_bytes(PICKLES[name][0]())
        assert peak_bytes(tmp_path / "t.pt")[0] < 1 << 20
    for name in ("one element as a terabyte", "storage that claims more"):
        (tmp_path / "t.pt").write_bytes(TENSORS[name][0]())
        assert peak_bytes(tmp_path / "t.pt")[0] < 1 << 20
    for name in ("a terabyte", "header of four gigabytes"):
        (tmp_path / "t.npy").write_bytes(HEADERS[name][0]())
        assert peak_bytes(tmp_path / "t.npy")[0] < 1 << 20


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_what_is_no_regular_file_is_refused_without_waiting(suffix: str, tmp_path: Path) -> None:
    (tmp_path / f"folder{suffix}").mkdir()
    os.mkfifo(tmp_path / f"fifo{suffix}")
    (tmp_path / f"device{suffix}").symlink_to("/dev/zero")
    for name in ("folder", "fifo", "device"):
        with pytest.raises(DamagedTensor, match="not a regular file"):
            open_tensor(tmp_path / f"{name}{suffix}")


@pytest.mark.parametrize("name", ["a\0.pt", "\ud800.pt", "x" * 300 + ".pt", "missing.pt", "a.pt/b.pt", "a.bin", "a"])
def test_a_file_that_cannot_be_opened_is_one_message(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(container())
    with pytest.raises(DamagedTensor) as caught:
        open_tensor(tmp_path / name)
    str(caught.value).encode()


REAL: dict[str, list[bytes]] = {
    ".pt": [container(), container(method=zipfile.ZIP_DEFLATED), container(t__byteorder=b"big", t__version=b"3\n")],
    ".npy": [npy(described(), ELEMENTS), npy(described("'>c8'", "True"), ELEMENTS * 2)],
}


def damage(raw: bytes, flips: list[tuple[int, int]], cut: int, insert: bytes) -> bytes:
    changed = bytearray(raw)
    for place, value in flips:
        changed[place % len(changed)] = value
    place = cut % len(changed)
    return bytes(changed[:-place] if cut % 3 == 0 and place else changed[:place] + insert + changed[place:])


@pytest.mark.parametrize("suffix", REAL)
@settings(deadline=None, max_examples=500)
@given(
    which=st.integers(0, 2),
    flips=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=4),
    cut=st.integers(1, 2000),
    insert=st.sampled_from([b"", b"", b"\0", b"\xff\xff\xff\xff", b"PK\5\6", b"R"]),
)
@example(which=0, flips=[], cut=1, insert=b"")
def test_random_damage_gives_a_tensor_or_our_error(suffix, which, flips, cut, insert, tmp_path: Path) -> None:
    raw = REAL[suffix][which % len(REAL[suffix])]
    path = tmp_path / f"t{suffix}"
    path.write_bytes(damage(raw, flips, cut, insert))
    peak, result = peak_bytes(path)
    assert peak < 64 << 20
    if isinstance(result, HostTensor):
        result.data.tobytes()  # every byte that it points to is there


def test_every_truncation_and_every_flipped_bit_is_survived(tmp_path: Path) -> None:
    for suffix, raw in ((".pt", container()), (".npy", npy(described(), ELEMENTS))):
        path = tmp_path / f"t{suffix}"
        for end in range(len(raw)):
            path.write_bytes(raw[:end])
            with pytest.raises(DamagedTensor):
                open_tensor(path)
        for place in range(len(raw) * 8):
            changed = bytearray(raw)
            changed[place // 8] ^= 1 << place % 8
            path.write_bytes(changed)
            try:
                open_tensor(path).data.tobytes()
            except DamagedTensor:
                continue
