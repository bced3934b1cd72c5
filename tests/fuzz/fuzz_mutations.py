"""Changes to real files: to any bytes, and to the structure of JSON, text, zip and SQLite files.

Each takes the contents and a source of chance and gives new contents. Random bytes alone die in the first check of a
format; a file that is whole but for one value reaches the code behind it.
"""

from __future__ import annotations

import io
import json
import sqlite3
import struct
import zipfile
from collections.abc import Callable
from random import Random
from typing import Any

Mutation = Callable[[bytes, Random], bytes]

WORDS = (
    b"", b"\0", b"\xff" * 4, b"\xed\xa0\x80", b"\xff\xfe", b"\xef\xbb\xbf", b"{", b"}", b"[", b"]", b'"', b",", b":",
    b"#", b"null", b"NaN", b"-Infinity", b"1e999", b"-0", b"9" * 25, b"9" * 4400, b"0." + b"3" * 400, b"\\ud800",
    b"\\u0000", b"../", b"/etc/passwd", b"&a", b"*a", b"<<: *a", b"!!python/object/apply:os.system", b"---\n", b"\n",
    b"\t", b"- ", b"? ", b"|\n ", b"'", b"\x1b[2J", b"\r", b"\xe2\x80\xae", b"=1+1", b".forward", b".0",
    b"parameters_grad", b"$End=1\n", b"dims=", b"PK\5\6", b"PK\1\2", b"PK\3\4", b"\x80\x02", b"R", b"\x8a\x09",
    b"'<f4'", b"'|O'", b"(1,)", b"SQLite format 3\0",
)  # fmt: skip
HUGE = "@huge@"
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1 << 31, 1 << 63, -(1 << 63), 1 << 64, 10**30, HUGE, 0.5, -0.0, 1e308, float("nan"),
    float("inf"), float("-inf"), "", "0", "\u00b2", "\u0663", "9" * 4400, "NaN", "-Infinity", "N/A", "\ud800", "\0",
    "a" * 5000, "../../x", "/etc/passwd", "\x1b[2J\x07", "\u202eabc", "=1+1", "<b>", "Module.a.B.forward.\u00b2",
    "Torch.x.\u00b2.forward", "Torch.x." + "9" * 4400 + ".forward", "Module.x.X.backward.-1", "a.parameters_grad.0",
    ".forward.0", "...forward", "forward", [], {}, [[]], [None], [0, 0], ["x", 1], {"": ""}, {"type": "torch.Tensor"},
    {"type": 3}, {"value": {"a": []}},
)  # fmt: skip


def change_bytes(data: bytes, chance: Random) -> bytes:
    """Overwrite, insert, remove, repeat or cut some bytes."""
    changed = bytearray(data or b"\0")
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(changed) + 1)
        length = min(chance.choice((1, 1, 2, 4, 8, 64)), len(changed) - at)
        kind = chance.randrange(7)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            changed[at : at + length] = chance.randbytes(length)
        elif kind == 2:
            changed[at:at] = chance.choice(WORDS)
        elif kind == 3:
            word = chance.choice(WORDS)
            changed[at : at + len(word)] = word
        elif kind == 4:
            del changed[at : at + length]
        elif kind == 5:
            changed[at:at] = changed[at : at + length] * chance.choice((1, 2, 50))
        else:
            del changed[at:]
        changed = changed or bytearray(b"\0")
    return bytes(changed)


def change_text(data: bytes, chance: Random) -> bytes:
    """Move, repeat, drop or join whole lines, or change bytes."""
    if chance.random() < 0.5:
        return change_bytes(data, chance)
    lines = data.split(b"\n")
    at, other = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(5)
    if kind == 0:
        lines.insert(at, lines[other])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        lines[at] = b" " * chance.choice((1, 2, 4)) + lines[at]
    elif kind == 3:
        key, colon, value = lines[at].partition(b":")
        lines[at] = key + colon + b" " + chance.choice((chance.choice(WORDS), value.strip() * 2, lines[other].strip()))
    else:
        lines[at] = chance.choice(WORDS) + b": " + lines[other].strip()
    return b"\n".join(lines)


def change_json(data: bytes, chance: Random) -> bytes:
    """Replace, drop, add, rename or wrap values somewhere in the document; now and then change bytes after that."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return change_bytes(data, chance)
    for _ in range(chance.choice((1, 1, 2, 3))):
        document = _changed_value(document, chance)
    try:
        text = json.dumps(document, ensure_ascii=chance.random() < 0.8, indent=chance.choice((None, 1)))
    except (ValueError, RecursionError):
        return change_bytes(data, chance)
    if chance.random() < 0.9:
        text = text.replace(f'"{HUGE}"', "9" * 5000)
    out = text.encode("utf-8", "surrogatepass")
    return change_bytes(out, chance) if chance.random() < 0.15 else out


def _changed_value(document: Any, chance: Random) -> Any:
    if not isinstance(document, dict | list) or not document or chance.random() < 0.02:
        return chance.choice(VALUES)
    node = document
    while True:
        key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
        below = node[key]
        if not isinstance(below, dict | list) or not below or chance.random() < 0.25:
            break
        node = below
    kind = chance.randrange(6)
    if kind <= 1:
        node[key] = chance.choice(VALUES)
    elif kind == 2:
        del node[key]
    elif kind == 3:
        node[key] = _nested(node[key], chance.choice((1, 3, 450)), chance)
    elif isinstance(node, dict):
        name = chance.choice([value for value in VALUES if isinstance(value, str)])
        node[chance.choice((name, f"{key}{name}", f"{key}.0"))] = node.pop(key) if kind == 4 else node[key]
    else:
        node.insert(chance.randrange(len(node) + 1), chance.choice((node[key], chance.choice(VALUES))))
    return document


def _nested(value: Any, depth: int, chance: Random) -> Any:
    as_list = chance.random() < 0.5
    for _ in range(depth):
        value = [value] if as_list else {"a": value}
    return value


def change_zip(data: bytes, chance: Random) -> bytes:
    """Change one member and pack all again, so that the directory stays right; or change the bytes of the file."""
    if chance.random() < 0.3:
        return change_bytes(data, chance)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as opened:
            members = {name: opened.read(name) for name in opened.namelist()}
    except Exception:
        return change_bytes(data, chance)
    name = chance.choice([*members, *(one for one in members if one.endswith("data.pkl"))] or ["x"])
    kind = chance.randrange(8)
    if kind == 0:
        members.pop(name, None)
    elif kind == 1:
        members[name + chance.choice(("/", "0", "/../x", "\u00b2"))] = members.pop(name, b"")
    else:
        members[name] = _changed_pickle(members.get(name, b""), chance)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", chance.choice((0, 0, 0, 8))) as packed:
        for member, content in members.items():
            packed.writestr(member, content)
    return out.getvalue()


def _changed_pickle(data: bytes, chance: Random) -> bytes:
    """An opcode more, less or another one, or a number that is larger than all others."""
    if chance.random() < 0.5:
        return change_bytes(data, chance)
    number = b"\x8a\x09" + chance.choice((0, 1, -1, 1 << 31, 1 << 40, (1 << 63) - 1, 1 << 63)).to_bytes(
        9, "little", signed=True
    )
    part = chance.choice(
        (number, b"N", b")", b"(", b"t", b"}", b"]", b"\x85", b"\x86", b"R", b"Q", b"h\0", b"s", b"\x88", b".")
    )
    at = chance.randrange(len(data) + 1)
    places = [place for place in range(len(data)) if data[place : place + 1] == b"K"]
    if places and chance.random() < 0.5:
        at = chance.choice(places)
        return data[:at] + part + data[at + 2 :]
    return data[:at] + part + data[at:]


def change_sqlite(data: bytes, chance: Random) -> bytes:
    """Change cells or the schema through SQLite itself, or bytes of a page."""
    if chance.random() < 0.6:
        return _changed_page(data, chance)
    database = sqlite3.connect(":memory:")
    try:
        if hasattr(database, "deserialize"):
            database.deserialize(data)
            _changed_rows(database, chance)
            return bytes(database.serialize())
    except (sqlite3.Error, UnicodeDecodeError, OverflowError, MemoryError):
        return _changed_page(data, chance)
    finally:
        database.close()
    return _changed_page(data, chance)


def _changed_page(data: bytes, chance: Random) -> bytes:
    if chance.random() < 0.3 or len(data) < 100:
        return change_bytes(data, chance)
    changed = bytearray(data)
    start = chance.choice((0, 4096 * chance.randrange(max(len(data) // 4096, 1))))
    for _ in range(chance.choice((1, 2, 8))):
        at = min(start + chance.randrange(120), len(changed) - 5)
        struct.pack_into(">I", changed, at, chance.choice((0, 1, 0xFFFF, 1 << 31, chance.getrandbits(32))))
    return bytes(changed)


def _changed_rows(database: sqlite3.Connection, chance: Random) -> None:
    tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    table = chance.choice(tables)
    columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
    column = chance.choice(columns)
    odd = (
        None,
        -1,
        1 << 62,
        0.5,
        float("inf"),
        b"\xff\0",
        "",
        "[",
        "[[]]",
        '{"a": {"b": []}}',
        "\u00b2",
        "a" * 70_000,
        "[1, 2]",
        '["x"]',
        "{}",
    )
    some = "abs(random()) % 2" if chance.random() < 0.5 else "1"
    kind = chance.randrange(6)
    if kind <= 2:
        database.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE {some}', (chance.choice(odd),))
    elif kind == 3:
        database.execute(f'DELETE FROM "{table}" WHERE {some}')
    elif kind == 4:
        database.execute(f'UPDATE "{table}" SET "{column}" = "{chance.choice(columns)}" WHERE {some}')
    else:
        database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "x{chance.randrange(9)}"')
    database.commit()
