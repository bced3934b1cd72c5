"""What comes back: a truth value, a table, trees, files, a page for notebooks, a short report."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from torch_pairs import Chain, numbers

from twinprobe import auto_diff
from twinprobe._live.result import print_result

X = numbers(4, 8)


@pytest.fixture(scope="module")
def differing():
    torch.manual_seed(0)
    return auto_diff(Chain(), Chain(at=2, change=torch.sin), X, quiet=True)


def test_the_table_tells_everything_of_every_pair(differing) -> None:
    table = differing.table
    assert table.height == differing.counts()["compared"]
    guilty = table.filter(pl.col("raw") == differing.first.raw)
    assert set(guilty["verdict"]) >= {"differs"}
    assert guilty.filter(pl.col("place") == "output")["max abs"][0] > 0
    same = table.filter(pl.col("verdict") == "same")
    assert same["max abs"].max() < 1e-5
    assert set(table["dtype"]) == {"float32"}


def test_files_are_written_beside_what_is_there(differing, tmp_path: Path) -> None:
    folder = tmp_path / "auto_diff"
    folder.mkdir()
    (folder / "precious.txt").write_text("mine")
    files = differing.save(folder, ["csv", "json", "html", "xlsx", "parquet"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "auto_diff.csv", "auto_diff.html", "auto_diff.json", "auto_diff.parquet", "auto_diff.xlsx", "index.html",
        "precious.txt",
    ]  # fmt: skip
    assert differing.files[-5:] == files
    document = json.loads((folder / "auto_diff.json").read_text())
    assert document["aligned"] is False
    assert document["first"]["raw"] == differing.first.raw
    assert len(document["rows"]) == differing.table.height
    assert pl.read_parquet(folder / "auto_diff.parquet").height == differing.table.height
    assert pl.read_csv(folder / "auto_diff.csv").columns == differing.table.columns


def test_report_is_an_option(tmp_path: Path) -> None:
    result = auto_diff(Chain(2), Chain(2), X, report=tmp_path / "out", formats="csv", quiet=True)
    assert result.files == [tmp_path / "out" / "auto_diff.csv"]
    assert result.files[0].is_file()


def test_a_notebook_shows_the_guilty_pair_and_no_foreign_markup(differing) -> None:
    class Evil(nn.Module):
        def forward(self, x):
            return x * 1

    Evil.__name__ = "<script>alert(1)</script>"
    net, other = nn.Sequential(nn.Linear(8, 8), Evil()), nn.Sequential(nn.Linear(8, 8), nn.Tanh())
    page = auto_diff(other, net, X, quiet=True)._repr_html_()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert differing.first.raw in differing._repr_html_()
    assert "not aligned" in differing._repr_html_()


def test_the_report_shows_trees_numbers_and_lines(differing, capsys) -> None:
    differing.show()
    shown = capsys.readouterr().out
    for part in ("not aligned", differing.first.raw, "max abs", "torch_pairs.py", "layers.3 (Linear)", "➤"):
        assert part in shown
    assert shown.index("first difference") < shown.index("then differ")


def test_an_aligned_pair_takes_one_line_and_one_more_for_copied_weights(capsys) -> None:
    auto_diff(Chain(2), Chain(2), X)
    assert len(capsys.readouterr().out.strip().splitlines()) == 2
    same = Chain(2)
    auto_diff(same, deepcopy(same), X, auto_weights=False)
    assert len(capsys.readouterr().out.strip().splitlines()) == 1


def test_a_plain_terminal_gets_plain_signs(differing) -> None:
    import io

    from rich.console import Console

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    print_result(differing, Console(file=stream, width=200))
    stream.seek(0)
    assert "> layers.3 (Linear)" in stream.read()


def test_long_trees_are_folded(capsys) -> None:
    def net() -> nn.Module:
        return nn.Sequential(*[nn.Sequential(*[nn.Linear(8, 8) for _ in range(10)]) for _ in range(12)])

    base, raw = net(), net()
    raw.load_state_dict(base.state_dict())
    with torch.no_grad():
        raw[7][3].weight += 1
    auto_diff(base, raw, X, auto_weights=False)
    shown = capsys.readouterr().out
    assert "7.3 (Linear)" in shown
    assert "inside agree" in shown
    assert len(shown.splitlines()) < 110


def test_the_public_names_are_lazy_and_complete() -> None:
    import twinprobe

    assert {"auto_diff", "LayerMap", "assign_weight", "add_special_init"} <= set(twinprobe.__all__)
    for name in twinprobe.__all__:
        assert getattr(twinprobe, name) is not None
    with pytest.raises(AttributeError):
        twinprobe.nothing  # noqa: B018
