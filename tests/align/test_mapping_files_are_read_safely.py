"""Whatever is wrong with a mapping file is said with its line, before anything is compared."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairing import MAPPING, yaml_file

from twinprobe._align.mapping import MappingOptions, yaml_files
from twinprobe._align.mapping.yaml_files import Mapping, Text, read_flat, read_yaml
from twinprobe._align.matcher import build_matcher
from twinprobe.errors import BadInput

BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("~", "empty"),
        ("A:\n  x: y\nB:\n  z: w\nA:\n  q: r\n", "line 5: the key 'A' is here and in line 1"),
        (BOMB, "the anchors expand to more than"),
        ("a: &a\n  b: *a\n", "line 2: *a refers to nothing above it"),
        ("[" * 30 + "]" * 30, "nested deeper than"),
        ("[" * 300_000, "nested deeper than"),
        ("a: b\n---\nc: d\n", "line 2: a second document"),
        ("a: b\nOr\nc: d\n", "line 3"),
        ("a:\n\t- b\n", "line 2"),
        ("a: !!python/object/apply:os.system [ls]\n", "the value of 'a' is a list"),
        ("? [x, y]\n: z\n", "line 1: a key is a list"),
        ("a: [b\n", "is not YAML"),
        ("just a text", "holds a single value"),
        ("- a\n- b\n", "holds a list"),
        ("a: {b: c}\n", "the value of 'a' is a mapping"),
        ("a:\n", "the value of 'a' is empty"),
    ],
)
def test_a_bad_file_is_refused_and_the_line_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = yaml_file(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        build_matcher(MappingOptions(data=path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        read_yaml(tmp_path / "missing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(BadInput, match="not UTF-8"):
        read_yaml(tmp_path / "binary.yaml")


def test_a_file_beyond_all_sense_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_files, "MAX_BYTES", 10)
    with pytest.raises(BadInput, match="more than 10 are not read"):
        read_yaml(yaml_file(tmp_path, "a: b\nc: d\ne: f\n"))


@pytest.mark.parametrize("name", ["lm_empty.yaml", "lm_badtype.yaml"])
def test_an_empty_or_ill_typed_layer_mapping_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match=name):
        build_matcher(MappingOptions(layer=MAPPING / name))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Attention: query\n", "line 1: the class Attention holds a single value"),
        ("Attention:\n  query: [a]\n", "line 2: the value of 'query' is a list"),
        ("Attention:\n  query: (Linear)\n", "line 2"),
        ("Attention:\n  a..b: c\n", "line 2"),
    ],
)
def test_an_ill_typed_rule_is_refused(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        build_matcher(MappingOptions(layer=yaml_file(tmp_path, text)))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text", ["- a\n", "ms_api: Functional.abs\n", "- ms_api: a\n  pt_api: b\n  ms_args: {x: y}\n", "[]\n", "- []\n"]
)
def test_an_ill_typed_api_mapping_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadInput):
        build_matcher(MappingOptions(api=yaml_file(tmp_path, text)))


def test_numbers_and_words_stay_text(tmp_path: Path) -> None:
    node = read_yaml(yaml_file(tmp_path, "5: 0\non: off\n1.50: 0x10\n"))
    assert isinstance(node, Mapping)
    read = {key: value.value for key, (_, value) in node.items.items() if isinstance(value, Text)}
    assert read == {"5": "0", "on": "off", "1.50": "0x10"}


def test_an_alias_that_stays_small_and_a_merge_are_understood(tmp_path: Path) -> None:
    node = read_yaml(yaml_file(tmp_path, "A: &a\n  x: y\nB:\n  <<: *a\n  z: w\nC: *a\n"))
    assert isinstance(node, Mapping)
    b = node.items["B"][1]
    assert isinstance(b, Mapping)
    assert list(b.items) == ["x", "z"]


NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_./-]{0,12}", fullmatch=True)


@settings(deadline=None, max_examples=150)
@given(
    lines=st.lists(
        st.one_of(
            st.tuples(NAMES, NAMES).map(lambda pair: f"{pair[0]}: {pair[1]}"),
            st.sampled_from(
                ["", "# note", "a: b # c", " a: b", "x:y", "'q': r", "a: &b c", "N/A: N/A", "k: null", "- a"]
            ),
        ),
        max_size=6,
    )
)
def test_the_short_way_through_plain_lines_reads_what_yaml_reads(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = yaml_file(tmp_path_factory.mktemp("flat"), "\n".join(lines))
    try:
        slow: object = yaml_files.flat_lines(path, read_yaml(path), "")
    except BadInput as error:
        slow = str(error).replace(" ()", "")
    try:
        fast: object = read_flat(path, "")
    except BadInput as error:
        fast = str(error).replace(" ()", "")
    assert fast == slow
