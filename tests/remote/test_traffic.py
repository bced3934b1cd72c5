"""What is fetched, and what happens when it is not there any more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import s3fs
import torch
from fsspec.config import conf
from hypothesis import given, settings
from hypothesis import strategies as st
from remote_dumps import local_results, pair_of, statistics_dump
from s3_server import S3Server

from support import forward, tensor, tensor_dump, write_dump
from twinprobe._runs.tensors import tensor_files as read_ahead
from twinprobe._runs.whole_files import place

FRAME = 64 << 10  # bytes of headers and directories that a file may cost


def table(folder: Path) -> pl.DataFrame:
    (content,) = local_results(folder).values()
    return pl.read_csv(content, infer_schema=False)


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> Path:
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    data = {}
    for name, value in tensors.items():
        file = f"Torch.{name}.0.forward.output.0.pt"
        torch.save(value, store / file)
        data[f"Torch.{name}.0.forward"] = forward([], [tensor(shape=list(value.shape), data_name=file)])
    write_dump(folder, data, task="tensor")
    return folder


def test_of_a_tensor_file_only_the_ranges_with_the_tensor_are_fetched(s3: S3Server, command, tmp_path: Path) -> None:
    big = torch.arange(1_000_000, dtype=torch.float32)
    folder = saved(tmp_path / "a", {"part": big[500_000:501_000], "all": big})
    (folder / "dump_tensor_data" / "nobody.needs.this.pt").write_bytes(bytes(3_000_000))
    url = s3.put(folder, "ranges/a")
    s3.traffic.clear()
    said = command("compare", "-tp", url, "-gp", folder, "-o", tmp_path / "out", "--csv", "--quiet")
    assert (said.code, said.err) == (0, "")
    fetched = {
        name: sum(size for *_, size in s3.traffic.of(f"{name}.0.forward.output.0.pt")) for name in ("part", "all")
    }
    assert fetched["part"] <= 4_000 + FRAME
    assert 4_000_000 <= fetched["all"] <= 4_000_000 + FRAME
    assert s3.traffic.of("nobody.needs.this.pt") == []
    assert s3.traffic.fetched <= 4_004_000 + 3 * FRAME
    assert all(wanted.startswith("bytes=") for method, path, wanted, _ in s3.traffic.requests if path.endswith(".pt"))


def test_a_run_costs_few_requests(s3: S3Server, command, tmp_path: Path) -> None:
    calls = {f"Torch.add.{at}.forward": {"output.0": np.full(50, at, np.float32)} for at in range(40)}
    tensor_dump(tmp_path / "a", calls)
    url = s3.put(tmp_path / "a", "few/a")
    s3.traffic.clear()
    assert command("compare", "-tp", url, "-gp", tmp_path / "a", "-o", tmp_path / "out", "--csv", "--quiet").code == 0
    of_tensors = [request for request in s3.traffic.requests if request[1].endswith(".npy")]
    assert len(of_tensors) == 40
    asked = [request[0] for request in s3.traffic.of("dump.json")]
    assert asked.count("GET") == 1
    assert asked.count("HEAD") <= 2  # before and after, to see whether it changed
    assert len(s3.traffic.requests) - len(of_tensors) <= 10


def test_statistics_are_read_once_and_no_tensor_is(s3: S3Server, command, tmp_path: Path) -> None:
    dump = statistics_dump(tmp_path / "a")
    url = s3.put(dump.parent, "once/a")
    s3.traffic.clear()
    assert command("compare", "-tp", url, "-gp", dump.parent, "-o", tmp_path / "out", "--csv", "--quiet").code == 0
    assert s3.traffic.fetched <= sum(file.stat().st_size for file in dump.parent.iterdir())


@pytest.mark.parametrize("fate", ["gone", "denied"])
def test_an_object_that_cannot_be_had_costs_its_row(s3: S3Server, command, tmp_path: Path, fate: str) -> None:
    target, golden = pair_of("tensor", tmp_path)
    urls = s3.put(target, f"{fate}/t"), s3.put(golden, f"{fate}/g")
    fated = s3.traffic.gone_when_read if fate == "gone" else s3.traffic.denied
    fated.add(f"/{fate}/t/dump_tensor_data/Torch.half.2.forward.output.0.pt")
    said = command("compare", "-tp", urls[0], "-gp", urls[1], "-o", tmp_path / "out", "--csv", "--quiet")
    assert said.code == 0, said.err
    whole = tmp_path / "whole"
    assert command("compare", "-tp", target, "-gp", golden, "-o", whole, "--csv", "--quiet").code == 0
    found, expected = table(tmp_path / "out"), table(whole)
    lost = found["NPU Name"] == "Torch.half.2.forward.output.0"
    assert lost.sum() == 1
    told = "is missing" if fate == "gone" else "cannot be opened: access is denied"
    reason = " ".join(str(cell) for cell in found.filter(lost).row(0))
    assert f"{urls[0]}/dump_tensor_data/Torch.half.2.forward.output.0.pt: {told}" in reason
    assert found.filter(~lost).equals(expected.filter(~lost))


def test_a_file_that_shrinks_meanwhile_costs_its_row(s3: S3Server, command, tmp_path: Path) -> None:
    folder = saved(tmp_path / "a", {"all": torch.arange(400_000, dtype=torch.float32), "other": torch.ones(3)})
    url = s3.put(folder, "shrink/a")
    path = place(url) / "dump_tensor_data"
    assert len(path.listing()) == 2  # known before the object changes
    name = "Torch.all.0.forward.output.0.pt"
    s3.client().put_object(Bucket="dumps", Key=f"shrink/a/dump_tensor_data/{name}", Body=b"PK\3\4 and no more")
    loads = read_ahead.tensor_loaders([(path, name), (path, "Torch.other.0.forward.output.0.pt")])
    with pytest.raises(Exception, match=r"changed while it was read|Range") as caught:
        next(loads)()
    assert type(caught.value).__name__ == "DamagedTensor"
    assert next(loads)().data.tolist() == [1, 1, 1]


def test_names_in_a_dump_do_not_lead_out_of_it(s3: S3Server, command, tmp_path: Path) -> None:
    names = [
        "../secret.npy",
        "../../secret.npy",
        "/dumps/evil/secret.npy",
        "s3://dumps/evil/secret.npy",
        "a/../../x.npy",
    ]
    data = {
        f"Torch.add.{at}.forward": forward([], [tensor(data_name=name)]) for at, name in enumerate(names)
    } | {"Torch.add.99.forward": forward([], [tensor(data_name="good.npy", shape=[3])])}  # fmt: skip
    write_dump(tmp_path / "a", data, task="tensor")
    (tmp_path / "a" / "dump_tensor_data").mkdir()
    np.save(tmp_path / "a" / "dump_tensor_data" / "good.npy", np.ones(3, np.float32))
    np.save(tmp_path / "a" / "secret.npy", np.ones(3, np.float32))
    url = s3.put(tmp_path / "a", "evil/a")
    s3.put(tmp_path / "a" / "secret.npy", "evil/secret.npy")
    s3.traffic.clear()
    said = command("compare", "-tp", url, "-gp", url, "-o", tmp_path / "out", "--csv", "--quiet")
    assert said.code == 0, said.err
    assert s3.traffic.of("secret.npy") == []
    assert len(s3.traffic.of("good.npy")) == 2
    assert table(tmp_path / "out").height == len(names) + 1


def test_read_ahead_holds_no_more_than_its_bound(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "MOST_BYTES", 100_000)
    calls = {f"Torch.add.{at}.forward": {"output.0": np.full(10_000, at, np.float32)} for at in range(30)}
    tensor_dump(tmp_path / "a", calls)
    folder = place(s3.put(tmp_path / "a", "ahead/a")) / "dump_tensor_data"
    s3.traffic.clear()
    files = [(folder, f"Torch.add.{at}.forward.output.0.npy") for at in range(30)]
    for taken, load in enumerate(read_ahead.tensor_loaders(files)):
        under_way = {path for _, path, _, _ in s3.traffic.requests if path.endswith(".npy")}
        assert len(under_way) <= taken + 2  # two of 40 kB fit into the bound
        assert load().data[0] == taken
    assert len([path for _, path, _, _ in s3.traffic.requests if path.endswith(".npy")]) == 30


def test_a_storage_that_falls_silent_ends_the_command(
    s3: S3Server, command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setitem(conf, "s3", {"config_kwargs": {"retries": {"max_attempts": 0}, "read_timeout": 5}})
    calls = {f"Torch.add.{at}.forward": {"output.0": np.full(50, at, np.float32)} for at in range(40)}
    tensor_dump(tmp_path / "a", calls)
    url = s3.put(tmp_path / "a", "silent/a")
    s3.traffic.hang_up_on = ".npy"
    said = command("compare", "-tp", url, "-gp", tmp_path / "a", "-o", tmp_path / "out", "--csv", "--quiet")
    assert said.code == 2, said.out
    assert said.err.count("\n") == 1
    assert "does not answer" in said.err


@settings(deadline=None, max_examples=25)
@given(
    length=st.integers(1, 3_000_000),
    cuts=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6),
    seed=st.integers(0, 9),
)
def test_any_range_of_a_remote_file_is_that_of_the_bytes(
    length: int, cuts: list[tuple[float, float]], seed: int
) -> None:
    from twinprobe._runs.remote.contents import RemoteContents

    content = np.random.default_rng(seed).bytes(length)
    path = place("memory://ranges/file.bin")
    path.write_bytes(content)
    remote = RemoteContents(path)
    assert len(remote) == length
    for cut in cuts:
        start, stop = sorted(int(part * length) for part in cut)
        assert remote[start:stop] == content[start:stop]
        assert remote.stretch(start, stop, whole=True).tobytes() == content[start:stop]
    assert remote[:4] == content[:4]
