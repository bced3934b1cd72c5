"""``-st`` and ``-w``: recorded statistics, and weights."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llm_command import Said
from llm_dumps import Sizes, Values, atb_layer, atb_model, decoder_values, write_atb_model, write_pth, write_torch

from twinprobe._runs.tensors.atb_file import dtype_text, read_header, tensor_of
from twinprobe._runs.tensors.elements import HostTensor

Run = Callable[..., Said]
COLUMNS = ("NodeName", "NodeType", "InputOutput", "Index", "DataType", "Shape", "Max", "Min", "Mean", "L2Norm")
SIZES = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)


def _read(data: bytes) -> HostTensor:
    return tensor_of(data, read_header(data))


def as_statistics(root: Path) -> None:
    """Replace every ATB tensor by its statistics, as the library does for ``--type tensor stats``."""
    for path in root.glob("tensors/**/*.bin"):
        tensor = _read(path.read_bytes())
        data = tensor.data.astype(np.float64)
        values = {"max": data.max(), "min": data.min(), "mean": data.mean(), "l2norm": np.linalg.norm(data)}
        code = 1 if tensor.dtype == "float16" else 9
        assert dtype_text(code) == tensor.dtype
        lines = ["format=2", f"type={code}", f"dims={','.join(map(str, tensor.shape))}"]
        path.write_text("\n".join([*lines, *[f"{key}={value}" for key, value in values.items()], "$End=1"]))


def as_torch_statistics(device: Path) -> None:
    """Replace every .pth by its row in statistics.csv."""
    from twinprobe._runs.tensors.tensor_files import open_tensor

    for folder in device.glob("0/*"):
        rows = []
        for path in sorted(folder.glob("*.pth")):
            tensor = open_tensor(path)
            data = tensor.data.astype(np.float64)
            side = "Input" if path.name.startswith("input") else "Output"
            shape = str(list(tensor.shape))
            rows.append([folder.name, "T", side, 0, f"torch.{tensor.dtype}", shape, data.max(), data.min(), data.mean(),
                         np.linalg.norm(data)])  # fmt: skip
            path.unlink()
        with (folder / "statistics.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(
                ["NodeName", "NodeType", "InputOutput", "Index", "DataType", "Shape", "Max", "Min", "Mean", "L2Norm"]
            )
            writer.writerows(rows)


def report(folder: Path, stem: str) -> list[dict[str, str]]:
    with next(folder.glob(f"{stem}_*.csv")).open(newline="") as file:
        return list(csv.DictReader(file))


def made(tmp_path: Path, mine: Values | None = None) -> tuple[Path, Path]:
    values = decoder_values(SIZES)
    golden = write_torch(tmp_path / "t" / "7_npu0", {0: values}, 2)
    root = write_atb_model(tmp_path / "ait_dump", "0_8", {0: mine or values}, atb_model(2, atb_layer()))
    return golden, root


def test_statistics_of_both_kinds_pair_like_the_tensors_they_stand_for(llm: Run, tmp_path: Path) -> None:
    golden, mine = made(tmp_path)
    assert llm("compare", "-gp", golden, "-mp", mine, "-st", "-o", tmp_path / "full").code == 0
    as_statistics(mine)
    as_torch_statistics(golden)
    said = llm("compare", "-gp", golden, "-mp", mine, "-st", "-o", tmp_path / "o")
    assert said.code == 0, said.err
    rows = report(tmp_path / "o", "statstics_cmp_report")
    assert list(rows[0])[:14] == [
        "token_id", "data_id", "golden_data_path", "golden_op_type", "my_data_path", "my_op_type",
        "max_stat_absolute_error", "max_stat_relative_error", "min_stat_absolute_error", "min_stat_relative_error",
        "mean_stat_absolute_error", "mean_stat_relative_error", "l2norm_stat_absolute_error",
        "l2norm_stat_relative_error",
    ]  # fmt: skip
    assert {row["Result"] for row in rows} == {"pass"}
    assert len(rows) == len(report(tmp_path / "full", "statstics_cmp_report"))


def test_a_wrong_statistic_is_not_a_pass(llm: Run, tmp_path: Path) -> None:
    values = decoder_values(SIZES)
    golden, mine = made(tmp_path, {**values, "1.down": values["1.down"] * 2})
    as_statistics(mine)
    said = llm("compare", "-gp", golden, "-mp", mine, "-st", "-o", tmp_path / "o", "--json")
    assert said.code == 0
    wrong = [row for row in report(tmp_path / "o", "statstics_cmp_report") if row["Result"] != "pass"]
    assert wrong
    assert all("2_CommonLayer" in row["my_data_path"] for row in wrong)
    assert float(wrong[0]["l2norm_stat_relative_error"]) == pytest.approx(1.0, rel=0.01)
    # Judged as calls, like tensors: the sentence says where it begins.
    first = json.loads(said.out)["first"]
    assert first["row"] == wrong[0]["my_data_path"]
    assert "injected here" in first["sentence"]
    assert all("injected here" in row["Reason"] for row in wrong)


def test_tensors_of_a_statistics_dump_are_rows_with_a_reason(llm: Run, tmp_path: Path) -> None:
    golden, mine = made(tmp_path)
    as_statistics(mine)
    assert llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o").code == 0
    rows = report(tmp_path / "o", "ait_cmp_report")
    assert all("statistics only" in row["cmp_fail_reason"] for row in rows if row["my_data_path"])


def test_weights_are_compared_by_name_and_integers_dequantised(llm: Run, tmp_path: Path) -> None:
    golden, _ = made(tmp_path)
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((6, 4)).astype(np.float32)
    for name in ("root.a.weight", "root.b.weight", "root.c.weight"):
        write_pth(golden / "weights" / f"{name}.pth", weight)
    mine = tmp_path / "m" / "7_npu0"
    shutil.copytree(golden, mine)
    scale = np.abs(weight).max(axis=1, keepdims=True) / 127
    write_pth(mine / "weights" / "root.b.weight.pth", np.round(weight / scale + 1).clip(-128, 127).astype(np.int8))
    write_pth(mine / "weights" / "root.b.weight_scale.pth", scale)
    write_pth(mine / "weights" / "root.b.weight_offset.pth", np.ones((6, 1), np.float32))
    write_pth(mine / "weights" / "root.c.weight.pth", weight + 1)
    said = llm("compare", "-gp", golden, "-mp", mine, "-w", "-o", tmp_path / "o")
    assert said.code == 0, said.err
    rows = {row["weight_name"]: row for row in report(tmp_path / "o", "ait_cmp_report")}
    assert set(rows) == {"root.a.weight", "root.b.weight", "root.c.weight"}
    assert rows["root.a.weight"]["Reason"] == "identical"
    assert float(rows["root.b.weight"]["cosine_similarity"]) > 0.9999
    assert rows["root.c.weight"]["Result"] == "warning"


def test_a_dump_without_weights_is_told(llm: Run, tmp_path: Path) -> None:
    golden, _ = made(tmp_path)
    said = llm("compare", "-gp", golden, "-mp", golden, "-w", "-o", tmp_path / "o")
    assert said.code == 2
    assert "dump_weight" in said.err
