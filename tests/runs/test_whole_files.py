"""A single file appears whole or not at all, whatever it is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from twinprobe._runs.whole_files import write_whole


@pytest.mark.parametrize(
    "name", ["short.json", "x" * 250 + ".json", "层" * 83 + ".json"], ids=["short", "long", "wide"]
)
def test_a_file_of_any_name_is_written_and_nothing_else_stays(name: str, tmp_path: Path) -> None:
    for text in ("first", "second"):
        write_whole(tmp_path / name, lambda place, text=text: place.write_text(text), sync=True)
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, text)]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("before")

    def fails(place: Path) -> None:
        place.write_text("half of")
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match="on purpose"):
        write_whole(path, fails)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("kept.json", "before")]
