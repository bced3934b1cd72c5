"""The folders and files of the ait and msit layouts, written by the recorder's own engine and writer thread."""

from __future__ import annotations

import csv
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any

from twinprobe._record.config import RecordConfig
from twinprobe._record.engine import Engine, Framework, Step
from twinprobe._record.entries import Entry, Note, notes_of
from twinprobe._record.llm.config import AIT
from twinprobe._record.writer import UNSAFE, DumpFolder
from twinprobe._runs.whole_files import write_whole
from twinprobe.errors import BadInput

_STATISTICS = ("NodeName", "NodeType", "InputOutput", "Index", "DataType", "Shape", "Max", "Min", "Mean", "L2Norm")
_ANALYSIS = ("Node Name", "Node Type", "Tensor Path", "dtype", "shape", "max", "min", "variance", "mean")
_LONGEST_NAME = 200


def device_folder(dump_path: Path, layout: str, device: str) -> tuple[Path, Path]:
    """The top of the dump and the folder of this process.

    That is ``{PID}_npu0``, or ``msit_dump_{time}/torch_tensors/npu0_{PID}``. A second model of the same process gets
    ``-1`` behind the name.
    """
    pid = os.getpid()
    top = dump_path if layout == AIT else dump_path / f"msit_dump_{time.strftime('%Y%m%d_%H%M%S')}"
    name = f"{pid}_{device}" if layout == AIT else f"{device}_{pid}"
    parent = top if layout == AIT else top / "torch_tensors"
    parent.mkdir(mode=0o750, parents=True, exist_ok=True)
    folder, count = parent / name, 0
    while True:
        try:
            folder.mkdir(mode=0o750)
            return top, folder
        except FileExistsError:
            count += 1
            folder = parent / f"{name}-{count}"


class TokenFolder(DumpFolder):
    """One token: a folder per module, a file per tensor. Names come as ``MODULE/.input.0``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, {})
        self.tensor_folder = path

    def open(self) -> None:
        self.path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def add(self, name: str, text: str) -> None:
        del name, text  # the layout has no index
        self.entries += 1

    def reopen(self) -> None:
        self.open()

    def close(self, side_files: dict[str, Any]) -> None:
        del side_files

    def file_name(self, name: str, suffix: str) -> str:
        """``MODULE/input_0.pth``; a second tensor of this name takes the place of the first."""
        module, _, place = name.partition("/.")
        segment, _, rest = place.partition(".")
        stem = "output" if segment == "output" else "input"
        (self.path / _safe(module)).mkdir(mode=0o750, exist_ok=True)
        return f"{_safe(module)}/{_safe(f'{stem}_{rest}' if rest else stem).replace('.', '_')}{suffix}"


class TokenEngine(Engine):
    """The recorder's engine with a token in place of a training step, and csv files where statistics are asked for."""

    def __init__(
        self, config: RecordConfig, framework: Framework, folder: Path, *, statistics: bool, analysis: Path | None,
        types: Mapping[str, str],
    ) -> None:  # fmt: skip
        super().__init__(config, framework)
        self._folder = folder
        self._statistics = statistics
        self._analysis = analysis
        self._types = types

    def _open_step(self) -> None:
        if self.step is not None:
            return
        folder = TokenFolder(self._folder / str(self.step_number))
        self.problems.folder = self._folder
        self.step = Step(self.step_number, folder, ())
        self._open_folder(self.step)

    def later(self, job: Callable[[], None]) -> None:
        """Have something else written, in its turn."""
        self._worker.put(job)

    def _write(self, step: Step, batch: list[Entry]) -> None:
        for entry in batch:
            self._save_tensors(step, entry)
            assert isinstance(step.folder, DumpFolder)
            step.folder.add(entry.name, "")
            if self._statistics:
                self._add_statistics(step, entry)
            if self._analysis is not None:
                self._add_analysis(step, entry, self._analysis)

    def _add_statistics(self, step: Step, entry: Entry) -> None:
        module = entry.name.removesuffix("/")
        rows = []
        for note, name in notes_of(entry):
            values = note.row.values if note.row is not None else None
            if values is None:
                continue
            place = name.partition("/.")[2].split(".")
            side = "Output" if place[0] == "output" else "Input"
            index = next((part for part in reversed(place[1:]) if part.isdecimal()), "0")
            shape = str(list(note.shape))
            rows.append((module, self._types.get(module, ""), side, index, note.dtype, shape,
                         values.max, values.min, values.mean, values.norm))  # fmt: skip
        if rows:
            target = step.folder.path / _safe(module) / "statistics.csv"
            target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            step.folder.bytes_written += _append(target, _STATISTICS, rows)

    def _add_analysis(self, step: Step, entry: Entry, target: Path) -> None:
        module = entry.name.removesuffix("/")
        rows = [
            (module, self._types.get(module, ""), step.folder.path / note.file if note.file else "", note.dtype,
             str(list(note.shape)), note.row.values.max, note.row.values.min, _variance(note), note.row.values.mean)
            for note, _ in notes_of(entry)
            if note.row is not None and note.row.values is not None
        ]  # fmt: skip
        if rows:
            step.folder.bytes_written += _append(target, _ANALYSIS, rows)


def _variance(note: Note) -> float | None:
    values = note.row.values if note.row is not None else None
    if values is None or values.norm is None or values.mean is None:
        return None
    return max(values.norm**2 / prod(note.shape) - values.mean**2, 0.0)


def _append(path: Path, columns: tuple[str, ...], rows: list[tuple[Any, ...]]) -> int:
    """Add lines to a csv file; return how many bytes."""
    with path.open("a", encoding="utf-8", newline="") as file:
        start = file.tell()
        writer = csv.writer(file)
        if not start:
            writer.writerow(columns)
        writer.writerows(rows)
        return file.tell() - start


def write_json(path: Path, document: Any) -> None:
    """Write a JSON file, whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(json.dumps(document), encoding="utf-8"), sync=True)


def _safe(name: str) -> str:
    return name.translate(UNSAFE)[:_LONGEST_NAME]


# Tensors that the user saves by hand, each with the file of the engine's dump that it belongs to.

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
        raise BadInput(f"token_id is {token_id!r}", where="dump_data", hint="expected a whole number from 0 up")
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
        pairs = _known(folder / _METADATA)
        pairs.setdefault(str(data_id), {})[str(token_id)] = [str(target), str(my_path)]
        write_json(folder / _METADATA, pairs)
    return target


def _known(path: Path) -> dict[str, dict[str, list[str]]]:
    """The pairs so far; a file that an earlier process of this number left and that is no such table is replaced."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    return {key: value for key, value in document.items() if isinstance(value, dict)}
