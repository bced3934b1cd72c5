"""A recording in the place of a model, made elsewhere, perhaps by a framework that cannot share this process: its runs,
and the inputs and weights that a live model takes from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from twinprobe._align.auto.aligner import align_sides
from twinprobe._align.calls import RunCalls
from twinprobe._align.rows import pair_parameters
from twinprobe._live.live_run import LiveRun
from twinprobe._live.measuring import parameter_of
from twinprobe._live.pairing.layer_map import LayerMap
from twinprobe._live.pairing.layers import LayerTree, structure
from twinprobe._live.running import Model
from twinprobe._measure.tolerance import transposed
from twinprobe._runs.dtypes import widened
from twinprobe._runs.names import FORWARD, parse_op
from twinprobe._runs.run import RUN_FILES, run_folders
from twinprobe._runs.table import INPUT, PARAMETER, TENSOR
from twinprobe.errors import BadInput


@dataclass(frozen=True)
class RecordedRun:
    """One run in a folder of several: its name (mode, step and rank), its step, and where it is."""

    label: str
    step: int
    path: Path


def recorded_runs(path: Path) -> list[RecordedRun]:
    """All runs under a folder; a folder with a dump.json is one run."""
    if path.is_file() or any((path / name).is_file() for name in RUN_FILES):
        return [RecordedRun("step 0", 0, path)]
    if not path.exists():
        raise BadInput("does not exist", where=path, hint="give a model, or the folder of a recording")
    folders = run_folders(path)
    runs_of = Counter((folder.key.graph_mode, folder.key.step) for folder in folders)
    runs = []
    for folder in folders:
        mode, step = folder.key.graph_mode, max(folder.key.step, 0)
        label = f"{mode} step {step}".strip()
        if runs_of[mode, folder.key.step] > 1 and not folder.by_process:
            label += f" rank {folder.key.rank}"
        runs += [RecordedRun(label, step, file) for file in folder.files()[:1]]
    return runs


def inputs_of(reference: LiveRun, raw: Model) -> Any:
    """What the recorded model was called with: its own inputs if they are there, else those of its first module."""
    numbers = {name: number for number, name in enumerate(reference.ops)}
    calls = [parse_op(name) for name in (reference.parents or numbers) if name in numbers]
    began = [call for call in calls if call.is_module and call.direction == FORWARD]
    chosen = numbers[next((call for call in began if not call.body), began[0]).text] if began else None
    columns = zip(*(reference.columns[name] for name in ("op", "role", "kind", "name")), strict=True)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for row, (op, role, kind, name) in enumerate(columns):
        host = reference.tensor(row) if (op, role, kind) == (chosen, INPUT, TENSOR) else None
        if host is not None:
            key = name.rpartition(".")[2]
            made = raw.adapter.tensor(host, raw.model)
            if key.isdecimal():
                args.append(made)
            else:
                kwargs[key] = made
    if not args and not kwargs:
        raise BadInput("no inputs are given and the recording holds none", where=reference.path, hint="give inputs")
    return (tuple(args), kwargs)


def load_weights(raw: Model, reference: LiveRun, layer_map: LayerMap, notes: list[str]) -> None:
    """The recorded parameters, to the live model, where layers and shapes leave no doubt."""
    recorded: dict[str, dict[str, int]] = {}  # path of a layer -> name of a parameter -> its row
    for row, (role, kind) in enumerate(zip(reference.columns["role"], reference.columns["kind"], strict=True)):
        if role == PARAMETER and kind == TENSOR:
            call, name = parameter_of(reference, row)
            recorded.setdefault(call.body, {}).setdefault(name, row)
    if not recorded:
        notes.append("the recording holds no parameters: the model keeps its own")
        return
    tree = LayerTree.of(raw.model, layer_map)
    partners = _partners(tree, reference, recorded)
    missing = []
    for path in tree.holding:
        weights, rows = tree.weights[path], recorded.get(partners.get(path, path), {})
        shapes = {name: reference.columns["shape"][row] for name, row in rows.items()}
        turned = {
            name: raw.adapter.is_transposed(tree.layers[path], name) != (rows.get(name) in reference.turned)
            for name in weights
        }
        pairs = pair_parameters(
            [
                (name, str(list(tensor.shape)[::-1] if turned[name] else list(tensor.shape)))
                for name, tensor in weights.items()
            ],
            list(shapes.items()),
        )
        for name, parameter in weights.items():
            recorded_row = rows.get(pairs[name][0] if name in pairs else name)
            host = reference.tensor(recorded_row) if recorded_row is not None else None
            if host is None:
                missing.append(f"{path}.{name}" if path else name)
                continue
            host = transposed(host) if turned[name] else host
            if host.shape != tuple(int(size) for size in parameter.shape):
                raise BadInput(
                    f"{path}.{name} {list(parameter.shape)} cannot take the recorded {list(host.shape)}",
                    where=reference.path, hint="give auto_weights=False, or map the layers with a LayerMap",
                )  # fmt: skip
            array = np.array(host.data).reshape(host.shape)
            raw.adapter.write(parameter, widened(array) if host.dtype == "bfloat16" else array)
    if missing:
        notes.append(
            f"{len(missing)} parameters are not in the recording and keep their values: {', '.join(missing[:5])}"
        )


def _partners(tree: LayerTree, reference: LiveRun, recorded: Collection[str]) -> dict[str, str]:
    """Which recorded path each live layer belongs to, where their paths differ."""
    partners: dict[str, str] = {}
    if not set(tree.holding) <= set(recorded):
        for relation in align_sides(RunCalls(structure(tree)), RunCalls(reference)).relations:
            if relation.one_to_one:
                partners.setdefault(parse_op(relation.target[0]).body, parse_op(relation.golden[0]).body)
    return partners
