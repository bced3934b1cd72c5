"""The older tool on the same pairs: `msprobe compare -da`, in an interpreter of its own, all pairs in one process.

It wants folders named rank0 and the tensors' folder as dump.json names it, so every pair is handed over as hard links
with dump.json written anew. Only where a divergence is said to begin is taken from it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from judge import scoring
from judge.cases import Case

RequestArguments = tuple[str, str, str, str, str, str]

# Runs under msprobe's interpreter: one line of answers for each line of questions.
DRIVER = """
import contextlib, io, json, sys
from msprobe.msprobe import main
for line in sys.stdin:
    target, golden, out = json.loads(line)
    sys.argv = ["msprobe", "compare", "-tp", target, "-gp", golden, "-o", out, "-da"]
    error = ""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            main()
        except SystemExit as left:
            error = "" if left.code in (None, 0) else f"exit code {left.code}"
        except Exception as raised:
            error = repr(raised)
    print("ANSWER " + json.dumps(error), flush=True)
"""


def judge_all(questions: list[RequestArguments], known: dict[str, Case], python: Path) -> list[scoring.Outcome]:
    """Ask about every pair of one PyTorch process; two ranks too."""
    asked = [one for one in questions if known[one[0]].framework in ("torch", "ranks")]
    print(f"asking msprobe about {len(asked)} pairs ...", file=sys.stderr, flush=True)
    found = []
    with tempfile.TemporaryDirectory(dir=Path(asked[0][4]).parents[1]) as folder:
        process = subprocess.Popen(
            [str(python), "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, env={**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        for number, question in enumerate(asked):
            case = known[question[0]]
            place = Path(folder) / str(number)
            outcome = scoring.Outcome(case.name, case.sort, case.source, case.framework, *question[1:4], tool="msprobe")
            found.append(outcome)
            try:
                sides = [_hand_over(Path(side), place / name) for side, name in zip(question[4:], "tg", strict=True)]
            except (OSError, StopIteration) as error:
                outcome.failed = f"not recorded: {error}"
                continue
            (place / "out").mkdir()
            process.stdin.write(json.dumps([*map(str, sides), str(place / "out")]) + "\n")
            process.stdin.flush()
            outcome.failed = _answer(process)
            if not outcome.failed:
                scoring.read_claims(outcome, place / "out", sides)
                scoring.score(outcome, case)
            shutil.rmtree(place)
        process.stdin.close()
        process.wait()
    return found


def _answer(process: subprocess.Popen[str]) -> str:
    for line in process.stdout or ():
        if line.startswith("ANSWER "):
            return str(json.loads(line[7:]))
    return "the tool ended"


def _hand_over(side: Path, place: Path) -> Path:
    """A step folder with rank0 (and rank1) in it."""
    step = side / "run" / "step0"
    for rank in sorted(step.iterdir()):
        name = rank.name if rank.name.startswith("rank") else "rank0"
        shutil.copytree(rank, place / "step0" / name, copy_function=os.link)
        dump = place / "step0" / name / "dump.json"
        content = json.loads(dump.read_text())
        if content.get("dump_data_dir"):
            content["dump_data_dir"] = str(dump.with_name("dump_tensor_data"))
        dump.unlink()
        dump.write_text(json.dumps(content))
    return place / "step0"
