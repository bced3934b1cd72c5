"""Is a clean pair clean, and does a bug do anything? Runs both sides without recording, and compares what they end with.

    python bench judge --check [--only GLOB] ...

For whoever writes cases: the norm of the difference of all gradients over their norm, and the loss's relative
difference, in machine epsilons of the coarser side. A clean pair or an artefact should stay below some tens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import torch

from judge import models
from judge.cases import Case

LIMIT = 64.0
EPSILON = {"float32": torch.finfo(torch.float32).eps, "bf16": torch.finfo(torch.bfloat16).eps}


def check(cases: Iterable[Case], dtypes: tuple[str, ...]) -> None:
    """Print a line for each case of plain torch that runs in this process."""
    torch.set_num_threads(1)
    print("| case | dtype | loss | gradients (eps) | |")
    print("| --- | --- | ---: | ---: | --- |")
    for case in cases:
        if case.framework != "torch" or case.python:
            continue
        for dtype in (one for one in case.dtypes if one in dtypes):
            loss, gradients = difference(case, dtype)
            bad = gradients == 0 and loss == 0 if case.sort == "bugs" else not max(loss, gradients) < LIMIT
            remark = {True: "NOTHING CHANGES" if case.sort == "bugs" else "NOT CLEAN", False: ""}[bad]
            print(f"| {case.name} | {dtype} | {loss:.3g} | {gradients:.3g} | {remark} |", flush=True)


def difference(case: Case, dtype: str) -> tuple[float, float]:
    """Of the loss and of all gradients, in epsilons."""
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
        coarse = program.dtype != "float32" or next(program.model.parameters()).dtype == torch.bfloat16
        sides.append((loss, found, EPSILON["bf16" if coarse else "float32"]))
    (golden, one, coarse), (target, two, other) = sides
    epsilon = max(coarse, other)
    shared = one.keys() & two.keys()
    apart = sum(float((one[name] - two[name]).square().sum()) for name in shared) ** 0.5
    whole = sum(float(one[name].square().sum()) for name in shared) ** 0.5
    return abs(target - golden) / abs(golden) / epsilon, apart / (whole or 1.0) / epsilon
