"""Pairs that the user named while recording: ``golden_tensor/metadata.json``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from twinprobe.errors import BadInput
from twinprobe.runs.llm.layout import TREE, is_round
from twinprobe.runs.whole_file import whole_file

METADATA, FOLDER = "metadata.json", "golden_tensor"
_FORM = '{"data_id": {"token_id": ["golden tensor", "my tensor"]}}'


@dataclass(frozen=True, slots=True)
class ManualPair:
    """One tensor saved by hand: its file under the folder of the metadata, and its counterpart as the user wrote it."""

    token: str
    data_id: str
    golden: str
    my: str


def find_manual(path: Path) -> Path | None:
    """The metadata file that a path means: itself, or the one in its folder; None where it is another kind of dump."""
    if path.name == METADATA:
        return path if path.is_file() else None
    if not path.is_dir() or (path / TREE).is_file():
        return None
    found = [file for file in (path / METADATA, path / FOLDER / METADATA) if file.is_file()]
    found = found or sorted(path.glob(f"*/{FOLDER}/{METADATA}"))
    if len(found) > 1:
        names = ", ".join(str(file.parent.relative_to(path)) for file in found[:4])
        raise BadInput(f"holds tensors of several processes: {names}", where=path, hint="name one of them")
    return found[0] if found else None


def read_manual(path: Path) -> list[ManualPair]:
    """The pairs in order of their tokens, within one in the order of saving."""
    try:
        document = msgspec.json.decode(whole_file(path))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise BadInput(f"is not valid JSON: {error}", where=path) from None
    if not isinstance(document, dict):
        raise BadInput("names no pairs of tensors", where=path, hint=f"expected {_FORM}")
    pairs = [pair for data_id, tokens in document.items() for pair in _of_one(path, data_id, tokens)]
    if not pairs:
        raise BadInput("names no pairs of tensors", where=path, hint=f"expected {_FORM}")
    return sorted(pairs, key=lambda pair: int(pair.token))


def _of_one(path: Path, data_id: str, tokens: Any) -> list[ManualPair]:
    pairs = []
    for token, files in tokens.items() if isinstance(tokens, dict) else [("", None)]:
        if not is_round(token) or not isinstance(files, list) or [type(file) for file in files] != [str, str]:
            raise BadInput("names no pair of tensors", where=f"{path}: {data_id}", hint=f"expected {_FORM}")
        # Where the tensors were saved says nothing after they moved; how they lie beside the metadata does not change.
        golden = files[0].replace("\\", "/").rpartition("/")[2]
        pairs.append(ManualPair(token, data_id, f"{token}/{golden}", files[1]))
    return pairs
