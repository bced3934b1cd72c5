"""Names and links in a dump that lead elsewhere: nothing outside is read, nothing outside of -o is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from attack_tools import BAD, GOOD, compared, files_under, name_file, row_of, with_bad_tensor

from twinprobe._cli import main
from twinprobe._runs.llm.files import open_llm_tensor
from twinprobe.errors import DamagedTensor

SECRET = b"the secret of another user"
NAMES = {
    "two dots": "../../secret.npy",
    "two dots behind a folder": "a/../../../secret.npy",
    "two dots with backslashes": "..\\..\\secret.npy",
    "an absolute path": "{root}/secret.npy",
    "an absolute path of another system": "C:\\secret.npy",
    "a path on the network": "\\\\host\\share\\secret.npy",
    "a URL": "http://127.0.0.1:9/secret.npy",
    "a URL of a file": "file://{root}/secret.npy",
    "NUL": "secret.npy\0.npy",
    "nothing": "",
    "the folder itself": ".",
    "a device": "/dev/zero",
    "5000 letters": "x" * 5000 + ".npy",
    "half a character": "\ud800.npy",
    "a home folder": "~/secret.npy",
    "a variable": "$HOME/secret.npy",
    "an empty part": "//secret.npy",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_out_is_not_followed(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "secret.npy", np.full(4, 7, np.float32))
    target, golden = with_bad_tensor(tmp_path, None, ".npy")
    name_file(target, NAMES[name].format(root=tmp_path))
    rows = compared(target, golden, tmp_path / "out")
    (bad,) = [row for row in rows if row["Bench Name"].startswith(BAD)]
    assert bad["Result"] == "warning", bad
    assert row_of(rows, GOOD)["Cosine"] == "1.0"
    assert "Traceback" not in capsys.readouterr().err


LINKS = ["file", "chain", "folder", "circle", "device", "dangling"]


@pytest.mark.parametrize("kind", LINKS)
def test_a_link_that_leads_out_is_not_followed(kind: str, tmp_path: Path) -> None:
    target, golden = with_bad_tensor(tmp_path, None, ".npy")
    np.save(tmp_path / "secret.npy", np.ones(4, np.float32))  # were it read, the row would pass
    store, name = target.parent / "dump_tensor_data", f"{BAD}.output.0.npy"
    places = {
        "file": tmp_path / "secret.npy",
        "device": "/dev/zero",
        "dangling": "nowhere",
        "circle": name,
        "chain": "b",
    }
    if kind == "folder":
        (store / "away").symlink_to(tmp_path)
        name_file(target, "away/secret.npy")
    else:
        (store / name).symlink_to(places[kind])
        (store / "b").symlink_to("c")
        (store / "c").symlink_to(tmp_path / "secret.npy")
    rows = compared(target, golden, tmp_path / "out")
    (bad,) = [row for row in rows if row["Bench Name"].startswith(BAD)]
    assert bad["Result"] == "warning", bad


def test_a_hard_link_shows_nothing_of_a_file_that_is_no_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It cannot be told from the file itself; but only tensors are ever shown, and of those only metrics."""
    target, golden = with_bad_tensor(tmp_path, None, ".npy")
    (tmp_path / "secret").write_bytes(SECRET)
    os.link(tmp_path / "secret", target.parent / "dump_tensor_data" / f"{BAD}.output.0.npy")
    rows = compared(target, golden, tmp_path / "out", "--format", "csv,json,html")
    assert row_of(rows, BAD)["Result"] == "warning"
    shown = capsys.readouterr()
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir())
    assert SECRET not in written + (shown.out + shown.err).encode()


def test_a_linked_rank_folder_or_file_of_an_inference_dump_stays_inside(tmp_path: Path) -> None:
    root = tmp_path / "dump" / "0"
    root.mkdir(parents=True)
    np.save(tmp_path / "secret.npy", np.ones(4))
    (root / "output.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(DamagedTensor, match="leads outside the dump"):
        open_llm_tensor(tmp_path / "dump", "0/output.npy")


def test_nothing_is_written_but_below_the_output_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    target, golden = with_bad_tensor(tmp_path / "in", b"", ".npy")
    document = json.loads(target.read_text())
    document["dump_data_dir"] = str(tmp_path / "elsewhere")
    document["framework"] = "../../../pytorch"
    document["data"]["Torch.../../../../evil.0.forward"] = document["data"][GOOD]
    target.write_text(json.dumps(document))
    before = files_under(tmp_path / "in")
    compared(target, golden, tmp_path / "out", "--format", "csv,xlsx,html,json,parquet")
    main(["graph_visualize", "-tp", str(target.parent), "-o", str(tmp_path / "graph"), "--file_type", "vis"])
    main(["align", str(target), str(golden), "-o", str(tmp_path / "aligned")])
    assert files_under(tmp_path / "in") == before
    assert {path.name for path in tmp_path.iterdir()} <= {"in", "out", "graph", "aligned", "cache"}
