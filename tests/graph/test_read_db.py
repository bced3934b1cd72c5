"""Graph databases of any writer, whole, unfinished, damaged or hostile, are read without harm."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinprobe._graph.read.db import GraphFile, connect, last_link, limit_time, parsed
from twinprobe.errors import BadInput

CONFIG = (
    "CREATE TABLE tb_config (id, graph_type, task, tool_tip, micro_steps, overflow_check, node_colors, rank_list,"
    "step_list); INSERT INTO tb_config VALUES ('1', 'compare', 'summary', NULL, 1, 0, '{}', '[0]', '[0]');"
)
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
NODE_COLUMNS = (
    "node_order, node_name, node_type, up_node, sub_nodes, precision_index, matched_node_link, micro_step_id, "
    "input_data, output_data, data_source, step, rank"
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


@pytest.fixture
def file(reference: Path, tmp_path: Path) -> Path:
    source = next((reference / "graph" / "results" / "cmp_stat").glob("*.vis.db"))
    return Path(shutil.copyfile(source, tmp_path / source.name))


def made(path: Path, script: str) -> Path:
    database = sqlite3.connect(path)
    database.executescript(script)
    database.commit()
    database.close()
    return path


def test_a_file_in_wal_mode_is_read_and_nothing_is_made_beside_it(file: Path) -> None:
    made(file, "PRAGMA journal_mode=WAL")
    assert file.read_bytes()[18] == 2  # the header says so, as in the files that msprobe leaves
    with GraphFile(file) as graph:
        assert graph.config().task == "summary"
        assert len(list(graph.graph(0, 0).outline("target"))) == 157
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_rows_that_are_only_in_the_log_are_read_and_the_files_stay(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    writer = sqlite3.connect(work / "a.vis.db")
    writer.executescript(
        f"PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; {CONFIG} CREATE TABLE tb_nodes ({NODE_COLUMNS});"
        "INSERT INTO tb_nodes VALUES (0, 'DefaultModel', '0', '', '', 0, '[]', 0, '', '', 'NPU', 0, 0);"
    )
    left = tmp_path / "left"
    left.mkdir()
    for name in ("a.vis.db", "a.vis.db-wal"):  # as a copy or a killed writer leaves them: no -shm
        shutil.copyfile(work / name, left / name)
    writer.close()
    before = {path.name: path.read_bytes() for path in left.iterdir()}
    with GraphFile(left / "a.vis.db") as graph:
        root = graph.graph(0, 0).root("target")
    assert root
    assert root["node_name"] == "DefaultModel"
    assert {path.name: path.read_bytes() for path in left.iterdir()} == before


def test_a_file_that_is_being_written_shows_what_is_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.vis.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.executescript(f"PRAGMA journal_mode=WAL; CREATE TABLE tb_nodes ({NODE_COLUMNS});")
    with pytest.raises(BadInput, match="not a finished graph file"):
        GraphFile(path)
    writer.executescript(CONFIG)
    with GraphFile(path) as graph:
        assert graph.config().compared
    writer.close()


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "is empty"), (b"{}", "no SQLite"), (b"SQLite format 3\0" + b"\xff" * 5000, "cannot be read")],
)
def test_what_is_no_database_is_a_message(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.vis.db"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=words):
        GraphFile(path)


def test_a_cut_file_is_a_message_and_not_a_crash(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:150_000])
    with pytest.raises(BadInput, match="cannot be read"), GraphFile(file) as graph:
        list(graph.graph(0, 0).outline("target"))


def test_a_view_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    columns = ", ".join(f"1 AS {name.strip()}" for name in NODE_COLUMNS.split(","))
    path = made(tmp_path / "a.vis.db", f"{CONFIG} CREATE VIEW tb_nodes AS SELECT {columns};")
    with pytest.raises(BadInput, match="table tb_nodes is missing"):
        GraphFile(path)


def test_nothing_can_be_written_through_the_connection(file: Path) -> None:
    connection = connect(file)
    for statement in ("DELETE FROM tb_nodes", "CREATE TABLE x (y)", "UPDATE tb_config SET task = ''"):
        with pytest.raises(sqlite3.OperationalError):
            connection.execute(statement)


def test_an_endless_query_ends(file: Path) -> None:
    connection = connect(file)
    limit_time(connection, 0.2)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
        ).fetchone()


def test_columns_of_unexpected_kinds_are_read_as_nothing(tmp_path: Path) -> None:
    odd = "0, x'fffe', 7, '', x'00', 'high', '{', 'no', x'01', 5, 'NPU', 0, 0"
    script = (
        "CREATE TABLE tb_config (graph_type, node_colors, rank_list, step_list);"
        "INSERT INTO tb_config VALUES (x'ff00', '[[[', 'x', NULL);"
        f"CREATE TABLE tb_nodes ({NODE_COLUMNS}); INSERT INTO tb_nodes VALUES ({odd});"
    )
    path = made(tmp_path / "a.vis.db", script)
    with GraphFile(path) as graph:
        config = graph.config()
        assert (config.colors, config.ranks, config.steps, config.compared) == ({}, [0], [0], False)
        row = graph.graph(0, 0).root("target")
        assert row
        assert row["overflow_level"] is None
        assert graph.graph(0, 0).stack(row) == []


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_file_with_flipped_bytes_is_read_or_refused(
    reference: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(next((reference / "graph" / "results" / "build_single").glob("*.vis.db")).read_bytes())
    for _ in range(data.draw(st.integers(1, 30))):
        content[data.draw(st.integers(16, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("flipped") / "a.vis.db"
    path.write_bytes(content)
    try:
        with GraphFile(path) as file:
            config = file.config()
            graph = file.graph(config.steps[0], config.ranks[0])
            rows = graph.children("target", "DefaultModel", 0, 100, None)
            list(graph.outline("target"))
            graph.search("target", "linear", 10)
            for row in rows:
                graph.stack(graph.node("target", row["node_name"], full=True) or {})
    except BadInput:
        pass


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ('["a", "b"]', "b"),
        ("[]", None),
        ("", None),
        (None, None),
        ("[", None),
        ('{"a": 1}', None),
        ("[" * 100_000, None),
    ],
)
def test_the_partner_is_the_last_name_of_the_link(text: str | None, link: str | None) -> None:
    assert last_link(text) == link


def test_damaged_json_is_an_empty_value() -> None:
    assert parsed("{", dict) == {}
    assert parsed('["a"]', dict) == {}
    assert parsed(b"{}", dict) == {}
