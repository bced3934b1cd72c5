"""twinprobe sketch: weights of two sites are compared by a file of a few kilobytes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

import twinprobe
from twinprobe._cli import main

RNG = np.random.default_rng(0)
WEIGHTS = {
    "embed.weight": RNG.normal(size=(50, 32)).astype(np.float32),
    "layer.0.bias": RNG.normal(size=32).astype(np.float16),
    "layer.0.scale": np.ones((), np.float32),
    "steps": np.arange(9),
    "empty": np.zeros((0, 4), np.float32),
}


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    save_file(WEIGHTS, tmp_path / "b.safetensors")
    return tmp_path / "b.safetensors"


@pytest.fixture
def changed() -> dict[str, np.ndarray]:
    return WEIGHTS | {
        "embed.weight": np.roll(WEIGHTS["embed.weight"], 1, axis=0),
        "layer.0.bias": WEIGHTS["layer.0.bias"] * np.float16(1.5),
    }


def table_of(target: Path, golden: Path, folder: Path) -> dict[str, dict[str, object]]:
    assert main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(folder), "--csv", "--quiet"]) == 0
    (file,) = folder.glob("*.csv")
    return {row["NPU Name"]: row for row in pl.read_csv(file, infer_schema_length=None).iter_rows(named=True)}


@pytest.mark.parametrize("kind", ["sketch", "safetensors", "npz"])
def test_a_sketch_is_compared_with_tensors_and_with_sketches(
    tmp_path: Path, golden: Path, changed: dict[str, np.ndarray], kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(changed, tmp_path / "a.safetensors")
    assert main(["sketch", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "a.sketch")]) == 0
    assert "5 tensors" in capsys.readouterr().out
    assert (tmp_path / "a.sketch").stat().st_size < 6000
    if kind == "sketch":
        golden = twinprobe.sketch(golden, tmp_path / "b.sketch")
    elif kind == "npz":
        np.savez_compressed(tmp_path / "b.npz", **WEIGHTS)
        golden = tmp_path / "b.npz"
    rows = table_of(tmp_path / "a.sketch", golden, tmp_path / "out")
    assert set(rows) == set(WEIGHTS)
    assert rows["embed.weight"]["Relative Error"] == pytest.approx(2**0.5, rel=0.3)
    assert rows["embed.weight"]["Result"] != "pass"
    assert rows["layer.0.bias"]["Relative Error"] == pytest.approx(0.5, rel=0.01)
    for same in ("steps", "layer.0.scale"):
        assert (rows[same]["Result"], rows[same]["Relative Error"]) == ("pass", 0.0)


def written_by_a_stranger(tensors: dict[str, np.ndarray]) -> bytes:
    """A file made by numpy alone, from what docs/formats.md says and nothing else."""

    def mix(x: np.ndarray) -> np.ndarray:
        x = x + np.uint32(0x9E3779B9)
        x = (x ^ x >> np.uint32(16)) * np.uint32(0x85EBCA6B)
        x = (x ^ x >> np.uint32(13)) * np.uint32(0xC2B2AE35)
        return x ^ x >> np.uint32(16)

    def fold(n: np.ndarray) -> np.ndarray:
        n = n.astype(np.int64).view(np.uint64)
        return n.astype(np.uint32) ^ (n >> np.uint64(32)).astype(np.uint32) * np.uint32(0x85EBCA6B)

    rows, index, data = [], [], {}
    for name, tensor in tensors.items():
        x = np.ascontiguousarray(tensor).reshape(-1)
        data[name] = {"type": "Tensor", "dtype": str(tensor.dtype), "shape": list(tensor.shape)}
        if not x.size:
            index.append(0xFFFFFFFF)
            continue
        real, n = x.astype(np.float64), len(x)
        length = -(-n // 16)
        powers = [power for power in (1 << k for k in range(10)) if power <= length / 8]
        step = max(powers, default=1)
        length = -(-length // step) * step
        i = np.arange(n)
        integer = x.dtype.kind in "iub"
        if integer:
            h = mix(mix(fold(i)) ^ fold(x))
            terms = np.stack([2 * (h >> np.uint32(8 * r) & np.uint32(255)).astype(np.int64) - 255 for r in range(4)])
        else:
            h = mix(fold(i // 8))
            bits = np.stack([h >> (8 * r + i % 8).astype(np.uint32) & np.uint32(1) for r in range(4)])
            terms = np.where(bits == 1, -real, real)
        blocks = [slice(at * length, (at + 1) * length) for at in range(16)]
        flags = 1 | (2 | 64 if integer else 0) | (64 if x.dtype == np.float64 else 0)
        row = struct.pack("<II6Q", flags, 0, n, n, (x == 0).sum(), 0, 0, 0)
        row += struct.pack("<3d", real.sum(), np.linalg.norm(real), np.abs(real).sum())
        row += np.stack([terms[:, block].sum(axis=1) for block in blocks]).astype("<f8").tobytes()
        row += np.array([np.linalg.norm(real[block]) for block in blocks], "<f4").tobytes()
        row += np.array([np.abs(real[block]).max(initial=0) for block in blocks], "<f4").tobytes()
        index.append(len(rows))
        rows.append(row)
        numbers = (real.max(), real.min(), real.mean(), np.linalg.norm(real))
        data[name] |= dict(zip(("Max", "Min", "Mean", "Norm"), map(float, numbers), strict=True))
    document = json.dumps({"task": "statistics", "level": "debug", "framework": "pytorch", "data": data}).encode()
    sizes = len(rows), len(index), len(document), 0
    head = struct.pack("<8sII16s4Q", b"TWPSKT\r\n", 1, 720, b"fmix32-8x4", *sizes)
    return head + b"".join(rows) + struct.pack(f"<{len(index)}I", *index) + document


def test_a_file_that_a_stranger_wrote_from_the_description_is_read(
    tmp_path: Path, golden: Path, changed: dict[str, np.ndarray]
) -> None:
    (tmp_path / "same.sketch").write_bytes(written_by_a_stranger(WEIGHTS))
    rows = table_of(tmp_path / "same.sketch", golden, tmp_path / "same")
    assert {row["Result"] for row in rows.values()} == {"pass"}
    assert max(float(row["Relative Error"] or 0) for row in rows.values()) < 1e-6
    (tmp_path / "other.sketch").write_bytes(written_by_a_stranger(changed | {"steps": np.arange(9) % 7}))
    rows = table_of(tmp_path / "other.sketch", golden, tmp_path / "other")
    assert rows["embed.weight"]["Relative Error"] == pytest.approx(2**0.5, rel=0.3)
    assert rows["layer.0.bias"]["Relative Error"] == pytest.approx(0.5, rel=0.01)
    assert rows["steps"]["Result"] != "pass"


def test_a_sketch_without_a_name_is_called_as_its_file(
    tmp_path: Path, golden: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert main(["sketch", str(golden)]) == 0
    assert "b.sketch" in capsys.readouterr().out
    written = (here / "b.sketch").read_bytes()
    assert main(["sketch", str(golden), str(golden)]) == 2  # another site's may be called like this
    assert "-o" in capsys.readouterr().err
    assert (here / "b.sketch").read_bytes() == written


def test_several_files_are_one_checkpoint(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    np.save(tmp_path / "bias.npy", WEIGHTS["layer.0.bias"])
    torch.save(torch.from_numpy(WEIGHTS["embed.weight"]).bfloat16(), tmp_path / "embed.pt")
    run = twinprobe.open(twinprobe.sketch([tmp_path / "bias.npy", tmp_path / "embed.pt"], tmp_path / "all.sketch"))
    assert run.table["name"].to_list() == ["bias", "embed"]
    assert run.table["dtype"].to_list() == ["float16", "bfloat16"]
    assert run.sketches is not None
    norm = np.linalg.norm(WEIGHTS["embed.weight"])
    assert run.sketches.of(np.array([1]))["norm"][0] == pytest.approx(norm, rel=1e-2)


def header(text: bytes, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    ("blob", "problem"),
    [
        (b"\1", "is it a safetensors file?"),
        (header(b"{}", length=1 << 60), "is it a safetensors file?"),
        (header(b"[1, 2"), "damaged safetensors header"),
        (header(b'{"a": 1}'), "damaged safetensors header"),
        (header(b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}'), "F99"),
        (header(b'{"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}'), "outside of the file"),
        (header(b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}'), "damaged safetensors header"),
        (header(b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}'), "damaged safetensors header"),
        (
            header(b'{"a": {"dtype": "F32", "shape": [99999999, 99999999, 99999999], "data_offsets": [0, 4]}}'),
            "contradicts",
        ),
        (header(b"{}"), "no tensors"),
    ],
)
def test_a_damaged_checkpoint_is_refused(
    tmp_path: Path, blob: bytes, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.safetensors").write_bytes(blob)
    assert main(["sketch", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "a.sketch")]) == 2
    said = capsys.readouterr().err
    assert problem in said
    assert "a.safetensors" in said
    assert not (tmp_path / "a.sketch").exists()


def test_what_cannot_be_sketched_is_said(tmp_path: Path, golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("no tensors")
    for words, problem in (
        ([tmp_path / "a.txt", "-o", tmp_path / "a.sketch"], "not a file of tensors"),
        ([golden, "-o", tmp_path / "a.bin"], "must end in .sketch"),
        ([golden, golden, "-o", tmp_path / "a.sketch"], "holds a tensor 'steps', too"),
        ([tmp_path / "nowhere.npz", "-o", tmp_path / "a.sketch"], "is missing"),
    ):
        assert main(["sketch", *map(str, words)]) == 2
        assert problem in capsys.readouterr().err
