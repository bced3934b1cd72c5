"""A module that gives golden's values in another order: statistics are equal, and what we show is told by sketches."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import Tensor, nn

import twinprobe
from twinprobe._cli import main
from twinprobe.torch import PrecisionDebugger


class Mixer(nn.Module):
    """Gives its input, mirrored where it is ``wrong``: max, min, mean and norm stay what they are."""

    wrong = False

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-1) if self.wrong else x * 1.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.mixer, self.outer = nn.Linear(16, 64), Mixer(), nn.Linear(64, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.mixer(self.inner(x)))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Three steps of each; the target mirrors from the second on."""
    folders = tmp_path_factory.mktemp("runs")
    for name in ("target", "golden"):
        model = Net()
        debugger = PrecisionDebugger(dump_path=str(folders / name), level="L0")
        torch.manual_seed(1)
        for step in range(3):
            model.mixer.wrong = name == "target" and step > 0
            debugger.start(model)
            model(torch.randn(32, 16))
            debugger.stop()
            debugger.step()
        debugger.close()
    return folders / "target", folders / "golden"


def test_the_table_and_the_page_give_the_error_and_its_bounds(runs: tuple[Path, Path], tmp_path: Path) -> None:
    steps = [str(run / "step1") for run in runs]
    assert main(["compare", *steps, "-o", str(tmp_path), "--format", "csv,html"]) == 0
    table = pl.read_csv(next(tmp_path.glob("compare_result_*.csv")), infer_schema=False)
    row = table.filter(pl.col("NPU Name") == "Module.mixer.Mixer.forward.0.output.0").row(0, named=True)
    assert float(row["L2norm diff"]) == pytest.approx(0, abs=1e-4)
    assert 1.0 < float(row["Relative Error"]) < 1.9
    low, high = map(float, row["Relative Error Bounds"].split(" to "))
    assert low < 2**0.5 < high
    assert row["Result"] == "error"
    page = next(tmp_path.glob("compare_result_*.html")).read_text()
    assert "Relative Error Bounds" in page


def test_both_kinds_of_graphs_colour_the_node(runs: tuple[Path, Path], tmp_path: Path) -> None:
    steps = [str(run / "step1") for run in runs]
    name = "Module.mixer.Mixer.forward.0"
    (new,) = twinprobe.draw(*steps, output_path=tmp_path / "new")
    (old,) = twinprobe.draw(*steps, output_path=tmp_path / "old", file_type="vis")
    with closing(sqlite3.connect(new)) as file:
        file.row_factory = sqlite3.Row
        (node,) = file.execute("SELECT * FROM tb_nodes WHERE node_name = ? AND data_source = 'NPU'", (name,))
        assert node["precision_index"] == 1  # the verdict is an error
    assert json.loads(old.read_text())["NPU"]["node"][name]["data"]["precision_index"] == 1


def test_the_trend_of_steps_tells_when_it_begins(
    runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *map(str, runs), "-o", str(tmp_path), "--fail-on"]) == 1
    said = capsys.readouterr().out
    assert "the runs agree up to step 0; step 1 differs: Module.mixer." in said
    table = pl.read_csv(next(tmp_path.glob("compare_steps_*.csv")))
    assert table["first_differing"].to_list() == ["", *2 * ["output.mixer.relative_error"]]
    assert table["output_difference"][0] == 0
    assert all(1.0 < error < 1.9 for error in table["output_difference"][1:])
