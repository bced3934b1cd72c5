"""Pages that load nothing and run only their own script, whatever text gets into them."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

_SLOT = re.compile(r"\{\{(\w+)\}\}")


def asset(name: str) -> str:
    """The text of a file that comes with the package."""
    return (resources.files("twinprobe.report") / "html_assets" / name).read_text(encoding="utf-8")


def fill(path: Path, page: str, *, title: str, style: str, script: str, data: Any) -> None:
    """Write a page to exactly this path. ``title`` must be safe to stand in HTML; ``data`` may hold any text."""
    # "<" inside the data could end its element; as JSON it may be written in another way.
    encoded = msgspec.json.encode(data).replace(b"<", b"\\u003c")
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


def policy(style: str, script: str) -> str:
    """Allow exactly the page's own style and script."""
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
