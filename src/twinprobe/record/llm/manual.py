"""Tensors that the user saves by hand, each with the file of the engine's dump that it belongs to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from threading import Lock
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.record.llm.folders import write_json
from twinprobe.runs.whole_files import write_whole

_FOLDER, _METADATA = "golden_tensor", "metadata.json"
_NAME = re.compile(r"[\w.-]{1,200}")
_writing = Lock()


def dump_data(
    token_id: int, data_id: str | int, golden_data: Any, my_path: str | Path, output_path: str | Path = "./"
) -> Path:
    """Save a tensor under ``{output_path}/{PID}_{device}/golden_tensor/{token_id}/{data_id}_tensor.pth``.

    ``my_path`` names its counterpart in the engine's dump; ``metadata.json`` beside the tokens keeps the pairs of all
    tokens. The device is -1 on a CPU.
    """
    import torch

    if type(token_id) is not int or token_id < 0:
        raise BadInput(f"token_id is {token_id!r}", where="dump_data", hint="expected a whole number from 0 on")
    if not _NAME.fullmatch(str(data_id)) or str(data_id) in (".", ".."):
        raise BadInput(
            f"data_id is {data_id!r}", where="dump_data", hint="it becomes a file name: letters, digits, _.-"
        )
    if not isinstance(golden_data, torch.Tensor):
        raise BadInput(f"golden_data is a {type(golden_data).__name__}", where="dump_data", hint="expected a tensor")
    # Without a device's number: on a CPU.
    device = -1 if golden_data.device.type == "cpu" else golden_data.device.index or 0
    folder = Path(output_path).absolute() / f"{os.getpid()}_{device}" / _FOLDER
    target = folder / str(token_id) / f"{data_id}_tensor.pth"
    target.parent.mkdir(parents=True, exist_ok=True)
    # A copy of a view has no more than its own elements.
    tensor = golden_data.detach().clone()
    write_whole(target, lambda path: torch.save(tensor, path))
    with _writing:
        known = _known(folder / _METADATA)
        known.setdefault(str(data_id), {})[str(token_id)] = [str(target), str(my_path)]
        write_json(folder / _METADATA, known)
    return target


def _known(path: Path) -> dict[str, dict[str, list[str]]]:
    """The pairs so far; a file of this process's number from an earlier run that is no such table is begun anew."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {key: value for key, value in document.items() if isinstance(value, dict)}
