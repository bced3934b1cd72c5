"""The command, run in this process."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
from llm_command import Said


@pytest.fixture
def llm(capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run ``twinprobe llm ...`` and return what it said."""
    main = importlib.import_module("twinprobe.cli.main")
    main.COMMANDS.setdefault("llm", "record and compare the inference of large models")

    def run(*words: object) -> Said:
        try:
            code = main.main(["llm", *map(str, words)])
        except SystemExit as end:
            code = int(end.code or 0)
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run
