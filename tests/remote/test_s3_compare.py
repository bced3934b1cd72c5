"""compare from and to a real S3 server: the tables are those of local files, byte for byte."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from remote_dumps import local_results, pair_of, rank_folders, s3_results
from s3_server import S3Server

import twinprobe
from support import slow, tensor_dump
from twinprobe._report.files import Staging
from twinprobe._runs.whole_files import place
from twinprobe.errors import BadInput

TABLES = "csv,parquet,xlsx"
DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.mark.parametrize("kind", ["tensor", *slow("statistics", "md5")])
def test_tables_of_remote_runs_are_those_of_local_ones(s3: S3Server, command, tmp_path: Path, kind: str) -> None:
    target, golden = pair_of(kind, tmp_path)
    urls = s3.put(target, f"{kind}/target"), s3.put(golden, f"{kind}/golden")
    options = ("--format", TABLES, "--quiet")
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "here", *options).code == 0
    expected = local_results(tmp_path / "here")
    assert len(expected) == 3
    there = f"{kind}/out"
    for output in (f"s3://dumps/{there}", tmp_path / "brought"):
        said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", output, *options)
        assert (said.code, said.err) == (0, "")
    assert s3_results(s3, there) == expected
    assert local_results(tmp_path / "brought") == expected


def test_one_side_may_be_local(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = pair_of("tensor", tmp_path)
    url = s3.put(golden, "mixed/golden")
    for name, other in (("here", golden), ("there", f"{url}/dump.json")):
        mine = target / "dump.json" if name == "there" else target
        assert command("compare", "-tp", mine, "-gp", other, "-o", tmp_path / name, "--csv", "--quiet").code == 0
    assert local_results(tmp_path / "there") == local_results(tmp_path / "here")


@pytest.mark.slow  # test_s3_many_ranks.py has worker processes, too
def test_folders_of_steps_and_ranks_in_worker_processes(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", shift=0.1), rank_folders(tmp_path / "g")
    urls = s3.put(target, "ranks/t"), s3.put(golden, "ranks/g")
    options = ("--format", "csv", "--workers", 2, "--quiet")
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "here", *options).code == 0
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/ranks/out", *options)
    assert (said.code, said.err) == (0, "")
    expected = {name: content for name, content in local_results(tmp_path / "here").items() if name.endswith(".csv")}
    ranks = [f"step{s}/compare_result_rank{r}_T.csv" for s in (0, 1) for r in (0, 1, 2)]
    assert sorted(expected) == ["compare_steps_T.csv", *ranks]
    found = s3_results(s3, "ranks/out")
    assert {name: content for name, content in found.items() if name.endswith(".csv")} == expected


def test_the_first_difference_is_searched_there_too(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", steps=1, shift=0.1), rank_folders(tmp_path / "g", steps=1)
    urls = s3.put(target, "first/t"), s3.put(golden, "first/g")
    assert command("compare", "-da", "-tp", target, "-gp", golden, "-o", tmp_path / "here", "--quiet").code == 0
    said = command("compare", "-da", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/first/out", "--workers", 1)
    assert said.code == 0, said.err
    expected = local_results(tmp_path / "here")
    assert any("diff_analyze" in name for name in expected)
    assert s3_results(s3, "first/out") == expected


def test_mapping_files_may_be_remote_and_leave_their_own_there(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = pair_of("statistics", tmp_path)
    urls = s3.put(target, "mapped/t"), s3.put(golden, "mapped/g")
    mapping = tmp_path / "map.yaml"
    mapping.write_text("TopLayer:\n  top: top\n")
    remote_mapping = s3.put(mapping, "mapped/map.yaml")
    here = command("compare", "-tp", target, "-gp", golden, "-lm", mapping, "-o", tmp_path / "here", "--csv")
    there = command(
        "compare", "-tp", urls[0], "-gp", urls[1], "-lm", remote_mapping, "-o", "s3://dumps/mapped/o", "--csv"
    )
    assert (here.code, there.code) == (0, 0), here.err + there.err
    expected = local_results(tmp_path / "here")
    assert "data_mapping_T.yaml" in expected
    assert s3_results(s3, "mapped/o") == expected


@pytest.mark.parametrize("kind", [*slow("npy"), "statistics"])
def test_kernel_dumps(s3: S3Server, command, tmp_path: Path, kind: str) -> None:
    sides = [DATA / "kernel_dump_A", DATA / "kernel_dump_B"]
    if kind == "npy":
        sides = [_kernels(tmp_path / "k" / name, factor) for name, factor in (("t", 1.1), ("g", 1.0))]
    urls = [s3.put(side, f"kernels/{kind}/{at}") for at, side in enumerate(sides)]
    assert command("compare", "-tp", sides[0], "-gp", sides[1], "-o", tmp_path / "here", "--csv", "--quiet").code == 0
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", tmp_path / "there", "--csv", "--quiet")
    assert (said.code, said.err) == (0, "")
    expected, found = local_results(tmp_path / "here"), local_results(tmp_path / "there")
    assert expected
    for side, url in zip(sides, urls, strict=True):
        expected = {name: content.replace(str(side).encode(), url.encode()) for name, content in expected.items()}
    assert found == expected


def _kernels(root: Path, factor: float) -> Path:
    rng = np.random.default_rng(1)
    for step in (0, 1):
        folder = root / "rank_0" / "Net" / "0" / str(step)
        folder.mkdir(parents=True)
        for at in range(4):
            array = rng.standard_normal((6, 5)).astype(np.float32) * (factor if at == 2 else 1.0)
            np.save(folder / f"Add.Default_Add-op{at}.{at}.0.{1000 + at}.output.0.DefaultFormat.Float32.npy", array)
    return root


def test_the_parquet_there_is_what_the_csv_says(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = pair_of("statistics", tmp_path)
    urls = s3.put(target, "form/t"), s3.put(golden, "form/g")
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/form/o", "--format", "csv,parquet")
    assert said.code == 0
    found = s3_results(s3, "form/o")
    (tmp_path / "x.parquet").write_bytes(found["compare_result_T.parquet"])
    names = pl.read_parquet(tmp_path / "x.parquet")["NPU Name"].to_list()
    assert names == pl.read_csv(found["compare_result_T.csv"], infer_schema=False)["NPU Name"].to_list()
    assert "s3://dumps/form/o/compare_result_" in said.out


def test_align_reads_and_writes_there(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = pair_of("statistics", tmp_path)
    urls = s3.put(target, "align/t"), s3.put(golden, "align/g")
    said = command("align", urls[0], urls[1], "-o", "s3://dumps/align/o")
    assert (said.code, said.err) == (0, "")
    mappings = [f"{kind}_mapping.yaml" for kind in ("api", "cell", "data", "layer")]
    assert sorted(s3.names("align/o")) == ["alignment.html", "alignment.json", *mappings]
    used = command("compare", "-tp", urls[0], "-gp", urls[1], "--alignment", "s3://dumps/align/o/alignment.json",
                   "-o", tmp_path / "o", "--csv", "--quiet")  # fmt: skip
    assert (used.code, used.err) == (0, "")


def test_python_opens_a_checkpoint_there(s3: S3Server, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    (tmp_path / "t").mkdir()
    save_file({"w": torch.ones(3, 4)}, tmp_path / "t" / "model.safetensors")
    url = f"{s3.put(tmp_path / 't', 'weights/t')}/model.safetensors"
    assert twinprobe.open(url).table["norm"].to_list() == [12**0.5]
    assert twinprobe.compare(url, tmp_path / "t" / "model.safetensors")


def test_nothing_but_results_is_left_behind(
    s3: S3Server, command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor_dump(tmp_path / "a", {"Torch.add.0.forward": {"output.0": np.ones(3, np.float32)}})
    url = s3.put(tmp_path / "a", "clean/a")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    assert command("compare", "-tp", url, "-gp", url, "-o", "s3://dumps/clean/out", "--format", "csv,html").code == 0
    assert [name.partition(".")[2] for name in s3.names("clean/out")] == ["csv", "html"]
    assert list((tmp_path / "temporary").iterdir()) == []


def test_empty_objects_that_mark_folders_are_no_files(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", ranks=1, steps=1), rank_folders(tmp_path / "g", ranks=1, steps=1)
    urls = s3.put(target, "marked/t"), s3.put(golden, "marked/g")
    for folder in ("marked/", "marked/t/", "marked/t/step0/", "marked/t/step0/rank0/"):
        s3.client().put_object(Bucket="dumps", Key=folder, Body=b"")
    said = command("compare", "-tp", f"{urls[0]}/step0", "-gp", f"{urls[1]}/step0", "-o", tmp_path / "o", "--csv")
    assert (said.code, said.err) == (0, "")
    assert len(local_results(tmp_path / "o")) == 1


def test_if_one_upload_fails_those_before_it_are_taken_back(s3: S3Server) -> None:
    staging = Staging()
    for name in ("back.txt", "denied.txt"):
        staging.file(place(f"s3://dumps/taken/{name}")).write_text("whole")
    s3.traffic.unwritable.add("/taken/denied.txt")
    with pytest.raises(BadInput, match=r"s3://dumps/taken/denied.txt: cannot be written: access is denied"), staging:
        assert s3.names("taken") == []
    assert s3.names("taken") == []
    assert [method for method, *_ in s3.traffic.of("/taken/back.txt")][-2:] == ["PUT", "DELETE"]
