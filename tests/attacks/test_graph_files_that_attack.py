"""Hostile graph files: databases that would run, write, never end or fill the memory; JSON without sense."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from attack_tools import files_under
from werkzeug.test import Client

from twinprobe._graph.read import db as safe_sqlite
from twinprobe._graph.read.db import GraphFile, connect
from twinprobe._view.app import ViewApp
from twinprobe.errors import TwinProbeError

NODES = (
    "node_order, node_name, node_type, up_node, sub_nodes, precision_index, matched_node_link, micro_step_id, "
    "input_data, output_data, data_source, step, rank, stack_id"
)
ROW = "(0, 'DefaultModel', 0, '', '', 0, '[]', 0, '{}', '{}', 'NPU', 0, 0, 1)"
CONFIG = (
    "CREATE TABLE tb_config (graph_type, node_colors, rank_list, step_list);"
    "INSERT INTO tb_config VALUES ('build', '{}', '[0]', '[0]');"
)
TABLE = f"CREATE TABLE tb_nodes ({NODES});"
SOUND = f"{CONFIG} {TABLE} INSERT INTO tb_nodes VALUES {ROW}; CREATE TABLE tb_stack (id, stack_info);"
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"
QUESTIONS = (
    "open", "first", "children?parent=DefaultModel", "counts", "strip", "heat", "list", "search?text=a", "node?order=0",
    "edges?parent=DefaultModel", "step", "unfold?order=0", "restore?target=0", "matches",
)  # fmt: skip


def columns(values: str) -> str:
    return ", ".join(f"{values} AS {name.strip()}" for name in NODES.split(","))


DATABASES: dict[str, str] = {
    "a trigger that deletes on every change": f"{SOUND} CREATE TRIGGER t AFTER UPDATE ON tb_nodes "
                                              "BEGIN DELETE FROM tb_nodes; END;",
    "a view for a table": f"{CONFIG} CREATE VIEW tb_nodes AS SELECT {columns('1')};",
    "a view that never ends": f"{CONFIG} CREATE VIEW tb_nodes AS SELECT {columns('x')} FROM ({ENDLESS});",
    "a view of a view of itself": f"{SOUND} CREATE VIEW a AS SELECT * FROM b; CREATE VIEW b AS SELECT * FROM a;",
    "a column that is computed": f"{CONFIG} CREATE TABLE tb_nodes ({NODES}, x AS (randomblob(1000000000)));"
                                 f"INSERT INTO tb_nodes VALUES {ROW};",
    "a name that is computed": SOUND.replace("node_name,", "name0, node_name AS (hex(zeroblob(500000000))),", 1)
                               .replace("(0, 'DefaultModel', 0", "(0, 'x', 0", 1),
    "an index that is computed": f"{SOUND} CREATE INDEX i ON tb_nodes (abs(node_order), upper(node_name));",
    "a check that calls": f"{CONFIG} CREATE TABLE tb_nodes ({NODES}, CHECK (length(randomblob(10)) > 0));"
                          f"INSERT INTO tb_nodes VALUES {ROW};",
    "wrong types everywhere": f"{CONFIG} {TABLE} INSERT INTO tb_nodes VALUES "
                              "('x', x'ff00', 1.5, x'00', 7, 'high', 3, 'no', x'01', 5, 'NPU', 0, 0, 'z');",
    "numbers beyond all use": SOUND.replace("(0, 'DefaultModel', 0, '', '', 0",
                                            "(9223372036854775807, 'a', 9e999, '', '', -9e999"),
    "a configuration of other types": SOUND.replace("('build', '{}', '[0]', '[0]')",
                                                    "(x'ff', 7, '[1e99, \"x\", null]', '{}')"),
    "a thousand configurations": SOUND + CONFIG.partition(";")[2] * 1000,
    "JSON 100,000 levels deep in a cell": SOUND.replace("'[]', 0, '{}'", f"'{'[' * 100_000}', 0, '{'[' * 100_000}'"),
    "a stack that is no list": SOUND + "INSERT INTO tb_stack VALUES (1, '{\"a\": 1}');",
    "a node that is its own parent": SOUND.replace("0, 'DefaultModel', 0, ''", "0, 'DefaultModel', 0, 'DefaultModel'"),
    "a table without rows": f"{CONFIG} {TABLE}",
    "no tables": "CREATE TABLE x (y);",
    "a name with a NUL and escape codes": SOUND.replace("'DefaultModel'", "char(0) || char(27) || '[2J'"),
    "a cell of 70 megabytes": SOUND.replace("'[]', 0, '{}'", "'[]', 0, zeroblob(70000000)"),
    "a virtual table": f"{SOUND} CREATE VIRTUAL TABLE v USING fts5(x);",
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_of_time(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(safe_sqlite, "_SECONDS_PER_QUERY", 2.0)
    return


def database(path: Path, script: str) -> Path:
    made = sqlite3.connect(path)
    made.executescript(f"PRAGMA synchronous=OFF; BEGIN; {script} COMMIT;")
    made.close()
    return path


@pytest.mark.parametrize("name", DATABASES)
def test_a_hostile_database_is_read_or_refused_and_stays_as_it_is(name: str, tmp_path: Path) -> None:
    try:
        database(tmp_path / "a.vis.db", DATABASES[name])
    except sqlite3.Error as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    before = files_under(tmp_path)
    client = Client(ViewApp(tmp_path))
    for question in QUESTIONS:
        reply = client.get(f"/api/{question}")
        assert reply.status_code in (200, 422), (question, reply.status_code)
        assert b"Traceback" not in reply.data
    assert files_under(tmp_path) == before


def test_a_foreign_database_is_opened_without_trust(tmp_path: Path) -> None:
    connection = connect(database(tmp_path / "a.vis.db", SOUND))
    asked = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("trusted_schema", "query_only")}
    assert asked == {"trusted_schema": 0, "query_only": 1}
    for statement in ("DELETE FROM tb_nodes", "DROP TABLE tb_nodes", "PRAGMA user_version=7", "VACUUM"):
        with pytest.raises(sqlite3.OperationalError):
            connection.execute(statement)


def test_a_foreign_database_cannot_load_or_write_files(tmp_path: Path) -> None:
    connection = connect(database(tmp_path / "a.vis.db", SOUND))
    with pytest.raises(sqlite3.Error):
        connection.execute("SELECT load_extension('x')").fetchone()
    target = tmp_path / "new.db"
    if sys.version_info >= (3, 11):  # 3.10 cannot set the limit; nothing of ours attaches anything
        with pytest.raises(sqlite3.Error):
            connection.execute(f"ATTACH '{target}' AS other")
        assert not target.exists()


def test_pages_of_noise_are_a_message(tmp_path: Path) -> None:
    sound = database(
        tmp_path / "sound.db", SOUND + "".join(f"INSERT INTO tb_stack VALUES ({at}, '[]');" for at in range(500))
    )
    content, chance = sound.read_bytes(), Random(3)
    for at in range(40):
        changed = bytearray(content)
        start = 4096 * chance.randrange(len(content) // 4096)
        length = chance.choice((4, 64, 4096))
        changed[start + (100 if start == 0 else 0) : start + length] = chance.randbytes(
            max(length - (100 if not start else 0), 0)
        )
        path = tmp_path / f"{at}.vis.db"
        path.write_bytes(changed)
        try:
            with GraphFile(path) as file:
                list(file.graph(0, 0).outline("target"))
        except TwinProbeError as error:
            assert str(path) in str(error)


def nodes(**more: object) -> dict[str, object]:
    node = {
        "id": "a",
        "upnode": "None",
        "subnodes": ["a"],
        "node_type": 0,
        "input_data": {},
        "output_data": {},
        "data": {},
    }
    return {"root": "a", "node": {"a": node | more}}


VIS: dict[str, Callable[[], str]] = {
    "a node that is its own child": lambda: json.dumps(nodes()),
    "a root that is not there": lambda: json.dumps({**nodes(), "root": "b"}),
    "numbers beyond 64 bits": lambda: json.dumps({**nodes(data={"precision_index": 1 << 80}), "MicroSteps": 1 << 80}),
    "nodes that are numbers": lambda: json.dumps({"root": "a", "node": {"a": 1}}),
    "children that are objects": lambda: json.dumps(nodes(subnodes=[{}])),
    "100,000 levels": lambda: json.dumps(
        {"root": "0", "node": {str(at): {"subnodes": [str(at + 1)], "upnode": str(at - 1)} for at in range(100_000)}}
    ),
    "lists 100,000 levels deep": lambda: '{"root": "a", "node": ' + "[" * 100_000,
    "NaN and a deep list": lambda: '{"root": NaN, "node": ' + "[" * 100_000,
    "half a character": lambda: json.dumps(nodes(stack_info=["\ud800"])),
    "half a character and NaN": lambda: json.dumps(nodes(stack_info=["\ud800"], x=float("nan"))),
    "texts that are lists": lambda: json.dumps(nodes(upnode=["x"], node_type=[], micro_step_id={})),
    "nothing": lambda: "",
    "a list": lambda: "[]",
}


@pytest.mark.parametrize("name", VIS)
def test_a_hostile_vis_file_is_shown_or_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.vis").write_text(VIS[name]())
    client = Client(ViewApp(tmp_path))
    for question in QUESTIONS:
        reply = client.get(f"/api/{question}")
        assert reply.status_code in (200, 202, 422), (question, reply.status_code)
        assert b"Traceback" not in reply.data
