"""Every rule behind a verdict: what is a pass, a warning, an error, and where a difference begins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import forward, tensor, tensor_dump, value, write_dump
from twinprobe._compare.one import Comparison, Options, compare_paths
from twinprobe._judge.rules import Thresholds

NAN, INF = float("nan"), float("inf")
EPS32 = 2.0**-23


def compared(tmp_path: Path, ours: dict[str, Any], theirs: dict[str, Any], **options: Any) -> Comparison:
    left, right = (write_dump(tmp_path / side, data) for side, data in (("t", ours), ("g", theirs)))
    return compare_paths(left, right, Options(**options))


def rows(comparison: Comparison) -> dict[str, dict[str, Any]]:
    table = comparison.table().to_dicts()
    return {row["NPU Name"] if row["NPU Name"] != "N/A" else row["Bench Name"]: row for row in table}


def one_input(tmp_path: Path, ours: Any, theirs: Any, **options: Any) -> dict[str, Any]:
    left, right = ({"Torch.f.0.forward": forward([leaf], [])} for leaf in (ours, theirs))
    return rows(compared(tmp_path, left, right, **options))["Torch.f.0.forward.input.0"]


def one_call(
    tmp_path: Path, inputs: tuple[Any, Any], outputs: tuple[Any, Any], op: str = "Torch.f.0.forward"
) -> dict[str, Any]:
    left, right = ({op: forward([i], [o])} for i, o in zip(inputs, outputs, strict=True))
    return rows(compared(tmp_path, left, right))[f"{op}.output.0"]


def test_equal_statistics_are_identical(tmp_path: Path) -> None:
    row = one_input(tmp_path, tensor(), tensor())
    assert (row["Result"], row["Err_message"], row["Reason"], row["Relative Error"]) == ("pass", "[]", "identical", 0.0)


def test_a_difference_within_rounding_is_a_pass_that_says_so(tmp_path: Path) -> None:
    row = one_input(tmp_path, tensor(norm=2.0 * (1 + 2 * EPS32)), tensor(norm=2.0))
    assert (row["Result"], row["Reason"]) == ("pass", "equal within rounding")


def test_the_coarser_dtype_decides_what_rounding_is(tmp_path: Path) -> None:
    half = tensor(norm=2.0 * 1.01, dtype="torch.bfloat16")
    assert one_input(tmp_path, half, tensor(dtype="torch.bfloat16"))["Reason"] == "equal within rounding"
    assert one_input(tmp_path, tensor(norm=2.02), tensor())["Result"] == "warning"


def test_what_counts_as_rounding_can_be_set(tmp_path: Path) -> None:
    data = [{"Torch.f.0.forward": forward([tensor(norm=norm)], [])} for norm in (2.0 * (1 + 60 * EPS32), 2.0)]
    strict = compared(tmp_path, *data, thresholds=Thresholds(rounding=1.0))
    assert strict.summary.verdicts["warning"] == 1


def test_a_flipped_sign_is_seen_though_the_norm_is_equal(tmp_path: Path) -> None:
    row = one_input(tmp_path, tensor(high=1.0, low=-0.5, mean=0.2), tensor(high=0.5, low=-1.0, mean=-0.2))
    assert row["Result"] == "warning"
    assert row["Relative Error"] == pytest.approx(0.5)


def test_a_mean_near_zero_is_no_alarm(tmp_path: Path) -> None:
    row = one_input(tmp_path, tensor(mean=2e-8), tensor(mean=-1e-8))
    assert (row["Result"], row["Reason"]) == ("pass", "equal within rounding")


@pytest.mark.parametrize(
    ("ours", "theirs"), [(INF, -INF), (-INF, INF), (1.0, NAN), (NAN, 1.0), (1.0, INF), (INF, 1.0), (NAN, INF)]
)
def test_nan_or_inf_on_one_side_is_an_error_in_either_direction(tmp_path: Path, ours: float, theirs: float) -> None:
    row = one_input(tmp_path, tensor(high=ours), tensor(high=theirs))
    assert row["Result"] == "error"
    assert "NaN or infinity" in row["Reason"]


def test_nan_on_both_sides_is_identical(tmp_path: Path) -> None:
    leaf = tensor(high=NAN, low=NAN, mean=NAN, norm=NAN)
    assert one_input(tmp_path, leaf, leaf)["Reason"] == "identical"


def test_an_unmatched_row_is_a_warning_on_either_side(tmp_path: Path) -> None:
    left, right = ({f"Torch.{api}.0.forward": forward([tensor()], [])} for api in "fg")
    found = rows(compared(tmp_path, left, right))
    assert found["Torch.f.0.forward.input.0"]["Reason"] == "no counterpart in the golden run"
    assert found["Torch.g.0.forward.input.0"]["Reason"] == "no counterpart in the target run"
    assert {row["Result"] for row in found.values()} == {"warning"}


def test_tensors_of_which_nothing_was_recorded_are_not_called_equal(tmp_path: Path) -> None:
    blank = tensor(high=None, low=None, mean=None, norm=None, dtype="torch.float8_e5m2")
    row = one_input(tmp_path, blank, blank)
    assert (row["Result"], row["Reason"]) == ("warning", "nothing that could be compared was recorded")
    empty = blank | {"shape": [0, 3]}
    assert one_input(tmp_path, empty, empty)["Result"] == "pass"


def test_unknown_statistics_of_one_side_are_left_out_of_the_judgement(tmp_path: Path) -> None:
    ours = tensor(dtype="torch.int64", high=3, low=0, mean=None, norm=None)
    theirs = tensor(dtype="Int64", type="mindspore.Tensor", high=3.0, low=0.0, mean=1.5, norm=4.0)
    del theirs["requires_grad"]
    assert one_input(tmp_path, ours, theirs)["Result"] == "pass"


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        ("torch.float32", "Float32", "pass"),
        ("torch.bfloat16", "BFloat16", "pass"),
        ("torch.bool", "Bool", "pass"),
        ("paddle.float16", "torch.float16", "pass"),
        ("torch.float32", "torch.float16", "error"),
        ("torch.int64", "Float32", "error"),
    ],
)
def test_dtypes_are_compared_by_meaning(tmp_path: Path, ours: str, theirs: str, verdict: str) -> None:
    documented = Thresholds(by_row=True)
    assert one_input(tmp_path, tensor(dtype=ours), tensor(dtype=theirs), thresholds=documented)["Result"] == verdict
    # By itself another dtype is no error: its values are judged by the coarser one.
    assert one_input(tmp_path, tensor(dtype=ours), tensor(dtype=theirs))["Result"] == "pass"


def test_a_missing_requires_grad_is_no_difference_but_another_one_is(tmp_path: Path) -> None:
    without = tensor()
    del without["requires_grad"]
    assert one_input(tmp_path, without, tensor())["Result"] == "pass"
    row = one_input(tmp_path, tensor(requires_grad=True), tensor())
    assert (row["Result"], row["Requires_grad Consistent"]) == ("pass", "False")
    row = one_input(tmp_path, tensor(requires_grad=True), tensor(), thresholds=Thresholds(by_row=True))
    assert (row["Result"], row["Requires_grad Consistent"]) == ("error", "False")


def test_another_shape_is_an_error(tmp_path: Path) -> None:
    assert one_input(tmp_path, tensor(shape=[3, 2]), tensor())["Reason"].startswith("the shape differs")


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (value("npu:0", "torch.device"), value("cuda:0", "torch.device"), "pass"),
        (value(2), value(2.0), "pass"),
        (value(2), value(3), "error"),
        (value("sum"), value("mean"), "error"),
        (value("->ij"), value("->ij"), "pass"),
        (value([0, 1, None], "slice"), value([0, 2, None], "slice"), "error"),
        (value([2, 3], "torch.Size"), value([3, 2], "torch.Size"), "error"),
        ({"type": "torch.memory_format", "format": "a"}, {"type": "torch.memory_format", "format": "b"}, "error"),
        ({"type": "Group", "group_ranks": [0]}, {"type": "Group", "group_ranks": [1]}, "error"),
        (None, None, "pass"),
        (None, tensor(), "warning"),
    ],
)  # fmt: skip
def test_plain_values_are_equal_or_not(tmp_path: Path, ours: Any, theirs: Any, verdict: str) -> None:
    assert one_input(tmp_path, ours, theirs)["Result"] == verdict


def test_an_output_that_differs_from_equal_inputs_is_injected(tmp_path: Path) -> None:
    row = one_call(tmp_path, (tensor(), tensor()), (tensor(norm=2.06), tensor(norm=2.0)))
    assert (row["Result"], row["Origin"]) == ("warning", "injected")
    assert json.loads(row["Err_message"]) == ["warning: the output differs while all inputs agree: injected here"]


def test_a_far_output_from_close_inputs_is_an_error(tmp_path: Path) -> None:
    row = one_call(tmp_path, (tensor(), tensor()), (tensor(norm=3.1), tensor(norm=2.0)))
    assert (row["Result"], row["Origin"]) == ("error", "injected")


def test_an_output_whose_inputs_differ_is_inherited_and_never_a_pass(tmp_path: Path) -> None:
    first = {"Torch.a.0.forward": forward([tensor()], [tensor(norm=2.5)])}
    golden = {"Torch.a.0.forward": forward([tensor()], [tensor()])}
    first["Torch.b.0.forward"] = forward([tensor(norm=2.5)], [tensor(norm=2.4)])
    golden["Torch.b.0.forward"] = forward([tensor()], [tensor()])
    comparison = compared(tmp_path, first, golden)
    row = rows(comparison)["Torch.b.0.forward.output.0"]
    assert (row["Result"], row["Origin"]) == ("warning", "inherited")
    assert comparison.summary.first is not None
    assert comparison.summary.first.op == "Torch.a.0.forward"


def test_differing_weights_are_the_cause_where_they_enter(tmp_path: Path) -> None:
    def run(weight: float, output: float) -> dict[str, Any]:
        call = forward([tensor()], [tensor(norm=output)]) | {"parameters": {"weight": tensor(norm=weight)}}
        return {"Module.fc.Linear.forward.0": call}

    comparison = compared(tmp_path, run(2.4, 2.3), run(2.0, 2.0))
    found = rows(comparison)
    assert found["Module.fc.Linear.forward.0.parameters.weight"]["Origin"] == "injected"
    assert found["Module.fc.Linear.forward.0.output.0"]["Origin"] == "injected"
    assert comparison.summary.first is not None


def test_what_a_collective_gives_may_have_begun_elsewhere(tmp_path: Path) -> None:
    op = "Distributed.all_reduce.0.forward"
    row = one_call(tmp_path, (tensor(), tensor()), (tensor(norm=2.5), tensor(norm=2.0)), op)
    assert (row["Result"], row["Origin"]) == ("warning", "inherited")
    assert "another rank" in row["Reason"]


def test_memory_that_nobody_wrote_is_not_judged(tmp_path: Path) -> None:
    row = one_call(tmp_path, (value(3), value(3)), (tensor(norm=9.0, high=NAN), tensor()), "Torch.empty.0.forward")
    assert row["Result"] == "pass"
    assert row["Reason"].endswith("not defined")


def test_backward_calls_pair_by_their_order_on_both_sides(tmp_path: Path) -> None:
    def run(numbers: tuple[int, int]) -> dict[str, Any]:
        return {
            f"Torch.f.{n}.backward": {"input": [tensor(norm=x)], "output": []}
            for n, x in zip(numbers, (1.0, 5.0), strict=True)
        }

    comparison = compared(tmp_path, run((7, 3)), run((1, 0)))
    assert comparison.summary.verdicts["pass"] == 2
    assert [row["Bench Name"] for row in comparison.table().to_dicts()] == [
        "Torch.f.1.backward.input.0",
        "Torch.f.0.backward.input.0",
    ]


def test_checksums_differ_as_error_where_it_begins_and_warning_where_it_is_inherited(tmp_path: Path) -> None:
    def run(*digests: str) -> dict[str, Any]:
        a, b, c = (tensor(md5=digest) for digest in digests)
        return {"Torch.a.0.forward": forward([a], [b]), "Torch.b.0.forward": forward([b], [c])}

    found = rows(compared(tmp_path, run("00", "11", "22"), run("00", "aa", "bb")))
    assert [row["Result"] for row in found.values()] == ["pass", "error", "warning", "warning"]


def test_real_tensors_are_judged_by_their_elements(tmp_path: Path) -> None:
    base = np.linspace(1, 2, 1000, dtype=np.float32)
    far = base.copy()
    far[:500] *= 1.01
    calls = {
        "same": (base, base),
        "rounding": (base, np.nextafter(base, 3, dtype=np.float32)),
        "far": (base, far),
        "nan": (base, np.where(base > 1.99, np.float32(NAN), base)),
        "sign": (np.where(base > 1.99, np.float32(INF), base), np.where(base > 1.99, np.float32(-INF), base)),
        "shape": (base, base[:10]),
    }
    paths = []
    for side in (0, 1):
        arrays = {f"Torch.{k}.0.forward": {"input.0": base, "output.0": pair[side]} for k, pair in calls.items()}
        paths.append(tensor_dump(tmp_path / str(side), arrays))
    found = rows(compare_paths(*paths))
    verdicts = {key: found[f"Torch.{key}.0.forward.output.0"]["Result"] for key in calls}
    assert verdicts == {
        "same": "pass", "rounding": "pass", "far": "error", "nan": "error", "sign": "error", "shape": "error",
    }  # fmt: skip
    assert found["Torch.shape.0.forward.output.0"]["Cosine"] == "shape unmatched"


def test_a_damaged_tensor_costs_its_own_row_only(tmp_path: Path) -> None:
    base = np.ones(4, dtype=np.float32)
    calls = {f"Torch.f.{at}.forward": {"output.0": base} for at in range(3)}
    left, right = (tensor_dump(tmp_path / side, calls) for side in "tg")
    broken = left.parent / "dump_tensor_data" / "Torch.f.1.forward.output.0.npy"
    broken.write_bytes(broken.read_bytes()[:-4])
    (left.parent / "dump_tensor_data" / "Torch.f.2.forward.output.0.npy").unlink()
    found = list(rows(compare_paths(left, right)).values())
    assert [row["Result"] for row in found] == ["pass", "warning", "warning"]
    assert found[1]["Cosine"] == "unsupported"
    assert broken.name in found[1]["Reason"]
    assert "could not be read" in found[2]["Reason"]
