"""Files of some megabytes: read whole or piece by piece, with the numbers of a pair measured by itself."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from llm_dumps import write_atb, write_pth

from twinprobe._compare.llm.measured import Measured, SmallPairs
from twinprobe._measure.engine import engine_of
from twinprobe._measure.llm_metrics import LlmMetrics, measure_llm_pair
from twinprobe._measure.loops.inference_sums import PIECE
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.small_files import CHUNK, LARGEST, HeaderCache, LargeFile, NotLarge, SmallFiles

KERNELS = engine_of(1 << 40)


def pair_of(size: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(size)
    golden = rng.standard_normal(size).astype(np.float32)
    return golden + np.float32(1e-3) * rng.standard_normal(size, dtype=np.float32), golden


def by_itself(my: np.ndarray, golden: np.ndarray) -> LlmMetrics:
    sides = [HostTensor("float32", side.shape, side) for side in (my, golden)]
    return measure_llm_pair(sides[0], sides[1], engine=KERNELS)


def taken(folder: Path, my: str, golden: str) -> LlmMetrics | None:
    """The metrics of two files; None if they have to be read otherwise."""
    results = Measured(1)
    with SmallFiles(str(folder), HeaderCache()) as mine, SmallFiles(str(folder), HeaderCache()) as theirs:
        pairs = SmallPairs(mine, theirs, results)
        if not pairs.take(0, my, golden):
            return None
        assert pairs.finish() == []
    assert results.shapes[0] == results.shapes[1]
    return results.of_row(0)


def test_pieces_are_whole_for_kernels() -> None:
    assert CHUNK % PIECE == 0


@pytest.mark.parametrize("size", [20_000, CHUNK, 2 * CHUNK + 4097])
def test_elements_read_piece_by_piece_have_the_numbers_of_all_at_once(tmp_path: Path, size: int) -> None:
    my, golden = pair_of(size)
    write_atb(tmp_path / "my.bin", my)
    write_atb(tmp_path / "golden.bin", golden)
    found, wanted = taken(tmp_path, "my.bin", "golden.bin"), by_itself(my, golden)
    assert found is not None
    assert found._replace(kl=None) == wanted._replace(kl=None)
    assert found.kl == pytest.approx(wanted.kl, rel=1e-9)


@pytest.mark.parametrize("size", [20_000, 300_000])
def test_torch_files_are_read_whole_up_to_a_limit(tmp_path: Path, size: int) -> None:
    my, golden = pair_of(size)
    write_pth(tmp_path / "my.pth", my)
    write_pth(tmp_path / "golden.pth", golden)
    found, wanted = taken(tmp_path, "my.pth", "golden.pth"), by_itself(my, golden)
    assert found is not None
    assert found._replace(kl=None) == wanted._replace(kl=None)
    write_pth(tmp_path / "my.pth", np.ones(LARGEST // 4, np.float32))
    assert taken(tmp_path, "my.pth", "golden.pth") is None


def test_sizes_that_differ_and_files_that_are_no_tensors_are_left_to_others(tmp_path: Path) -> None:
    my, golden = pair_of(20_000)
    write_atb(tmp_path / "my.bin", my)
    write_atb(tmp_path / "golden.bin", golden[:-1])
    assert taken(tmp_path, "my.bin", "golden.bin") is None
    write_atb(tmp_path / "golden.bin", golden)
    whole = (tmp_path / "golden.bin").read_bytes()
    (tmp_path / "short.bin").write_bytes(whole[:-1])
    (tmp_path / "link.bin").symlink_to("golden.bin")
    os.mkfifo(tmp_path / "fifo.bin")
    for name in ("short.bin", "link.bin", "fifo.bin", "missing.bin", "bad\0name.bin"):
        assert taken(tmp_path, "my.bin", name) is None, name


def test_a_file_that_changes_while_it_is_read_is_not_measured(tmp_path: Path) -> None:
    write_atb(tmp_path / "one.bin", np.ones(20_000, np.float32))
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with LargeFile(folder, "one.bin", HeaderCache()) as large:
            large.check()
            os.truncate(tmp_path / "one.bin", 50_000)
            with pytest.raises(NotLarge):
                large.read(0, 20_000, memoryview(bytearray(80_000)))
            with pytest.raises(NotLarge):
                large.check()
    finally:
        os.close(folder)
