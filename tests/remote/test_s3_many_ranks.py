"""Datasets, slices and interrupted commands, all of it on a real S3 server."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from remote_dumps import local_results, rank_folders, s3_results
from s3_server import S3Server

from support import tensor_dump


def parts(results: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in results.items() if name.endswith(".parquet")}


def test_a_dataset_is_written_searched_and_merged_there(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", steps=1, shift=0.1), rank_folders(tmp_path / "g", steps=1)
    urls = s3.put(target, "set/t"), s3.put(golden, "set/g")
    options = ("--format", "dataset", "--workers", 2, "--quiet")
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "here", *options).code == 0
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/set/out", *options)
    assert (said.code, said.err) == (0, "")
    expected, found = parts(local_results(tmp_path / "here")), parts(s3_results(s3, "set/out"))
    assert len(expected) == 6
    assert found == expected
    config = tmp_path / "config.yaml"
    config.write_text("api: [Torch.add]\n")
    for source, output in ((tmp_path / "here", tmp_path / "merged"), ("s3://dumps/set/out", "s3://dumps/set/merged")):
        merged = command("merge_result", "-i", source, "-o", output, "-config", config, "--quiet")
        assert (merged.code, merged.err) == (0, "")
    assert s3_results(s3, "set/merged") == local_results(tmp_path / "merged")


@pytest.mark.slow
def test_the_first_difference_is_searched_in_a_dataset_there(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", steps=1, shift=0.1), rank_folders(tmp_path / "g", steps=1)
    urls = s3.put(target, "search/t"), s3.put(golden, "search/g")
    options = ("-da", "--format", "dataset", "--engine", "inline", "--quiet")
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "here", *options).code == 0
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/search/out", *options)
    assert (said.code, said.err) == (0, "")
    there = {name: content for name, content in s3_results(s3, "search/out").items() if "diff_analyze" in name}
    assert there == {name: content for name, content in local_results(tmp_path / "here").items() if name in there} != {}


@pytest.mark.slow
def test_a_large_rank_is_cut_into_slices_there(s3: S3Server, command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for side, factor in (("t", 1.1), ("g", 1.0)):
        for rank in (0, 1):
            calls = {f"Torch.add.{at}.forward": {"output.0": rng.standard_normal(60_000).astype(np.float32) * factor}
                     for at in range(8)}  # fmt: skip
            tensor_dump(tmp_path / side / f"rank{rank}", calls)
    urls = [s3.put(tmp_path / side, f"slices/{side}") for side in ("t", "g")]
    options = ("--format", "csv", "--workers", 2, "--slice-mb", 1, "--quiet")
    assert command("compare", "-tp", tmp_path / "t", "-gp", tmp_path / "g", "-o", tmp_path / "o", *options).code == 0
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/slices/out", *options)
    assert (said.code, said.err) == (0, "")
    expected = local_results(tmp_path / "o")
    assert sorted(expected) == ["compare_result_rank0_T.csv", "compare_result_rank1_T.csv"]
    assert s3_results(s3, "slices/out") == expected


def test_resume_does_only_what_is_missing(s3: S3Server, command, tmp_path: Path) -> None:
    target, golden = rank_folders(tmp_path / "t", steps=1, shift=0.1), rank_folders(tmp_path / "g", steps=1)
    urls = s3.put(target, "resume/t"), s3.put(golden, "resume/g")
    s3.client().put_object(Bucket="dumps", Key="resume/t/step0/rank1/dump.json", Body=b"{ not yet whole")
    words = ("compare", "-tp", urls[0], "-gp", urls[1], "-o", "s3://dumps/resume/out", "--csv", "--engine", "inline")
    first = command(*words)
    assert "rank1/dump.json" in first.err
    tables = [name for name in s3.names("resume/out") if name.endswith(".csv")]
    assert [name[-24:-19] for name in sorted(tables)] == ["rank0", "rank2"]
    s3.put(target / "step0" / "rank1" / "dump.json", "resume/t/step0/rank1/dump.json")
    s3.traffic.clear()
    second = command(*words, "--resume")
    assert (second.code, second.err) == (0, "")
    read = {
        path.split("/")[-2]
        for method, path, _, _ in s3.traffic.requests
        if method == "GET" and path.endswith("/dump.json")
    }
    assert read == {"rank1"}
    assert command("compare", "-tp", target, "-gp", golden, "-o", tmp_path / "o", "--csv", "--quiet").code == 0
    assert s3_results(s3, "resume/out") == local_results(tmp_path / "o")
