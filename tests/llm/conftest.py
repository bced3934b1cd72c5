"""The command, run in this process, and two dumps to compare."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from llm_command import Run, Said
from llm_dumps import SMALL, atb_layer, atb_model, decoder_values, write_atb_model, write_torch


@pytest.fixture
def llm(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run ``twinprobe llm ...`` and return what it said."""
    main = importlib.import_module("twinprobe._cli.main")
    main.COMMANDS.setdefault("llm", "record and compare the inference of large models")

    def run(*words: object) -> Said:
        try:
            code = main.main(["llm", *map(str, words)])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    """The token folders of a torch dump and of an ATB dump of the same numbers."""
    values = decoder_values(SMALL)
    golden = write_torch(tmp_path / "torch_dump" / "7_npu0", {0: values}, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    return golden / "0", mine / "tensors" / "0_8" / "0"
