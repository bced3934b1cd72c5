"""All modules of the front end as one script, for the page that needs no server."""

from __future__ import annotations

import re
from pathlib import Path

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function|class|const|let) (\w+)", re.MULTILINE)


def bundle(folder: Path, entry: str) -> str:
    """The modules in dependency order, each in its own function; ``entry`` is run last.

    This understands the one way in which our modules import and export: by name, from "./file.js", at the line's start.
    """
    parts = [_wrapped(folder, name) for name in _in_order(folder, entry, [], ())]
    return '"use strict";\nconst modules = {};\n' + "".join(parts)


def _in_order(folder: Path, name: str, done: list[str], above: tuple[str, ...]) -> list[str]:
    if name in above:
        raise ValueError(f"modules import each other in a circle: {' -> '.join((*above, name))}")
    for match in _IMPORT.finditer(_source(folder, name)):
        if match[2] not in done:
            _in_order(folder, match[2], done, (*above, name))
    done.append(name)
    return done


def _wrapped(folder: Path, name: str) -> str:
    source = _source(folder, name)
    exported = [match[2] for match in _EXPORT.finditer(source)]
    body = _IMPORT.sub(lambda m: f'const {{{m[1].replace(" as ", ": ")}}} = modules["{m[2]}"];\n', source)
    body = _EXPORT.sub(r"\1 \2", body).replace("import.meta.url", "document.baseURI")
    return f'modules["{name}"] = (() => {{\n{body}\nreturn {{ {", ".join(exported)} }};\n}})();\n'


def _source(folder: Path, name: str) -> str:
    return (folder / name).read_text(encoding="utf-8")
