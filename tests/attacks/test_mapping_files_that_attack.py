"""Hostile mapping files: YAML that explodes or constructs, patterns that hang, relations without end."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attack_tools import ALLOWED_MEMORY, cost

from twinprobe._align.auto.alignment import read_alignment
from twinprobe._align.mapping.api_mapping import read_api_file
from twinprobe._align.mapping.flat_mapping import read_cell_file, read_data_file
from twinprobe._align.mapping.layer_tree import read_layer_file
from twinprobe._align.ops.table import read_table
from twinprobe._compare.merge.config import read_merge_config
from twinprobe._graph.compare_json import read_compare_json
from twinprobe._layout.layout import layouts_of
from twinprobe.errors import BadInput

YAML_READERS: dict[str, Callable[[Path], Any]] = {
    "-am": read_api_file, "-cm": read_cell_file, "-dm": read_data_file, "-lm": read_layer_file,
    "merge config": read_merge_config,
}  # fmt: skip


def laughs(levels: int) -> str:
    """Every line stands for ten of the line before."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, levels)]
    return "\n".join(lines) + "\n"


def merged_laughs(levels: int) -> str:
    lines = ["a0: &a0 {k0: v}"]
    lines += [f"a{at}: &a{at} {{<<: *a{at - 1}, k{at}: *a{at - 1}, l{at}: *a{at - 1}}}" for at in range(1, levels)]
    return "\n".join(lines) + "\n"


YAMLS: dict[str, str] = {
    "anchors that stand for 10^30 values": laughs(30),
    "merges that double": merged_laughs(60),
    "an anchor within itself": "a: &a [*a]\n",
    "an object to construct": "a: !!python/object/apply:os.system ['touch was-here']\n",
    "a module to import": "a: !!python/module:antigravity\n",
    "a name to look up": "? !!python/name:os.system\n: b\nc: [d]\n",
    "an object by new": "!!python/object/new:os.system ['touch was-here']\n",
    "a tag of nobody": "a: !<tag:example.org,2000:x> {b: c}\nd: [e]\n",
    "lists 100,000 levels deep": "a: " + "[" * 100_000,
    "indentation 5,000 levels deep": "\n".join(" " * at + "a:" for at in range(5000)),
    "a list as a key": "? [a, b]\n: c\n",
    "a thousand documents": "--- [a]\n" * 1000,
    "a directive of another version": "%YAML 9.9\n---\na: [b]\n",
    "control characters": "a: \x07\x1b[2J\n",
    "half a quotation": "a: 'b\n" * 10,
}


@pytest.mark.parametrize("reader", YAML_READERS)
@pytest.mark.parametrize("name", YAMLS)
def test_a_hostile_yaml_file_is_refused_or_read_as_text(
    name: str, reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "map.yaml"
    path.write_text(YAMLS[name], encoding="utf-8")
    peak, error = cost(lambda: YAML_READERS[reader](path))
    # A class of a layer mapping may be empty, whatever tag stands in its place.
    assert isinstance(error, BadInput) or (reader, name) == ("-lm", "a module to import")
    assert "\x1b" not in str(error)
    assert peak < ALLOWED_MEMORY + 3 * path.stat().st_size
    assert "antigravity" not in sys.modules
    assert not (tmp_path / "was-here").exists()


def test_a_tag_on_a_name_is_read_as_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are taken as they are written, whatever a tag says they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "map.yaml").write_text("a: !!python/name:os.system b\nc: !!int d\n")
    lines = read_data_file(tmp_path / "map.yaml").lines
    assert [(line.left, line.right) for line in lines] == [("a", "b"), ("c", "d")]


OPERATOR_TABLES: dict[str, str] = {
    "a pattern that never ends": json.dumps({"(a+)+$": ["Linear"]}),
    "a pattern among the values": json.dumps({"LinearOperation": [".*.*.*.*.*x"]}),
    "an empty type": json.dumps({"": ["Linear"]}),
    "no values": json.dumps({"LinearOperation": []}),
    "values of all kinds": json.dumps({"LinearOperation": [1, None, {}]}),
    "a deep list": '{"A": ' + "[" * 100_000,
    "a list": "[]",
    "escape codes": json.dumps({"A\x1b[2J": ["B"]}),
    "half a character": '{"A": ["\\ud800"]}',
    "bytes that are no text": '{"A": ["\udcff"]}',
}


@pytest.mark.parametrize("name", OPERATOR_TABLES)
def test_a_hostile_operator_mapping_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "op_mapping_file.json"
    path.write_text(OPERATOR_TABLES[name], encoding="utf-8", errors="surrogateescape")
    peak, error = cost(lambda: read_table(path))
    assert isinstance(error, BadInput)
    assert "\x1b" not in str(error)
    assert peak < ALLOWED_MEMORY


def test_types_of_an_operator_mapping_are_no_patterns(tmp_path: Path) -> None:
    path = tmp_path / "op_mapping_file.json"
    path.write_text(json.dumps({"a" * 50_000: ["b" * 50_000]}))
    table, start = read_table(path), time.process_time()
    assert table.entry("a" * 49_999 + "!", "b" * 49_999 + "!") is None
    assert time.process_time() - start < 5


RELATION = {"target": "a", "golden": "b"}
ALIGNMENTS: dict[str, str] = {
    "a call in two relations": json.dumps({"relations": [RELATION, RELATION]}),
    "nothing on a side": json.dumps({"relations": [{"target": [], "golden": "b"}]}),
    "an unknown kind": json.dumps({"relations": [{**RELATION, "kind": "\x1b[2J"}]}),
    "another format": json.dumps({"relations": [], "format": "x" * 1000}),
    "relations without end": '{"relations": ' + "[" * 100_000,
    "an axis of 5000 digits": json.dumps({"relations": [{**RELATION, "axis": 0}]}).replace("0}", "9" * 5000 + "}"),
    "a name that is an object": json.dumps({"relations": [{"target": {}, "golden": "b"}]}),
    "bytes that are no text": '{"relations": [{"target": "\udcff", "golden": "b"}]}',
}


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_a_hostile_alignment_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "alignment.json"
    path.write_text(ALIGNMENTS[name], encoding="utf-8", errors="surrogateescape")
    peak, error = cost(lambda: read_alignment(path))
    assert isinstance(error, BadInput)
    assert "\x1b" not in str(error)
    assert peak < ALLOWED_MEMORY


LAYOUT = {"rank_size": 4, "tp": 2, "pp": 2}
COMPARE_FILES: dict[str, str] = {
    "a path of 5000 letters": json.dumps({"npu_path": "x" * 5000}),
    "a path with NUL": json.dumps({"npu_path": "a\0b", "bench_path": "c\0d"}),
    "the home of nobody": json.dumps({"npu_path": "~nobody-by-this-name/x"}),
    "a path that is a list": json.dumps({"npu_path": ["x"]}),
    "a deep list": '{"npu_path": ' + "[" * 100_000,
    "a number of 5000 digits": '{"npu_path": ' + "9" * 5000 + "}",
    "more ranks than there are machines": json.dumps(
        {"npu_path": "x", "parallel_merge": {"npu": {**LAYOUT, "rank_size": 10**30, "tp": 10**30 + 1}}}
    ),
    "sizes below one": json.dumps({"npu_path": "x", "parallel_merge": {"npu": {**LAYOUT, "tp": -2}}}),
    "an order of all words": json.dumps(
        {"npu_path": "x", "parallel_merge": {"npu": {**LAYOUT, "order": "tp-" * 9999}}}
    ),
    "remarks without end": "#" * 200_000,
}


@pytest.mark.parametrize("name", COMPARE_FILES)
def test_a_hostile_compare_json_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "compare.json"
    path.write_text(COMPARE_FILES[name])

    def read() -> None:
        found = read_compare_json(path)
        layouts_of(found.parallel_merge, golden=False)
        assert not found.npu_path.exists()

    peak, error = cost(read)
    assert isinstance(error, BadInput) or name == "a path with NUL"  # which no file has, and the command then says so
    assert peak < ALLOWED_MEMORY
