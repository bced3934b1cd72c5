"""How good the judge is: planted bugs, clean pairs and harmless artefacts, recorded and compared.

    python bench judge [--only GLOB] [--kinds bugs,clean,artefacts] [--dtype float32,bf16,autocast]
                       [--tasks statistics,tensor] [--levels mix,L0] [--keep DIR] [--slow] [--replay] [--with-msprobe]

Records pairs of runs of small models (and some 512 wide) with the public recorder, asks `twinprobe compare` about each,
and prints how often the planted call was named first, and how often something was claimed where nothing is wrong. What
was recorded is kept in a folder (--keep): after a change of the judge only the comparisons run again.

Needs torch and transformers. Cases of MindSpore and Paddle run where an interpreter is given that has the framework
(--mindspore PYTHON, --paddle PYTHON; default: those of .test-env), the pair of two versions of transformers where one
with another version is given (--other-transformers PYTHON).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from judge import cases, recording, scoring, table

ROOT = Path(__file__).resolve().parents[2]


def main(argv: list[str] | None = None) -> None:
    """Record, compare, print."""
    options = parse(argv)
    chosen = choose(options)
    if options.check:
        from judge.check import check

        check(chosen.values(), options.dtype)
        return
    pythons = {
        "mindspore": options.mindspore, "paddle": options.paddle, "other_transformers": options.other_transformers,
    }  # fmt: skip
    package = package_folder()
    options.keep.mkdir(parents=True, exist_ok=True)
    pairs, left_out = [], []
    for case in chosen.values():
        here = pythons.get(case.framework, sys.executable)
        there = pythons[case.python] if case.python else here
        if not (here and Path(here).exists() and there and Path(there).exists()):
            left_out.append(case.name)
            continue
        for dtype in (one for one in case.dtypes if one in options.dtype):
            for level in (one for one in case.levels if one in options.levels):
                for task in (one for one in case.tasks if one in options.tasks):
                    jobs = [
                        recording.job_of(case, side, dtype, level, task, python=str(python), root=options.keep)
                        for side, python in (("target", there), ("golden", here))
                    ]
                    pairs.append((case, dtype, level, task, *jobs))
    if left_out:
        print(f"without an interpreter, left out: {', '.join(left_out)}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as scratch:
        recording.record_all(
            (job for pair in pairs for job in pair[4:]), package=package, workers=options.workers, scratch=Path(scratch)
        )
    questions = [
        (case.name, dtype, level, task, one.folder, two.folder) for case, dtype, level, task, one, two in pairs
    ]
    print(f"comparing {len(questions)} pairs ...", file=sys.stderr, flush=True)
    os.environ["TWINPROBE_THREADS"] = "1"
    if options.replay:
        os.environ[scoring.REPLAY] = "1"
    if options.workers == 1:
        outcomes = [ask(question) for question in questions]
    else:
        with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), initializer=cases.load) as pool:
            outcomes = list(pool.map(ask, questions, chunksize=4))
    if options.with_msprobe:
        from judge import msprobe
        from rivals import rival

        python = rival("msprobe") / "bin/python" if options.with_msprobe == "install" else Path(options.with_msprobe)
        outcomes += msprobe.judge_all(questions, chosen, python)
    table.show(outcomes)
    if options.json:
        options.json.write_text(json.dumps([scoring.as_dict(one) for one in outcomes], indent=1))
        print(f"written to {options.json}", file=sys.stderr)


def ask(question: tuple[str, str, str, str, str, str]) -> scoring.Outcome:
    """Judge one pair, in a worker."""
    name, dtype, level, task, target, golden = question
    return scoring.judge_pair(cases.REGISTRY[name], dtype, level, task, Path(target), Path(golden))


def choose(options: argparse.Namespace) -> dict[str, cases.Case]:
    """The cases that are asked for."""
    return {
        name: case
        for name, case in cases.load().items()
        if case.sort in options.kinds
        and any(fnmatch.fnmatch(name, one) for one in options.only.split(","))
        and (options.slow or not case.slow)
        and fnmatch.fnmatch(case.source, options.source)
    }


def package_folder() -> Path:
    """The folder of the package that is measured."""
    import twinprobe

    return Path(twinprobe.__file__).parent


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python bench judge", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", metavar="GLOB", help="cases of these names, e.g. 'llama.*,unet.*'")
    parser.add_argument("--source", default="*", metavar="GLOB", help="cases of these files, e.g. cases_blind")
    for name, all_of_them in (
        ("kinds", cases.SORTS), ("dtype", cases.ALL_DTYPES), ("tasks", cases.TASKS), ("levels", cases.LEVELS),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=_listed(all_of_them), default=all_of_them, metavar=",".join(all_of_them))
    parser.add_argument("--keep", type=Path, default=ROOT / ".bench-env" / "judge", help="where recordings are kept")
    parser.add_argument("--json", type=Path, help="write every answer with its score to this file")
    parser.add_argument("--slow", action="store_true", help="also the pairs that compile")
    parser.add_argument(
        "--check", action="store_true", help="run the pairs without recording: are they what they claim?"
    )
    parser.add_argument("--replay", action="store_true", help="compare --replay, of the runs with tensors")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--with-msprobe", nargs="?", const="install", metavar="PYTHON",
        help="ask the older tool too: it is installed, unless an interpreter that has it is named",
    )  # fmt: skip
    for name in ("mindspore", "paddle"):
        default = ROOT / ".test-env" / name / "bin" / "python"
        parser.add_argument(f"--{name}", type=Path, default=default, metavar="PYTHON")
    parser.add_argument("--other-transformers", type=Path, metavar="PYTHON")
    return parser.parse_args(argv)


def _listed(allowed: tuple[str, ...]):
    def parse_list(text: str) -> tuple[str, ...]:
        found = tuple(text.split(","))
        for one in found:
            if one not in allowed:
                raise argparse.ArgumentTypeError(f"{one!r} is none of {', '.join(allowed)}")
        return found

    return parse_list
