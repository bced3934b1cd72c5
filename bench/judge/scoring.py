"""Asks `twinprobe compare` about a pair of runs, and scores what it says against what is true.

Only the command and its JSON are used. A call is located by construct.json of the dumps: ``module path:API:direction``.
"""

from __future__ import annotations

import contextlib
import fnmatch
import io
import json
import os
import re
import tempfile
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from judge.cases import KINDS, Case

REPLAY = "TWINPROBE_BENCH_REPLAY"  # tells the workers that suspects are to be replayed
MODULE = re.compile(
    r"(?:Module|Cell)\.(?:(?P<path>.+)\.)?(?P<kind>\w+)\.(?P<way>forward|backward|parameters_grad)(\.\d+)?"
)
CALL = re.compile(r"\w+\.(?P<api>.+)\.\d+\.(?P<way>forward|backward)")
# The judge's own words for a kind of difference, where they are not those of KINDS.
WORDS = {
    "bias": "offset", "batch": "input", "buffer": "parameter", "weight": "parameter", "scalar": "argument",
    "swapped": "parameter", "twice": "extra", "doubled": "extra", "clamp": "saturation", "overflow": "saturation",
    "rounded": "dtype", "cast": "dtype", "precision": "dtype", "transposed": "transposition", "shifted": "shift",
    "permuted": "permutation", "mask": "input", "warm up": "warm-up", "uninitialized": "uninitialised",
    "optimizer": "update", "optimiser": "update", "inf": "nan", "rows": "part", "heads": "part", "experts": "part",
}  # fmt: skip


@dataclass
class Outcome:
    """What was said about one pair, and whether it is true."""

    case: str
    sort: str
    source: str
    framework: str
    dtype: str
    level: str
    task: str
    tool: str = "twinprobe"
    failed: str = ""  # no answer: what went wrong
    effect: bool = True  # the change changed loss, gradients, parameters or buffers
    claims: list[str] = field(default_factory=list)  # where a divergence was said to begin
    ops: list[str] = field(default_factory=list)  # the same by the dump's own names
    sentence: str = ""
    kinds: list[str] = field(default_factory=list)  # the kinds of difference that were stated
    right_call: bool = False
    right_module: bool = False
    false_claim: bool = False
    kind_right: bool | None = None  # None: no kind was stated
    error_rows: int = 0
    rows: int = 0


def twinprobe(*words: str) -> dict[str, Any]:
    """What the command prints as JSON: the only place where TwinProbe is called."""
    from twinprobe._cli import main

    said, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        code = main([*words, "--json"])
    if not said.getvalue().strip():
        raise RuntimeError(f"exit code {code}: {errors.getvalue().strip()[-500:]}")
    return dict(json.loads(said.getvalue()))


def judge_pair(case: Case, dtype: str, level: str, task: str, target: Path, golden: Path) -> Outcome:
    """Compare, locate, score."""
    outcome = Outcome(case.name, case.sort, case.source, case.framework, dtype, level, task)
    metas = [json.loads((side / "meta.json").read_text()) for side in (target, golden)]
    errors = [meta["error"] for meta in metas if "error" in meta]
    if errors:
        outcome.failed = f"not recorded: {errors[0].strip().splitlines()[-1]}"
        return outcome
    outcome.effect = metas[0]["ends"]["digest"] != metas[1]["ends"]["digest"]
    try:
        with tempfile.TemporaryDirectory() as folder:
            if case.framework == "ranks":
                _ask_ranks(outcome, target, golden, folder)
            else:
                _ask(outcome, target, golden, folder)
    except Exception:
        outcome.failed = traceback.format_exc(limit=-2).strip()[-600:]
        return outcome
    score(outcome, case)
    return outcome


def _ask(outcome: Outcome, target: Path, golden: Path, folder: str) -> None:
    sides = [dump_of(side) for side in (target, golden)]
    words = ["--replay"] if outcome.task == "tensor" and os.environ.get(REPLAY) else []
    said = twinprobe("compare", "-tp", str(sides[0]), "-gp", str(sides[1]), "-o", folder, "--format", "csv", *words)
    outcome.rows, outcome.error_rows = said["rows"], said["verdicts"].get("error", 0)
    first = said.get("first")
    if first:
        outcome.ops = [str(first["op"])]
        # Numbers are those of the run that makes the call.
        outcome.claims = [locate(outcome.ops[0], *(reversed(sides) if first.get("begins") == "missing" else sides))]
        outcome.sentence = str(first.get("sentence", ""))
        outcome.kinds = stated_kinds(first)


def _ask_ranks(outcome: Outcome, target: Path, golden: Path, folder: str) -> None:
    steps = [side / "run" / "step0" for side in (target, golden)]
    said = twinprobe("compare", "-tp", str(steps[0]), "-gp", str(steps[1]), "-o", folder, "-da")
    outcome.rows = sum(rank["rows"] for rank in said["ranks"])
    outcome.error_rows = sum(rank["verdicts"].get("error", 0) for rank in said["ranks"])
    outcome.sentence = "; ".join(said.get("findings", []))
    read_claims(outcome, Path(folder), steps)
    firsts = [rank["first"] for rank in said["ranks"] if rank.get("first")]
    outcome.kinds = list(dict.fromkeys(kind for first in firsts for kind in stated_kinds(first)))


def read_claims(outcome: Outcome, folder: Path, steps: list[Path]) -> None:
    """Where the differences begin by diff_analyze_*.json; with the rank, where there are several."""
    for path in folder.glob("diff_analyze_*.json"):
        for rank, calls in json.loads(path.read_text()).items():
            name = rank.replace("_", "")
            sides = [step / name / "dump.json" for step in steps]
            prefix = f"{name}/" if outcome.framework == "ranks" else ""
            outcome.ops += [f"{prefix}{call['op_name']}" for call in calls]
            outcome.claims += [f"{prefix}{locate(call['op_name'], *sides)}" for call in calls]


def dump_of(side: Path) -> Path:
    """The one dump.json of a recording."""
    return next((side / "run" / "step0").glob("*/dump.json"))


def locate(op: str, *dumps: Path) -> str:
    """``module path:API:direction`` of a call's name; calls outside modules have an empty path."""
    if op.startswith("Optimizer."):  # what optimizer.json says
        return f"optimizer:{op.split('.')[-3]}:forward"
    module = MODULE.fullmatch(op)
    if module is not None:
        way = module["way"]
        kind = way if way == "parameters_grad" else module["kind"]
        return f"{module['path'] or ''}:{kind}:{'forward' if way == 'forward' else 'backward'}"
    call = CALL.fullmatch(op)
    if call is None:
        return f"?:{op}:forward"
    for dump in dumps:
        tree = json.loads(dump.with_name("construct.json").read_text())
        if op in tree:
            parent = tree[op] or ""
            parent = parent[0] if isinstance(parent, list) else parent
            inside = MODULE.fullmatch(parent)
            return f"{(inside['path'] or '') if inside else parent}:{call['api']}:{call['way']}"
    return f"?:{call['api']}:{call['way']}"


def stated_kinds(first: dict[str, Any]) -> list[str]:
    """The kinds of difference that a first divergence states, in the words of KINDS."""
    stated = first.get("kinds") or first.get("kind") or first.get("cause") or []
    found = []
    for one in stated if isinstance(stated, list) else [stated]:
        word = str(one.get("name", one.get("kind", "")) if isinstance(one, dict) else one)
        word = word.lower().replace("_", " ").strip()
        parts = [word.replace(" ", "-"), *re.split(r"[ -]", word)]
        known = [WORDS.get(part, part) for part in (word, *parts)]
        found.append(next((part for part in known if part in KINDS), word))
    return list(dict.fromkeys(found))


def score(outcome: Outcome, case: Case) -> None:
    """Fill in what is right and what is false."""
    if case.sort != "bugs":
        excused = bool(case.notes) and bool(outcome.kinds) and set(outcome.kinds) <= case.notes
        outcome.false_claim = bool(outcome.claims) and not excused
        return
    places = [one.rsplit(":", 1) for one in outcome.claims]
    ways = {"either": ("forward", "backward")}.get(case.direction, (case.direction,))
    rightly = [way in ways and _matches(place, case.calls) for place, way in places]
    inside = [way in ways and _matches(place.split(":")[0], case.modules) for place, way in places]
    outcome.right_call = bool(rightly) and all(rightly)
    outcome.right_module = bool(inside) and all(one or two for one, two in zip(inside, rightly, strict=True))
    outcome.false_claim = bool(outcome.claims) and not (outcome.right_call or outcome.right_module)
    if outcome.kinds and outcome.claims:
        outcome.kind_right = outcome.kinds[0] in case.kinds


def _matches(place: str, patterns: tuple[str, ...]) -> bool:
    # Brackets would be character sets; none of our paths has any.
    return any(fnmatch.fnmatchcase(place, pattern) for pattern in patterns)


def as_dict(outcome: Outcome) -> dict[str, Any]:
    """For the json file."""
    return asdict(outcome)
