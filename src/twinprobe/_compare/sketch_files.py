"""Sketches of checkpoints and arrays in a file of their own: two sites compare weights by exchanging kilobytes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twinprobe._measure.sketch import measured
from twinprobe._runs.run import Run, open_run
from twinprobe._runs.sketches import SUFFIX, SketchFile
from twinprobe._runs.tensors.containers import tensors_in
from twinprobe._runs.tensors.elements import HostTensor, damage_of
from twinprobe._runs.whole_files import write_whole
from twinprobe.errors import BadInput, DamagedTensor, NothingToCompare

KNOWN = (".safetensors", ".npz", ".npy", ".pt", ".pth")


def write_sketches(files: Iterable[Path], output: Path) -> int:
    """Write the sketches of all tensors of these files, which are read one after the other; returns how many."""
    leaves: dict[str, Any] = {}
    came_from: dict[str, Path] = {}

    def write(place: Path) -> None:
        with place.open("wb") as stream:
            sketches = SketchFile(stream)
            for file in files:
                for name, tensor in _tensors(file):
                    if name in leaves:
                        raise BadInput(f"{came_from[name]} holds a tensor {name!r}, too", where=file)
                    values, row = measured(tensor) if tensor.data.size else ((), None)
                    leaf = {"type": "Tensor", "dtype": tensor.dtype, "shape": list(tensor.shape)}
                    leaves[name] = leaf | dict(zip(("Max", "Min", "Mean", "Norm"), values, strict=False))
                    came_from[name] = file
                    sketches.add([(len(leaves), row)])
            if not leaves:
                raise NothingToCompare("hold no tensors", where=", ".join(map(str, files)))
            head = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
            sketches.finish(json.dumps({**head, "data": leaves}).encode())

    write_whole(output, write)
    return len(leaves)


def sketched(path: Path) -> Run:
    """A file of tensors as a run of sketches."""
    with TemporaryDirectory(prefix="twinprobe-") as folder:
        place = Path(folder, f"tensors{SUFFIX}")
        write_sketches([path], place)
        run = open_run(place)
        assert run.sketches is not None  # read now: the file is gone when they are needed
    run.notes = [note.replace(str(place), str(path)) for note in run.notes]
    run.path = path.with_suffix(SUFFIX)
    return run


def _tensors(path: Path) -> Iterator[tuple[str, HostTensor]]:
    """The tensors of a file by their names; a file of a single one gives its own."""
    if path.suffix.lower() not in KNOWN:
        raise BadInput("is not a file of tensors", where=path, hint=f"known are {', '.join(KNOWN)}")
    try:
        for name, stored in tensors_in(path).items():
            yield name or path.stem, stored.read()
    except (DamagedTensor, OSError, MemoryError) as error:
        damage = error if isinstance(error, DamagedTensor) and error.where else damage_of(path, error)
        raise BadInput(damage.what, where=damage.where, hint=damage.hint) from None
