"""DumpConfig: every option does what its name says, and a bad value is refused with that name."""

from __future__ import annotations

import csv
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from llm_models import IDS, Model, files, new_model  # noqa: E402

from twinprobe._cli import main  # noqa: E402
from twinprobe._runs.tensors.tensor_files import open_tensor  # noqa: E402
from twinprobe.errors import BadInput  # noqa: E402
from twinprobe.llm import DumpConfig, register_hook  # noqa: E402

nn = torch.nn


@pytest.fixture
def model() -> Model:
    return new_model()


def test_api_calls_have_folders_under_their_module_and_are_counted(tmp_path: Path) -> None:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.matmul(torch.matmul(x, x), x).relu()

    module = Twice()
    with register_hook(module, DumpConfig(tmp_path, mode="api", api_list=[torch.matmul])) as handle:
        module(torch.eye(2) * 2)
    found = files(handle.path / "0")
    assert {name.partition("/")[0] for name in found} == {"root.matmul", "root.matmul.1"}
    assert open_tensor(handle.path / "0" / "root.matmul.1" / "output.pth").data.tolist() == [8.0, 0.0, 0.0, 8.0]


def test_statistics_instead_of_tensors_and_the_analysis(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=1, analyze=True)) as handle:
        model(IDS)
    assert not list(handle.path.rglob("*.pth"))
    with (handle.path / "0" / "root.head" / "statistics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    output = model(IDS)[0]
    assert [row["InputOutput"] for row in rows] == ["Input", "Output"]
    assert float(rows[1]["Max"]) == pytest.approx(output.max().item())
    assert float(rows[1]["L2Norm"]) == pytest.approx(output.norm().item())
    with (tmp_path / "tensor_analyze.csv").open(newline="") as file:
        kept = [row for row in csv.DictReader(file) if row["Node Name"] == "root.head"]
    assert float(kept[1]["variance"]) == pytest.approx(output.var(unbiased=False).item(), rel=1e-5)


def test_last_logits_only(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path, dump_last_logits=True)) as handle:
        model(IDS)
    assert files(handle.path / "0") == {"root.head/output.pth"}


def test_weights_are_saved_when_asked_for(model: Model, tmp_path: Path) -> None:
    handle = register_hook(model, DumpConfig(tmp_path, dump_weight=True, layer_name="root.layers.*.norm.*"))
    handle.remove()
    assert files(handle.path / "weights") == {
        f"root.layers.{at}.norm.{name}.pth" for at in (0, 1) for name in ("weight", "bias")
    }


def test_a_processor_goes_by_the_number_that_the_user_gives(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path, device_id=3)) as handle:
        model(IDS)
    assert handle.path == tmp_path / f"{os.getpid()}_cpu3"
    assert files(handle.path / "0")
    assert main(["llm", "compare", "-gp", str(handle.path), "-mp", str(handle.path), "-o", str(tmp_path / "out")]) == 0


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_the_last_line_says_how_much_was_written(
    model: Model, tmp_path: Path, mode: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("twinprobe.record"), "propagate", True)
    caplog.set_level(logging.INFO, "twinprobe.record")
    with register_hook(model, DumpConfig(tmp_path, dump_statistics_mode=mode)) as handle:
        model(IDS)
    found = [path.stat() for path in (handle.path / "0").rglob("*") if path.is_file()]
    written = sum({one.st_ino: one.st_size for one in found}.values())  # equal tensors share their bytes
    (told, unit) = re.findall(r"recorded \d+ entries, ([\d.]+) (bytes|kB)", caplog.text)[0]
    assert float(told) * (1 if unit == "bytes" else 1000) == pytest.approx(written, rel=0.02)


def test_a_seed_makes_the_run_deterministic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LCCL_DETERMINISTIC", "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "HCCL_DETERMINISTIC"):
        monkeypatch.setenv(name, "")
    model = Model()
    try:
        register_hook(model, DumpConfig(tmp_path, seed=7)).remove()
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["LCCL_DETERMINISTIC"] == "1"
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize(
    "bad",
    [
        {"token_range": 3}, {"token_range": [-1]}, {"token_range": ["0"]}, {"module_list": nn.Linear},
        {"module_list": ["Linear"]}, {"tensor_part": 3}, {"tensor_part": "2"}, {"device_id": "0"}, {"api_list": [1]},
        {"dump_statistics_mode": 5}, {"mode": "kernel"}, {"mode": []}, {"layer_name": 3}, {"seed": -1},
        {"layout": "other"}, {"dump_path": 3}, {"analyze": 1}, {"dump_weight": "yes"},
    ],
    ids=str,
)  # fmt: skip
def test_a_bad_value_is_refused_with_its_name(bad: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(bad))):
        DumpConfig(**bad)


def test_what_is_no_model_or_no_configuration_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="Module"):
        register_hook("model", DumpConfig(tmp_path))
    with pytest.raises(BadInput, match="DumpConfig"):
        register_hook(model, {"dump_path": tmp_path})  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="written"):
        register_hook(model, DumpConfig(tmp_path / "file" / "below"))
