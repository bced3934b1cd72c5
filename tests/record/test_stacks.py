"""Call stacks while they are written."""

from __future__ import annotations

import sys

import pytest

from twinprobe._record import calls


def test_stacks_are_written_while_the_program_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer thread renders the table while the next start() of the recorder adds to it."""
    table = calls.StackTable(hidden=())

    def note() -> None:
        table.place(sys._getframe()).names.append("call")

    note()
    render = calls._frame_text

    def render_beside_the_program(code: object, instruction: int) -> str:
        note()  # from another line: a stack that is new
        return render(code, instruction)  # type: ignore[arg-type]

    monkeypatch.setattr(calls, "_frame_text", render_beside_the_program)
    written = table.to_json()
    assert [names for names, _ in written.values()] == [["call"]]
