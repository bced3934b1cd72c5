"""Pages that load nothing and run only their own script, whatever text gets into them."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

# U+200B to U+200F, U+2028 to U+202E, U+2066 to U+2069, U+061C, U+FEFF and U+007F to U+009F as UTF-8
_MARKS = re.compile(rb"\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xd8\x9c|\xef\xbb\xbf|\x7f|\xc2[\x80-\x9f]")
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return (resources.files("twinprobe.report") / "html_assets" / name).read_text(encoding="utf-8")


def fill(path: Path, page: str, *, title: str, style: str, script: str, data: Any) -> None:
    """Write a page to exactly this path. ``title`` must be safe to stand in HTML; ``data`` may hold any text."""
    # "<" inside the data could end its element, and marks that turn the reading direction mislead whoever reads the
    # file itself; as JSON they may be written in another way. The page spells them out where it shows them.
    encoded = _MARKS.sub(_escaped, msgspec.json.encode(data).replace(b"<", b"\\u003c"))
    slots = {
        "policy": policy(style, script).encode(),
        "title": title.encode(),
        "style": style.encode(),
        "script": script.encode(),
        "data": encoded,
    }
    with path.open("wb") as file:
        for at, piece in enumerate(_SLOT.split(page)):
            file.write(slots[piece] if at % 2 else piece.encode())


def _escaped(mark: re.Match[bytes]) -> bytes:
    return b"\\u%04x" % ord(mark[0].decode())


def policy(style: str, script: str) -> str:
    """Allow exactly the page's own style and script."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
