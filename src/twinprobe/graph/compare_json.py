"""compare.json: what to draw, written by hand, remarks included."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.runs.places import place, remote
from twinprobe.runs.whole_file import open_file

_KEYS = ("npu_path", "bench_path", "is_print_compare_log", "parallel_merge")
_MOST_BYTES = 1 << 20
_HINT = '{"npu_path": "./npu_dump", "bench_path": "./bench_dump", "is_print_compare_log": true}'


@dataclass(frozen=True)
class CompareJson:
    """The content of a compare.json."""

    npu_path: Path
    bench_path: Path | None
    is_print_compare_log: bool
    parallel_merge: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def read_compare_json(path: Path) -> CompareJson:
    """Read a compare.json; ``# ...`` to the end of a line is a remark, a comma before a closing bracket is forgiven."""
    document = _load(path)
    npu = document.get("npu_path")
    if not npu:
        raise BadInput('has no "npu_path"', where=path, hint=f"for example {_HINT}")
    log = document.get("is_print_compare_log", True)
    if not isinstance(log, bool):
        raise BadInput(f'"is_print_compare_log" is {log!r}', where=path, hint="expected true or false")
    merge = document.get("parallel_merge") or {}
    if not isinstance(merge, dict):
        raise BadInput('"parallel_merge" is not an object', where=path, hint='expected {"npu": {...}, "bench": {...}}')
    unknown = [key for key in document if key not in _KEYS]
    notes = [f"{path}: {', '.join(map(repr, unknown))} means nothing here and is left out"] if unknown else []
    bench = document.get("bench_path")
    return CompareJson(
        npu_path=_path(path, "npu_path", npu),
        bench_path=_path(path, "bench_path", bench) if bench else None,
        is_print_compare_log=log,
        parallel_merge=merge,
        notes=notes,
    )


def _load(path: Path) -> dict[str, Any]:
    try:
        with open_file(path) as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise BadInput(f"is larger than {_MOST_BYTES >> 20} MiB", where=path, hint=f"for example {_HINT}")
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadInput(f"is not text: byte {error.start} is not UTF-8", where=path) from error
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from error
    try:
        document = json.loads(_without_remarks(text))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"is not JSON: {error}", where=path, hint=f"for example {_HINT}") from error
    if not isinstance(document, dict):
        raise BadInput("is not an object", where=path, hint=f"for example {_HINT}")
    return document


def _path(file: Path, key: str, value: object) -> Path:
    """A path as the user typed it: from the working folder, else from the folder of the file itself."""
    if not isinstance(value, str):
        raise BadInput(f'"{key}" is not text', where=file)
    try:
        path = place(value)
        if remote(path) is not None:
            return path
        beside = file.parent / path
        return beside if not path.exists() and beside.exists() else path
    except (OSError, ValueError, RuntimeError) as error:
        raise BadInput(f'"{key}" is no path: {str(error)[:200]}', where=file) from None


def _without_remarks(text: str) -> str:
    """Blank out remarks and commas that end a list, outside strings; every character keeps its place."""
    letters = list(text)
    in_string = escaped = False
    comma: int | None = None
    at = 0
    while at < len(letters):
        letter = letters[at]
        if in_string:
            in_string = escaped or letter != '"'
            escaped = letter == "\\" and not escaped
        elif letter == "#":
            while at < len(letters) and letters[at] != "\n":
                letters[at] = " "
                at += 1
            continue
        else:
            if letter in "}]" and comma is not None:
                letters[comma] = " "
            if not letter.isspace():
                comma = at if letter == "," else None
            in_string = letter == '"'
        at += 1
    return "".join(letters)
