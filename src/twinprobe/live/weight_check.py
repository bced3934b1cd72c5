"""Parameters of two live models after an optimizer step."""

from __future__ import annotations

from typing import Any

from twinprobe.live.findings import WEIGHT_PHASE, Finding
from twinprobe.live.live_run import Values
from twinprobe.live.matching import Matches
from twinprobe.live.running import Model
from twinprobe.measure.tolerance import Tolerance, compare, transposed
from twinprobe.runs.names import parse_op
from twinprobe.runs.table import PARAMETER


def compare_parameters(
    raw: Model, base: Model, tested: Values, reference: Values, matches: Matches, tolerance: Tolerance, step: int
) -> list[Finding]:
    """Measure the parameters that belong together as they are now."""
    found, seen = [], set()
    sides = (raw, tested), (base, reference)
    columns = [run.columns for _, run in sides]
    for row, other_row, rule in matches.rows:
        rows = row, other_row
        if columns[0]["role"][rows[0]] != PARAMETER or columns[1]["role"][rows[1]] != PARAMETER:
            continue
        places = [_place(run, columns[at], rows[at]) for at, (_, run) in enumerate(sides)]
        if places[0] in seen:
            continue
        seen.add(places[0])
        held = [_held(model, *place) for (model, _), place in zip(sides, places, strict=True)]
        if held[0] is None or held[1] is None:
            continue
        (one, turned), (other, other_turned) = held
        gap = compare(transposed(one) if turned != other_turned else one, other, tolerance)
        names = [f"{run.ops[columns[at]['op'][rows[at]]]}" for at, (_, run) in enumerate(sides)]
        found.append(
            Finding(
                step,
                WEIGHT_PHASE,
                names[0],
                names[1],
                "parameter after the step",
                places[0][1],
                gap,
                True,
                str(list(one.shape)),
                str(list(other.shape)),
                one.dtype,
                rule,
                rows[0],
            )
        )
    return found


def _place(run: Values, columns: Any, row: int) -> tuple[str, str]:
    op = parse_op(run.ops[columns["op"][row]])
    return op.body, columns["name"][row].removeprefix(f"{op.text}.parameters.")


def _held(model: Model, path: str, name: str) -> Any:
    layer = model.paths.layer.get(path)
    parameter = model.adapter.parameters(layer).get(name) if layer is not None else None
    if parameter is None:
        return None
    return model.adapter.to_host(parameter), model.adapter.is_transposed(layer, name)
