"""merge_result: configs and results that cannot be merged."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
from merge_tools import DATA, call, merge, write, write_all

from twinprobe._compare.merge.config import METRICS, STATISTICS
from twinprobe.errors import BadInput, NothingToCompare


def bad_config(tmp_path: Path, text: str) -> BadInput:
    with pytest.raises(BadInput) as caught:
        merge(tmp_path, text, DATA)
    assert "config.yaml" in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("compare_index: [Max diff]", 'has no "api"'),
        ("api:", '"api" is empty'),
        ("api: []", '"api" is empty'),
        ('api: [""]', "empty"),
        ("api: [{a: b}]", "name was expected"),
        ("", "empty"),
        ("- Distributed", "a mapping was expected"),
        ("api: [Distributed]\napi: [Torch]", "'api' is here and in line 1"),
        ("api: [Distributed", "is not YAML"),
        ("api: [Distributed]\ncompare_index: [Max dif]", "Max diff"),
        ("api: [Distributed]\ncompare_index: [Cosine]", "only results of real data have it"),
    ],
)
def test_a_config_that_cannot_be_used_is_refused_with_its_place(tmp_path: Path, text: str, what: str) -> None:
    assert what in str(bad_config(tmp_path, text))


def test_an_unknown_metric_is_answered_with_those_that_exist(tmp_path: Path) -> None:
    message = str(bad_config(tmp_path, "api: [Distributed]\ncompare_index: [Speed]"))
    assert all(metric in message for metric in METRICS[STATISTICS])


def test_an_exploding_config_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    bad_config(tmp_path, "\n".join([*lines, "api: *a8"]))


def test_calls_that_are_nowhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(NothingToCompare, match=r"config\.yaml"):
        merge(tmp_path, "api: [Distributed.all_red, istributed]", DATA)


def test_an_unknown_key_is_noted(tmp_path: Path) -> None:
    outcome = merge(tmp_path, "api: Distributed\ncolour: red", DATA)
    assert any("'colour'" in note for note in outcome.notes)


def test_results_that_cannot_be_merged_are_refused_by_name(tmp_path: Path) -> None:
    rows = call("Distributed.all_reduce.0", 1.0)
    sound = write(tmp_path, 0, rows)
    bad = tmp_path / "compare_result_rank1_20260101000001.csv"
    md5 = pl.DataFrame({"NPU Name": ["a"], "NPU Requires_grad": ["False"], "NPU MD5": ["1"], "BENCH MD5": ["1"]})
    kernels = pl.DataFrame(
        {"NPU Name": ["a"], "NPU max": ["1"], "Bench max": ["1"], "Accuracy Reached or Not": ["Yes"]}
    )
    other = pl.DataFrame({"a": ["1"]})
    for table, what in ((md5, "md5"), (kernels, "kernels of a static graph"), (other, "not a result of compare")):
        table.write_csv(bad)
        with pytest.raises(BadInput, match=f"{bad.name}.*{what}"):
            merge(tmp_path, "api: [Distributed]")
    bad.write_bytes(b"PAR1 no parquet")
    bad.rename(bad.with_suffix(".parquet"))
    with pytest.raises(BadInput, match=r"rank1_.*parquet: cannot be read"):
        merge(tmp_path, "api: [Distributed]")
    bad.with_suffix(".parquet").unlink()
    shutil.copy(sound, tmp_path / "compare_result_0_0_20260101000001.csv")
    with pytest.raises(BadInput, match=r"compare_result_0_0_.*kernels"):
        merge(tmp_path, "api: [Distributed]")


def test_fewer_than_two_ranks_are_refused_with_what_was_found(tmp_path: Path) -> None:
    write(tmp_path, 3, call("Distributed.all_reduce.0", 1.0))
    with pytest.raises(BadInput, match="at least two ranks are needed, found: rank 3"):
        merge(tmp_path, "api: [Distributed]")
    above = tmp_path / "above"
    above.mkdir()
    write_all(above / "step0", [call("Distributed.all_reduce.0", 1.0)] * 2)
    with pytest.raises(BadInput, match="one level below, in step0"):
        merge(tmp_path, "api: [Distributed]", above)
    with pytest.raises(BadInput, match="does not exist"):
        merge(tmp_path, "api: [Distributed]", tmp_path / "missing")


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(NothingToCompare):
        merge(tmp_path, "api: [Nothing]", DATA)
    assert list((tmp_path / "out").iterdir()) == []
