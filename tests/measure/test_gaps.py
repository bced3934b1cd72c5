"""Many pairs in one call of compiled code: the same answers as one by one."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._measure.tolerance import Gap, HostPair, Tolerance, compare, compare_all, transposed
from twinprobe._runs.tensors.elements import HostTensor
from twinprobe._runs.tensors.tensor_files import open_tensor

LARGE = 100_000  # so many pairs that compiled code is used


def host(values: np.ndarray) -> HostTensor:
    return HostTensor(values.dtype.name, values.shape, np.ascontiguousarray(values).reshape(-1))


def in_one_call(pairs: list[HostPair], tolerance: Tolerance) -> list[Gap]:
    return compare_all(pairs, tolerance, in_all=LARGE).all()


def close(one: float, other: float) -> bool:
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-11)


def assert_alike(found: Gap, expected: Gap) -> None:
    assert (found.same, found.why, found.mismatched, found.elements) == (
        expected.same, expected.why, expected.mismatched, expected.elements,
    )  # fmt: skip
    for name in ("max_abs", "max_rel", "mean_abs", "cosine", "relative_norm"):
        assert close(getattr(found, name), getattr(expected, name)), name


NUMBERS = st.one_of(
    st.floats(-1e3, 1e3, width=32), st.sampled_from([0.0, -0.0, 1e-40, 3e38, math.nan, math.inf, -math.inf])
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 700), st.booleans(), NUMBERS, st.booleans()), max_size=6),
    st.sampled_from([Tolerance(), Tolerance(1e-3, 1e-3), Tolerance(0, 0), Tolerance(equal_nan=True)]),
)
def test_each_pair_gets_the_gap_that_it_gets_alone(
    shapes: list[tuple[int, int, bool, float, bool]], tolerance: Tolerance
) -> None:
    generator = np.random.default_rng(len(shapes))
    pairs: list[HostPair] = []
    for rows, columns, turned, odd, noisy in shapes:
        base = generator.standard_normal((rows, columns)).astype(np.float32)
        raw = base + noisy * generator.standard_normal((rows, columns)).astype(np.float32) * np.float32(1e-4)
        raw[0, columns // 2] = odd
        pairs.append((host(raw.T if turned else raw), host(base), turned))
    for found, (raw, base, turned) in zip(in_one_call(pairs, tolerance), pairs, strict=True):
        assert_alike(found, compare(transposed(raw) if turned else raw, base, tolerance))


def test_other_types_shapes_and_modes_go_by_the_long_way() -> None:
    one, wide = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float64).reshape(2, 3)
    pairs: list[HostPair] = [
        (host(one), host(wide), False),
        (host(one), host(one.T.copy()), False),
        (host(one), host(one[None]), False),
        (host(one.astype(np.int64)), host(one.astype(np.int64)), False),
        (host(one[:0]), host(one[:0]), False),
        (host(one[0, :1]), host(one[0, 1:2]), False),
    ]
    found = in_one_call(pairs, Tolerance())
    assert [gap.same for gap in found] == [True, False, True, True, True, False]
    assert "shape [2, 3] against [3, 2]" in found[1].why
    means = in_one_call([(host(one), host(one[:, ::-1].copy()), False)], Tolerance(mode="mean"))
    assert means[0].same


def test_elements_that_stay_in_their_file_are_compared_too(tmp_path: Path) -> None:
    values = np.arange(1 << 19, dtype=np.float32)
    np.save(tmp_path / "tensor.npy", values)
    in_file = open_tensor(tmp_path / "tensor.npy", at_once=1024)
    assert not isinstance(in_file.data, np.ndarray)
    equal, differing = in_one_call([(in_file, host(values), False), (in_file, host(values + 1), False)], Tolerance())
    assert (equal.same, differing.mismatched) == (True, 1 << 19)


def test_a_difference_at_any_place_is_seen() -> None:
    base = np.ones(3000, np.float32)
    pairs: list[HostPair] = []
    for place in (0, 1, 1023, 1024, 2047, 2999):
        raw = base.copy()
        raw[place] += 1
        pairs.append((host(raw), host(base), False))
    assert [gap.mismatched for gap in in_one_call(pairs, Tolerance())] == [1] * len(pairs)


def test_few_pairs_never_load_compiled_code() -> None:
    code = (
        "import sys, numpy as np\n"
        "from twinprobe._measure.tolerance import compare_all\n"
        "from twinprobe._measure.tolerance import Tolerance\n"
        "from twinprobe._runs.tensors.elements import HostTensor\n"
        "one = HostTensor('float32', (4,), np.ones(4, np.float32))\n"
        "two = HostTensor('float32', (4,), np.ones(4, np.float32) * 2)\n"
        "found = compare_all([(one, two, False)] * 50, Tolerance()).all()\n"
        "assert [gap.mismatched for gap in found] == [4] * 50\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
