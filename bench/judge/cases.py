"""What a case is, and the list of all cases.

A case changes the program of one family (models.py) on the target's side; the golden side is the program as it stands,
and is recorded once for all cases of its family. To add cases, write functions with one of the three decorators into a
file cases_*.py of this folder; it is found by its name:

    from judge.cases import bug, clean, artefact

    @bug("llama", "model.layers.2.self_attn:scaled_dot_product_attention", kinds="argument factor")
    def attention_scale_is_too_large(program): program.model.model.layers[2].self_attn.scaling *= 1.3

    @clean("llama")
    def written_with_matmul(program): ...

    @artefact("bert", notes="padding")
    def other_tokens_under_the_mask(program): ...

The function gets the built Program, changes it in place, or returns another one. Its docstring says what happened.

Truth of a bug. ``calls`` are patterns (fnmatch) of ``module path:API`` or ``module path:Class``, forward unless
``direction`` says otherwise; an API that runs outside every module has an empty path, the optimiser's have the path
``optimizer``. A call inside the innermost module and the row of that module itself are the same place where the module
holds nothing else. ``modules`` are patterns of the innermost module that holds the call, for level L0 (default: the
paths in ``calls``). ``kinds`` are the names from KINDS that would be right to state.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SORTS = ("bugs", "clean", "artefacts")
ALL_DTYPES = ("float32", "bf16", "autocast")
LEVELS, TASKS = ("mix", "L0"), ("statistics", "tensor")
KINDS = {
    "argument": "a scalar, flag or string argument differs",
    "parameter": "a parameter or buffer differs",
    "input": "a tensor that comes from outside differs: another batch, mask or state",
    "function": "another function is called in its place",
    "extra": "a call that the golden run does not make",
    "missing": "a call that only the golden run makes",
    "order": "the same calls in another order",
    "random": "a random call with another state or another mask",
    "nan": "NaN or infinity begins here",
    "uninitialised": "memory that nobody has written",
    "warm-up": "a pass more than the golden run has",
    "dtype": "rounded to, or computed in, a coarser type",
    "factor": "golden times a constant",
    "offset": "golden plus something constant along an axis",
    "sign": "golden with the other sign",
    "permutation": "golden's values in another order: heads, rows, channels, gates",
    "shift": "golden moved along an axis",
    "transposition": "golden with two axes exchanged",
    "part": "only some rows, columns, heads, tokens or experts differ",
    "saturation": "golden, cut off at a bound",
    "padding": "only padded places differ",
    "shard": "another rank's part, or a sum without some ranks",
    "update": "the optimiser's update differs while its gradients agree",
    "noise": "no structure",
}


@dataclass(frozen=True)
class Case:
    """One pair of runs, and what is true of it."""

    name: str
    sort: str
    family: str
    change: Callable[..., Any]
    base: Callable[..., Any] | None = None  # changes both sides first
    calls: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    direction: str = "forward"  # also: backward, either
    kinds: frozenset[str] = frozenset()
    notes: frozenset[str] = frozenset()  # kinds that an artefact's first divergence may state without being false
    dtypes: tuple[str, ...] = ALL_DTYPES
    levels: tuple[str, ...] = LEVELS
    tasks: tuple[str, ...] = TASKS
    options: dict[str, Any] = field(default_factory=dict)
    framework: str = "torch"  # also: ranks (two processes), mindspore, paddle
    python: str = ""  # the option of `python bench judge` that names the target's interpreter, if it is another one
    slow: bool = False
    source: str = ""  # the file it stands in


REGISTRY: dict[str, Case] = {}


def bug(family: str, *calls: str, kinds: str, modules: str | Iterable[str] = (), **more: Any) -> Callable[..., Any]:
    """A planted bug: the target is wrong in one place."""
    modules = (modules,) if isinstance(modules, str) else tuple(modules)
    modules = modules or tuple(dict.fromkeys(one.split(":")[0] for one in calls))
    unknown = set(kinds.split()) - set(KINDS)
    if unknown:
        raise ValueError(f"{', '.join(unknown)} is no kind; cases.py has the list")
    return _register("bugs", family, calls=calls, modules=modules, kinds=frozenset(kinds.split()), **more)


def clean(family: str, **more: Any) -> Callable[..., Any]:
    """Two ways to compute the same: nothing but rounding differs."""
    return _register("clean", family, **more)


def artefact(family: str, notes: str = "", **more: Any) -> Callable[..., Any]:
    """A difference that harms nobody: it may be noted, never claimed."""
    return _register("artefacts", family, notes=frozenset(notes.split()), **more)


def _register(sort: str, family: str, **more: Any) -> Callable[..., Any]:
    for key in ("dtypes", "levels", "tasks"):
        if isinstance(more.get(key), str):
            more[key] = tuple(more[key].split())

    def decorate(change: Callable[..., Any]) -> Callable[..., Any]:
        name = f"{family}.{change.__name__}"
        if name in REGISTRY:
            raise ValueError(f"there are two cases {name}")
        source = Path(change.__code__.co_filename).stem
        REGISTRY[name] = Case(name, sort, family, change, source=source, **more)
        return change

    return decorate


def load(framework: str = "") -> dict[str, Case]:
    """All cases, or those of one framework, without importing another framework."""
    for path in sorted(Path(__file__).parent.glob("cases_*.py")):
        wants_torch = path.stem != "cases_frameworks"
        if not framework or wants_torch == (framework in ("torch", "ranks")):
            importlib.import_module(f"judge.{path.stem}")
    return {name: case for name, case in REGISTRY.items() if framework in ("", case.framework)}
