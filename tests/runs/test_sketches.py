"""Sketches beside a dump: read where they fit, refused where they do not, and not missed where there are none."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twinprobe
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.sketches import INTEGER, PRESENT, ROW, read_file
from twinprobe.errors import BadInput

torch = pytest.importorskip("torch")


def recorded(folder: Path, scale: float = 1.0, **options: Any) -> Path:
    """The folder of a small recording: floats, integers, flags, a tensor that is seen again, parameters, gradients."""
    from twinprobe.torch import record

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.Linear(8, 4))
    ids = torch.arange(12).reshape(3, 4) % 9
    with record(model, folder, level="mix", **options):
        out = model(ids) * scale
        torch.where(out.detach() > 0, out.detach(), torch.zeros(()))
        (out * out).sum().backward()
    (step,) = folder.glob("step0/*")
    return step


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("dump") / "a")


@pytest.fixture
def copy(dump: Path, tmp_path: Path) -> Path:
    for name in ("dump.json", "dump.sketch"):
        (tmp_path / name).write_bytes((dump / name).read_bytes())
    return tmp_path


def test_every_tensor_has_its_sketch(dump: Path) -> None:
    run = open_run(dump)
    assert run.sketches is not None
    rows = run.sketches.of(np.arange(run.table.height))
    tensors = run.table["kind"].to_numpy() == 0
    assert (rows["flags"] != 0).tolist() == tensors.tolist()
    norms = run.table["norm"].to_numpy()
    known = tensors & np.isfinite(norms) & (rows["flags"] & INTEGER == 0)
    assert rows["norm"][known] == pytest.approx(norms[known], rel=1e-6)
    assert np.count_nonzero(known) > 20
    assert len(run.sketches.rows) < np.count_nonzero(tensors)  # what was seen again is there once
    flags = run.table["dtype"].str.contains("int|bool").fill_null(value=False).to_numpy() & tensors
    assert (rows["flags"][flags] & INTEGER != 0).all()
    assert flags.any()


def test_a_step_that_is_started_again_goes_on_with_its_file(tmp_path: Path) -> None:
    from twinprobe.torch import PrecisionDebugger

    debugger = PrecisionDebugger(dump_path=tmp_path / "dump", level="L1")
    x = torch.randn(5, 3)
    for part in range(2):
        debugger.start()
        torch.relu(x * (part + 1))
        debugger.stop()
    debugger.close()
    (step,) = (tmp_path / "dump").glob("step0/*")
    run = open_run(step)
    assert run.sketches is not None
    tensors = np.flatnonzero(run.table["kind"].to_numpy() == 0)
    rows = run.sketches.of(tensors)
    assert rows["norm"] == pytest.approx(run.table["norm"].to_numpy()[tensors], rel=1e-6)
    assert (rows["flags"] & PRESENT != 0).all()
    assert len(run.ops) == 4


def compared(target: Path, golden: Path, folder: Path) -> pl.DataFrame:
    """The table that a user gets."""
    (file,) = twinprobe.compare(target / "dump.json", golden / "dump.json").save(folder / "out", formats="csv")
    return pl.read_csv(file)


@pytest.mark.parametrize("options", [{"sketch": False}, {"summary_mode": "md5"}, {"summary_mode": "xor"}])
def test_a_dump_without_sketches_works_as_before(tmp_path: Path, options: dict[str, Any]) -> None:
    steps = [recorded(tmp_path / name, **options) for name in "ab"]
    assert not list(tmp_path.rglob("*.sketch*"))
    assert open_run(steps[0]).sketches is None
    assert "Relative Error Bounds" not in compared(*steps, tmp_path).columns


def test_dump_json_is_the_same_with_and_without(dump: Path, tmp_path: Path) -> None:
    without = recorded(tmp_path / "b", sketch=False)
    assert (without / "dump.json").read_text().split('"data"')[1] == (dump / "dump.json").read_text().split('"data"')[1]


def test_two_runs_are_compared_by_their_sketches(dump: Path, tmp_path: Path) -> None:
    other = recorded(tmp_path / "b", scale=1.25)
    table = compared(other, dump, tmp_path)
    assert table.columns[-5:-3] == ["Relative Error", "Relative Error Bounds"]
    row = table.filter(table["NPU Name"].str.contains("mul__.0.forward.output")).row(0, named=True)
    assert row["Relative Error"] == pytest.approx(0.25, rel=1e-4)
    low, high = map(float, row["Relative Error Bounds"].split(" to "))
    assert low <= 0.25 <= high


@pytest.mark.parametrize(
    ("place", "content", "problem"),
    [
        (0, b"NOSKETCH", "not a file of sketches"),
        (8, struct.pack("<I", 2), "version 2"),
        (12, struct.pack("<I", 721), "rows of 721 bytes"),
        (16, b"other-hash\0", "other-hash"),
        (32, struct.pack("<Q", 1 << 60), "bytes"),
        (40, struct.pack("<Q", 1 << 60), "bytes"),
        (48, struct.pack("<Q", 5), "bytes"),
        (64, struct.pack("<I", 1 << 20), "row 0: has flags"),
        (64, struct.pack("<I", 0), "row 0: has flags"),
        (64 + 8, struct.pack("<Q", 1 << 63), "row 0: holds counts"),
        (64 + 16, struct.pack("<Q", (1 << 64) - 1), "row 0: holds counts"),
        (64 + 24, struct.pack("<4Q", *[1 << 62] * 4), "row 0: holds counts"),
        (64 + 64, struct.pack("<d", -1.0), "row 0: holds a negative norm"),
        (64 + 720 + 80, struct.pack("<d", float("nan")), "row 1: holds a number that is NaN"),
        (64 + 720 + 592, struct.pack("<f", float("inf")), "row 1: holds a number that is NaN or infinite"),
        (-4, struct.pack("<I", 1 << 30), "names row 1073741824"),
    ],
)
def test_a_file_that_was_changed_is_refused(copy: Path, place: int, content: bytes, problem: str) -> None:
    blob = bytearray((copy / "dump.sketch").read_bytes())
    place %= len(blob)
    blob[place : place + len(content)] = content
    (copy / "dump.sketch").write_bytes(blob)
    with pytest.raises(BadInput, match=problem) as raised:
        assert open_run(copy).sketches
    assert str(copy / "dump.sketch") in str(raised.value)


def test_a_file_of_another_recording_is_refused(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    step = recorded(other / "b", data_mode=["forward"])
    (copy / "dump.sketch").write_bytes((step / "dump.sketch").read_bytes())
    with pytest.raises(BadInput, match="holds sketches of"):
        assert open_run(copy).sketches


@pytest.mark.parametrize("kept", [0, 63, 64, 700])
def test_a_file_that_breaks_off_is_refused(copy: Path, kept: int) -> None:
    (copy / "dump.sketch").write_bytes((copy / "dump.sketch").read_bytes()[:kept])
    with pytest.raises(BadInput):
        assert open_run(copy).sketches


def test_a_dump_that_breaks_off_keeps_the_sketches_of_what_is_left(copy: Path) -> None:
    whole = open_run(copy)
    text = (copy / "dump.json").read_bytes()
    (copy / "dump.json").write_bytes(text[: len(text) * 2 // 3])
    run = open_run(copy)
    assert 0 < run.table.height < whole.table.height
    assert whole.sketches is not None
    assert run.sketches is not None
    left = np.arange(run.table.height)
    assert np.array_equal(run.sketches.of(left)["sums"], whole.sketches.of(left)["sums"])


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_no_change_of_bytes_does_more_than_be_refused(dump: Path, data: st.DataObject) -> None:
    blob = bytearray((dump / "dump.sketch").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    del blob[data.draw(st.integers(len(blob) // 2, len(blob))) :]
    place = dump.parent / "changed.sketch"
    place.write_bytes(blob)
    try:
        rows, _, _ = read_file(place)
    except BadInput:
        return
    assert rows.dtype == ROW
    assert np.isfinite(rows["sums"]).all()


def test_runs_put_together_from_others_have_none(dump: Path) -> None:
    run = open_run(dump)
    assert Run(run.path, run.task, run.level, run.framework, run.ops, run.table.head(3), []).sketches is None
