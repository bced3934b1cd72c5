"""Is a clean pair clean, and does a bug do anything? Runs both sides without recording and compares their ends.

    python bench judge --check [--only GLOB] ...

For whoever writes cases: relative differences of the loss, of all gradients together, of the worst gradient, and of
new parameters and buffers, in machine epsilons of the coarser side. A clean pair or an artefact should stay below some
tens (its worst gradient need not: some are zero in theory). A bug whose worst gradient is off by an epsilon or
two cannot be told from rounding: leave that dtype out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable

import torch

from judge import models
from judge.cases import Case

LIMIT = 64.0
EPSILON = {"float32": torch.finfo(torch.float32).eps, "bf16": torch.finfo(torch.bfloat16).eps}


def check(cases: Iterable[Case], dtypes: tuple[str, ...]) -> None:
    """Print a line for each case of plain torch that runs in this process."""
    torch.set_num_threads(1)
    print("| case | dtype | loss | gradients | worst gradient | state | |")
    print("| --- | --- | ---: | ---: | ---: | ---: | --- |")
    for case in cases:
        if case.framework != "torch" or case.python:
            continue
        for dtype in (one for one in case.dtypes if one in dtypes):
            found = difference(case, dtype)
            remark = ""
            if case.sort == "bugs" and not any(found):
                remark = "NOTHING CHANGES"
            if case.sort != "bugs" and not max(found[:2]) < LIMIT:
                remark = "NOT CLEAN"
            print(f"| {case.name} | {dtype} | {' | '.join(f'{one:.3g}' for one in found)} | {remark} |", flush=True)


def difference(case: Case, dtype: str) -> tuple[float, ...]:
    """Of the loss, all gradients, the worst gradient, and the state, in epsilons."""
    sides = []
    for change in (None, case.change):
        program = models.build(case.family, dtype, **case.options)
        for one in (case.base, change):
            program = (one(program) if one else None) or program
        torch.manual_seed(100)
        with contextlib.ExitStack() as stack:
            for one in program.around:
                stack.enter_context(one)
            loss = float(program.step())
        found = {name: one.grad.double() for name, one in program.model.named_parameters() if one.grad is not None}
        state = {name: one.double() for name, one in program.model.state_dict().items() if one.is_floating_point()}
        coarse = program.dtype != "float32" or next(program.model.parameters()).dtype == torch.bfloat16
        sides.append((loss, found, state, EPSILON["bf16" if coarse else "float32"]))
    (golden, *one, coarse), (target, *two, other) = sides
    parts = [
        [(tree[0][name], tree[1][name]) for name in tree[0].keys() & tree[1].keys()]
        for tree in zip(one, two, strict=True)
    ]
    gradients, state = ([(float((x - y).norm()), float(x.norm()), x.numel()) for x, y in part] for part in parts)
    whole = math.hypot(*(norm for _, norm, _ in gradients))
    count = sum(size for *_, size in gradients)
    # A gradient that is zero in theory is measured by a hundredth of what its size would have on average.
    worst = max(apart / max(norm, 0.01 * whole * (size / count) ** 0.5) for apart, norm, size in gradients)
    apart = math.hypot(*(apart for apart, _, _ in gradients))
    moved = math.hypot(*(apart for apart, _, _ in state)) / math.hypot(*(norm for _, norm, _ in state))
    return tuple(part / max(coarse, other) for part in (abs(target / golden - 1), apart / whole, worst, moved))
