"""Numbers and names as graph files spell them."""

from __future__ import annotations

import json

import polars as pl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from twinprobe._graph.values import escaped, escaped_columns, json_list, percents, quoted, six_digits
from twinprobe._report.tables import float_texts

FLOATS = st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20)
TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=10)


@settings(deadline=None)
@given(FLOATS)
@example([9.9e-5, 1e-4, 1e-5, 9.9e-6, 1e-9, 1e-10, 1e15, 1e16, 1e22, 5e-324, 0.0, -0.0])
def test_full_numbers_are_pythons_own(numbers: list[float]) -> None:
    assert float_texts(pl.Series(numbers)).to_list() == [repr(number) for number in numbers]


@settings(deadline=None)
@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
@example([1.015180e-05, 0.163, 0.0001, 4.1014933586120605, -4.65e-9, 0.0])
def test_six_digits_round_or_keep_six_places_of_an_exponent(numbers: list[float]) -> None:
    for number, text in zip(numbers, six_digits(pl.Series(numbers)).to_list(), strict=True):
        if "e" in repr(number):
            assert text == f"{number:.6e}"
        else:
            assert text == repr(float(text))
            assert abs(float(text) - number) <= 0.500001e-6 + abs(number) * 1e-15
            assert len(text.partition(".")[2]) <= 6


def test_percentages_are_cut_to_six_places_unless_short_or_tiny() -> None:
    shares = pl.Series([0.5, 0.05682150355974834, 0.0, 1.1601609096775285e-07, 2.5, 0.0496])
    assert percents(shares).to_list() == ["50.0%", "5.682150%", "0.0%", "1.1601609096775285e-05%", "250.0%", "4.96%"]


@settings(deadline=None)
@given(st.lists(st.floats(0, 1e9) | st.integers(0, 10**9).map(lambda number: number / 1e8 + 5e-9), min_size=1))
@example([0.123456785, 1e-6, 1.5e-6, 9.99999999e-7, 1e4 - 1e-9, 123456.789])
def test_long_percentages_are_rounded_as_python_rounds(shares: list[float]) -> None:
    expected = []
    for share in shares:
        text = repr(share * 100)
        long = "e" not in text and len(text.partition(".")[2]) > 6
        expected.append(f"{share * 100:.6f}%" if long else f"{text}%")
    assert percents(pl.Series(shares)).to_list() == expected


@settings(deadline=None)
@given(TEXTS)
@example(['a"b', "a\\b", "a\nb", "it's", "\x7f", "名"])
def test_any_text_survives_between_quotes_but_for_its_single_quotes(texts: list[str]) -> None:
    plain = [text.replace("'", "") for text in texts]
    assert [json.loads(f'"{text}"') for text in escaped(pl.Series(texts, dtype=pl.String)).to_list()] == plain
    table = escaped_columns(pl.DataFrame({"a": texts, "b": ["x"] * len(texts)}), ["a", "b"])
    assert [json.loads(f'"{text}"') for text in table["a"].to_list()] == plain


@settings(deadline=None)
@given(TEXTS)
def test_lists_and_names_are_json(texts: list[str]) -> None:
    assert json.loads(json_list(texts)) == texts
    assert json.loads(f"[{','.join(map(quoted, texts))}]") == texts
