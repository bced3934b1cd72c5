"""Hostile tensor files in a dump: each costs its own row, which says why; the rest is compared, nothing runs.

The files themselves are those of tests/runs/hostile_tensor_files.py, where each must end in its own message; here they
go through the whole command. ATB files of inference dumps have a table of their own below.
"""

from __future__ import annotations

import os
import pickle
import struct
import sys
from pathlib import Path

import pytest
from attack_tools import ALLOWED_MEMORY, BAD, GOOD, compared, cost, row_of, with_bad_tensor

from runs.hostile_tensor_files import HEADERS, PICKLES, TENSORS, ZIPS, calls
from twinprobe._runs.llm.files import open_llm_tensor
from twinprobe.errors import DamagedTensor

THROUGH_THE_COMMAND = {
    **{f"pickle: {name}": (make, ".pt") for name, (make, _) in PICKLES.items()},
    **{f"tensor: {name}": (make, ".pt") for name, (make, _) in TENSORS.items()},
    **{f"zip: {name}": (make, ".pt") for name, (make, _) in ZIPS.items()},
    **{f"npy: {name}": (make, ".npy") for name, (make, _) in HEADERS.items()},
}
# Some of each kind are enough to prove the way through the command; all of them are read one by one elsewhere.
CHOSEN = [name for at, name in enumerate(THROUGH_THE_COMMAND) if at % 7 == 0]


@pytest.mark.parametrize("name", CHOSEN)
def test_a_hostile_file_costs_its_own_row(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, suffix = THROUGH_THE_COMMAND[name]
    rows = compared(*with_bad_tensor(tmp_path, make(), suffix), tmp_path / "out")
    assert row_of(rows, GOOD)["Cosine"] == "1.0"
    bad = row_of(rows, BAD)
    assert bad["Result"] == "warning", bad
    assert f"{BAD}.output.0{suffix}" in bad["Reason"]
    assert "Traceback" not in capsys.readouterr().err


class Gadget:
    """Runs a command when it is unpickled by whoever trusts it."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_a_bare_pickle_that_runs_a_command_runs_nothing(protocol: int, suffix: str, tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    attack = pickle.dumps(Gadget(mark), protocol)
    pickle.loads(attack)
    assert mark.exists(), "the attack itself works"
    mark.unlink()
    rows = compared(*with_bad_tensor(tmp_path, attack, suffix), tmp_path / "out")
    assert row_of(rows, BAD)["Result"] == "warning"
    assert not mark.exists()


def test_a_pickle_in_a_zip_that_runs_a_command_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "was-here"
    command = f"touch {mark}".encode()
    attack = calls("os", "system", b"X" + struct.pack("<I", len(command)) + command + b"\x85")
    rows = compared(*with_bad_tensor(tmp_path, attack, ".pt"), tmp_path / "out")
    assert "not run" in row_of(rows, BAD)["Reason"]
    assert not mark.exists()


def atb(payload: bytes = bytes(24), **fields: object) -> bytes:
    """An ATB file with some lines replaced; None leaves one out."""
    lines: dict[str, object] = {"$Version": "1.0", "format": 2, "dtype": 0, "dims": "2,3", "$Object.data": "0,24"}
    lines |= {name.replace("__", "$"): value for name, value in fields.items()}
    text = "".join(f"{name}={value}\n" for name, value in lines.items() if value is not None)
    return text.encode() + b"$End=1\n" + payload


ATB_FILES = {
    "a terabyte of elements": atb(dims="1048576,262144"),
    "dimensions whose product wraps": atb(dims="4294967296,4294967296,4294967296"),
    "a negative dimension": atb(dims="-2,-3"),
    "a dimension of 5000 digits": atb(dims="9" * 5000),
    "a dimension in superscript": atb(dims="\u00b2,3"),
    "ten thousand dimensions": atb(dims=",".join("1" * 10_000)),
    "an unknown element type": atb(dtype=99),
    "an element type of 5000 digits": atb(dtype="9" * 5000),
    "packed elements that are not there": atb(b"", dtype=29, dims="1000000000"),
    "elements at another offset": atb(**{"$Object.data": "1000000,24"}),
    "a length that lies": atb(b"", **{"$Object.data": "0,99999999999"}),
    "no end of the header": atb().replace(b"$End=1\n", b""),
    "a header of a megabyte": b"a=" + b"b" * (1 << 20) + b"\n" + atb(),
    "escape codes in a value": atb(dtype="\x1b[2J0"),
    "an alias that climbs out": atb(b"", data="../../secret.bin"),
    "an absolute alias": atb(b"", data="/etc/passwd"),
    "an alias for itself": atb(b"", data="t.bin"),
    "an alias of 5000 letters": atb(b"", data="x" * 5000),
    "an alias of an operation with 5000 digits": atb(b"", data="9" * 5000 + "_outtensor0.bin"),
    "an alias with a NUL": atb(b"", data="a\0b"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATB_FILES)
def test_an_atb_header_that_lies_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(atb())
    root = tmp_path / "dump"
    root.mkdir()
    (root / "t.bin").write_bytes(ATB_FILES[name])
    peak, error = cost(lambda: open_llm_tensor(root, "t.bin"))
    assert isinstance(error, DamagedTensor), "it must not be read"
    assert "\x1b" not in str(error)
    assert peak < ALLOWED_MEMORY + 3 * len(ATB_FILES[name])


def test_the_interpreter_of_pickles_imports_nothing(tmp_path: Path) -> None:
    before = set(sys.modules)
    rows = compared(*with_bad_tensor(tmp_path, calls("antigravity", "fly"), ".pt"), tmp_path / "out")
    assert row_of(rows, BAD)["Result"] == "warning"
    assert "antigravity" not in set(sys.modules) - before
