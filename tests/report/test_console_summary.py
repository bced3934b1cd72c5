"""What a person reads on the terminal, and what a machine reads from --json."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_tables import small_table, summary_of
from rich.console import Console

from twinprobe._judge.summary import Result, Summary
from twinprobe._report.console import json_bytes, print_summary, visible

OWN_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def printed(summary: Summary, *, encoding: str = "utf-8", colour: bool = False) -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding, errors="strict")
    print_summary(summary, Console(file=stream, force_terminal=colour, width=60))
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.fixture
def summary() -> Summary:
    table = small_table()
    return replace(summary_of(table), files=["out/compare_result_20260102030405.xlsx"], rank="rank0")


def test_the_summary_names_counts_first_divergence_and_files(summary: Summary) -> None:
    text = printed(summary)
    assert summary.first
    for fact in (
        "statistics compare · rank0",
        f"{summary.rows} rows · {summary.matched} matched · 2 only in target · 1 only in golden",
        "✔ {pass} pass   ▲ {warning} warning   ✖ {error} error".format(**summary.verdicts),
        "first divergence (row 3, injected)",
        summary.first.op,
        summary.first.sentence,
        "at train.py:12, in step: loss = model(batch)",
        "note: a note",
        "out/compare_result_20260102030405.xlsx",
    ):
        assert fact in text
    assert re.search(r"min +-1\.5 +-1\.25", text)


def test_names_and_paths_are_never_broken_over_lines(summary: Summary) -> None:
    long = "Module." + "layer." * 60 + "forward.0"
    assert summary.first
    text = printed(replace(summary, first=replace(summary.first, op=long), files=["/" + "deep/" * 60]))
    assert long in text
    assert "/" + "deep/" * 60 in text


def test_runs_that_agree_are_said_to_agree(summary: Summary) -> None:
    text = printed(replace(summary, first=None, verdicts={"pass": 20, "warning": 0, "error": 0}))
    assert "No divergence: every row passes." in text
    assert "first divergence" not in text


def test_warnings_without_a_first_divergence_are_not_called_agreement(summary: Summary) -> None:
    text = printed(replace(summary, first=None))
    assert "No first divergence" in text
    assert "every row passes" not in text


def test_agreement_is_claimed_only_for_what_both_runs_have(summary: Summary) -> None:
    loss = Result("loss", agrees=True, values=1, differing=0, worst=0.0, worst_eps=0.0, where="")
    text = printed(replace(summary, first=None, results=[loss], target_only=0, golden_only=15))
    assert f"agree within noise where both have values; 15 of {summary.rows} rows are in one run only." in text


def test_escape_sequences_and_markup_in_names_are_shown_and_not_obeyed(summary: Summary) -> None:
    assert summary.first
    evil = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202eabc\r"
    values = {evil: evil}
    hostile = replace(
        summary,
        rank=evil,
        notes=[evil],
        files=[evil],
        target=replace(summary.target, path=evil, framework=evil),
        first=replace(
            summary.first, op=evil, row=evil, golden_row=evil + "2", sentence=evil, stack_line=evil, origin=evil,
            target_values=values, golden_values=values,
        ),
    )  # fmt: skip
    text = OWN_COLOURS.sub("", printed(hostile, colour=True))
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert text.count("\\x1b]0;owned\\x07\\x1b[2J[bold red]x[/]\\u202eabc\\r") >= 10


def test_a_terminal_without_unicode_gets_plain_signs(summary: Summary) -> None:
    assert summary.first
    text = printed(replace(summary, first=replace(summary.first, op="层.forward.0")), encoding="ascii")
    assert f"x {summary.verdicts['error']} error" in text
    assert "\\u5c42.forward.0" in text


@given(st.text())
def test_visible_text_holds_no_control_character(text: str) -> None:
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", visible(text))


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"])))
def test_ordinary_text_is_shown_as_it_is(text: str) -> None:
    assert visible(text) == text


def test_json_is_one_object_on_one_line(summary: Summary) -> None:
    line = json_bytes(summary.to_dict()).decode()
    assert "\n" not in line
    assert json.loads(line) == summary.to_dict()
    assert list(json.loads(line)) == [
        "mode", "target", "golden", "rows", "matched", "target_only", "golden_only", "verdicts", "first", "notes",
        "files", "rank", "results", "others", "unread", "lost",
    ]  # fmt: skip
