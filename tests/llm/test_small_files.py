"""Small files go many at a time: with the same numbers as one by one, and never past what a file says of itself."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from llm_dumps import CODES, Sizes, atb_bytes, atb_layer, atb_model, decoder_values, write_atb, write_atb_model

from twinprobe._align.ops.plan import OpenedToken, Plan, make_plan
from twinprobe._align.ops.table import read_table
from twinprobe._compare.llm.measured import Measured, Measuring, measure_rows
from twinprobe._compare.llm.rows import rows_of
from twinprobe._measure.engine import PLAIN, engine_of
from twinprobe._measure.kernels import kernel_rows
from twinprobe._measure.llm_metrics import LlmMetrics, measure_llm_pair, metrics_of, numbers_of_rows
from twinprobe._runs.llm.dump import open_llm_dump
from twinprobe._runs.llm.files import TokenFolder
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.small_files import LARGEST, HeaderCache, SmallFiles

KERNELS = engine_of(1 << 40)


def alike(found: LlmMetrics, wanted: LlmMetrics) -> bool:
    """Equal but for the last digits of the divergence, whose logarithm is taken column by column."""
    same = found._replace(kl=None) == wanted._replace(kl=None)
    return same and found.kl == pytest.approx(wanted.kl, rel=1e-9, abs=1e-300)


@settings(deadline=None, max_examples=60)
@given(st.data(), st.sampled_from(["float16", "float32"]))
def test_many_pairs_have_the_numbers_of_each_alone(data: st.DataObject, dtype: str) -> None:
    finite = st.floats(-1e4, 1e4, width=16).filter(lambda value: value == 0 or abs(value) > 1e-3)
    shapes = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    sides = [[data.draw(arrays.arrays(dtype, size, elements=finite)) for size in shapes] for _ in range(2)]
    starts = np.concatenate([[0], np.cumsum(shapes)[:-1]])
    places = np.array([(at, at, size) for at, size in zip(starts, shapes, strict=True)], np.int64)
    whole = [np.frombuffer(np.concatenate(side).tobytes().ljust(2048, b"\0"), np.uint8) for side in sides]
    numbers, sound = numbers_of_rows(kernel_rows(dtype, whole[0], whole[1], places), places[:, 2])
    assert sound.all()
    for one, my, golden in zip(numbers.tolist(), *sides, strict=True):
        alone = measure_llm_pair(HostTensor(dtype, my.shape, my), HostTensor(dtype, my.shape, golden), engine=KERNELS)
        assert alike(metrics_of("", one), alone)


def test_pairs_with_nan_or_inf_are_left_to_be_measured_alone() -> None:
    values = np.array([1, 2, np.nan, 1, np.inf, 3], np.float32)
    memory = np.frombuffer(values.tobytes(), np.uint8)
    places = np.array([(0, 0, 2), (2, 2, 2), (4, 4, 2)], np.int64)
    _, sound = numbers_of_rows(kernel_rows("float32", memory, memory, places), places[:, 2])
    assert sound.tolist() == [True, False, False]


def test_places_outside_of_the_memory_are_never_read() -> None:
    memory = np.zeros(64, np.uint8)
    with pytest.raises(AssertionError):
        kernel_rows("float32", memory, memory, np.array([(0, 10, 8)], np.int64))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from(["float16", "float32"]), st.integers(0, 3), st.integers(1, 50)), max_size=8))
def test_elements_off_their_boundaries_arrive_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, files: list[tuple[str, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("small")
    arrays_of = []
    for at, (dtype, odd, size) in enumerate(files):
        array = np.arange(size, dtype=dtype) + at
        content = atb_bytes(array.tobytes(), (size,), CODES[dtype], more="x" * odd)
        (folder / f"{at}.bin").write_bytes(content)
        arrays_of.append(array)
    with SmallFiles(str(folder), HeaderCache()) as small:
        held = [small.read(f"{at}.bin") for at in range(len(files))]
        for one, array in zip(held, arrays_of, strict=True):
            assert one is not None
            first, what = one
            memory = small.octets[: small.octets.size // 8 * 8].view(array.dtype)
            assert memory[first : first + what.elements].tolist() == array.tolist()


def test_links_fifos_folders_and_large_or_short_files_are_no_small_files(tmp_path: Path) -> None:
    write_atb(tmp_path / "good.bin", np.ones(4, np.float32))
    whole = (tmp_path / "good.bin").read_bytes()
    (tmp_path / "short.bin").write_bytes(whole[:-1])
    (tmp_path / "empty.bin").write_bytes(b"")
    (tmp_path / "link.bin").symlink_to("good.bin")
    (tmp_path / "folder.bin").mkdir()
    os.mkfifo(tmp_path / "fifo.bin")
    write_atb(tmp_path / "large.bin", np.ones(LARGEST // 4, np.float32))
    write_atb(tmp_path / "integers.bin", np.ones(4, np.int32))
    (tmp_path / "alias.bin").write_bytes(atb_bytes(b"\0" * 8, (2,), 0, data="0_outtensor0.bin"))
    with SmallFiles(str(tmp_path), HeaderCache()) as small:
        assert small.read("good.bin") is not None
        for name in ("short", "empty", "link", "folder", "fifo", "large", "integers", "alias", "missing"):
            assert small.read(f"{name}.bin") is None, name


@pytest.fixture
def engines(tmp_path: Path) -> tuple[Path, Path]:
    """Two ATB dumps of two rounds that differ a little."""
    sizes = Sizes()
    for at, name in enumerate(("mine", "golden")):
        rounds = {number: decoder_values(sizes, seed=number) for number in (0, 1)}
        for values in rounds.values():
            values["0.o"] = values["0.o"] + at * np.float32(0.125)
        write_atb_model(tmp_path / name / "ait_dump", "0_7", rounds, atb_model(sizes.layers, atb_layer()))
    return tmp_path / "mine" / "ait_dump", tmp_path / "golden" / "ait_dump"


def planned(engines: tuple[Path, Path]) -> tuple[Plan, list[TokenFolder]]:
    my, golden = (open_llm_dump(path) for path in engines)
    tokens = [dump.tokens(dump.layout.devices[0])[0] for dump in (my, golden)]
    plan = make_plan(OpenedToken(my, tokens[0]), OpenedToken(golden, tokens[1]), read_table(None))
    return plan, [TokenFolder(dump.kind, dump.root, tokens[0].folder) for dump in (my, golden)]


def measured(engines: tuple[Path, Path], how: Measuring) -> Measured:
    plan, (my, golden) = planned(engines)
    return measure_rows(rows_of(plan, my.files, golden.files, None), my, golden, how)


def test_a_token_measured_many_at_a_time_reads_like_one_measured_row_by_row(engines: tuple[Path, Path]) -> None:
    together, alone = measured(engines, Measuring(KERNELS)), measured(engines, Measuring(PLAIN))
    threads = measured(engines, Measuring(KERNELS, None, 3))
    count = len(together.dtypes[0])
    assert [threads.of_row(index) for index in range(count)] == [together.of_row(index) for index in range(count)]
    assert (together.dtypes, together.shapes, together.faults) == (alone.dtypes, alone.shapes, alone.faults)
    for index in range(count):
        one, other = together.of_row(index), alone.of_row(index)
        assert one.target == pytest.approx(other.target, rel=1e-6)
        assert one.cosine == pytest.approx(other.cosine, rel=1e-6)
        assert one.identical == other.identical


def test_one_bad_file_among_small_ones_is_one_row_with_a_reason(engines: tuple[Path, Path]) -> None:
    layer = engines[0] / "tensors/0_7/0/1_CommonLayer/0_RmsNormOperation"
    bad = layer / "after/outtensor0.bin"
    bad.write_bytes(bad.read_bytes()[:-3])
    link = layer / "before/intensor0.bin"
    outside = engines[0].parent / "outside.bin"
    link.rename(outside)
    link.symlink_to(outside)
    found = measured(engines, Measuring(KERNELS))
    faults = sorted(found.faults.values())
    assert len(faults) == 2
    assert any("claims" in fault for fault in faults)
    assert any("outside" in fault for fault in faults)


def test_rows_of_the_next_token_are_those_of_the_one_before_unless_its_files_differ(
    engines: tuple[Path, Path],
) -> None:
    plan, (my, golden) = planned(engines)
    theirs = golden.files
    next_token = TokenFolder(my.kind, my.root, my.folder[:-1] + "1")
    first = rows_of(plan, my.files, theirs, None)
    assert rows_of(plan, next_token.files, theirs, None) is first
    lost = my.root / next_token.folder / "1_CommonLayer/0_RmsNormOperation/after/outtensor0.bin"
    lost.unlink()
    fewer = rows_of(plan, replace(next_token).files, theirs, None)
    assert fewer.names != first.names


def test_a_plan_arrives_once_in_another_process(engines: tuple[Path, Path]) -> None:
    plan, _ = planned(engines)
    packed = pickle.dumps(plan)
    one, other = pickle.loads(packed), pickle.loads(packed)
    assert one is other
    assert one.calls == plan.calls
    assert one.links == plan.links
