"""Run a user's program unchanged, watched; if it fails, quote its own error."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twinprobe._find.child import BOOTSTRAP, PLAN
from twinprobe._runs.run import RUN_FILES
from twinprobe.errors import BadInput

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_RANK_PREFIX = re.compile(r"^\[(?:rank|default)\d+\]:\s?")
_PATIENCE = 10.0  # seconds that an interrupted program has to end by itself
_TAIL = 1 << 16  # bytes at the end of a program's output that are searched for its error


@dataclass(frozen=True)
class RunSource:
    """Target or golden: a program to run, or a recording of one."""

    name: str
    text: str
    words: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()
    recording: Path | None = None


def is_command(given: str | os.PathLike[str]) -> bool:
    """Whether this is a command line, and no path of a recording. Paths of other machines are recordings."""
    if not isinstance(given, str) or "://" in given:
        return False
    path = Path(given)
    return not path.exists() and path.name not in RUN_FILES and (" " in given or shutil.which(given) is not None)


def side(name: str, text: str) -> RunSource:
    """Parse one side of the command: a command line with variables before it, or the path of a recording."""
    if text and (Path(text).is_dir() or Path(text).name in RUN_FILES):
        return RunSource(name, text, recording=Path(text))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise BadInput(f"the {name} command cannot be read: {error}", where=text) from error
    variables = []
    while words and (match := _ASSIGNMENT.fullmatch(words[0])):
        variables.append((match[1], match[2]))
        words.pop(0)
    if not words:
        raise BadInput(f"the {name} command is empty", hint='twinprobe find "python a.py" "python b.py" -o out')
    if shutil.which(words[0]) is None:
        hint = "a recording is a folder" if len(words) == 1 else "shell syntax needs a shell: bash -c '...'"
        raise BadInput(f"{words[0]!r} is neither a program nor a recording", where=text, hint=hint)
    return RunSource(name, text, tuple(words), tuple(variables))


@dataclass(frozen=True)
class Task:
    """One run of a program: what is recorded, and where it may stop."""

    record: dict[str, Any]
    seed: int | None = None
    from_step: int = 0
    last_step: int | None = None
    updates: tuple[tuple[int, int], ...] = ()
    """How many optimizer steps each step of the program has, as an earlier run recorded it, and how often in a row."""
    swap: dict[str, Any] | None = None
    """Golden's values at one module: ``module``, ``values`` (a recording with tensors) and ``step``."""

    def mark(self, program: RunSource) -> str:
        """The same for two runs whose recordings are the same."""
        wanted = self.record, self.seed, self.from_step, self.last_step, self.swap, self.updates
        identity = repr((program.words, program.variables, *wanted))
        return hashlib.sha256(identity.encode("utf-8", "surrogateescape")).hexdigest()


def run_program(program: RunSource, folder: Path, task: Task, *, reuse: bool) -> list[dict[str, Any]]:
    """Run the program with its recording in ``folder``; what it prints goes to a log beside it.

    Returns the facts that its processes recorded about themselves. ``reuse`` takes an earlier, finished run of the same
    task. BadInput where the program fails or cannot be watched.
    """
    notes, log, done = (folder.with_name(f"{folder.name}{suffix}") for suffix in (".facts", ".log", ".done"))
    if reuse and done.is_file() and done.read_text(encoding="utf-8").strip() == task.mark(program):
        return [process for process in _facts(notes) if "error" not in process]
    for old in (folder, notes):
        shutil.rmtree(old, ignore_errors=True)  # what an interrupted run left
    done.unlink(missing_ok=True)
    notes.mkdir(parents=True)
    with TemporaryDirectory(prefix="twinprobe-find-") as path:
        place = Path(path)
        bootstrap = BOOTSTRAP.format(source=str(Path(__file__).resolve().parents[2]), plan=PLAN)
        (place / "sitecustomize.py").write_text(bootstrap, encoding="utf-8")
        record = task.record | {"dump_path": str(folder.resolve())}
        plan = {**vars(task), "record": record, "facts": str(notes.resolve())}
        (place / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        code = _wait(program, _variables(program, place, task.seed), log)
    facts = _facts(notes)
    stopped = bool(facts) and all(process.get("stopped") for process in facts)
    if code and not stopped:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        raise BadInput(f"the {program.name} program failed ({how}): {last_words(log)}", where=log)
    if not facts:
        raise _unwatched(program, notes, log)
    recorded = [process for process in facts if "error" not in process]
    if not recorded:
        raise BadInput(f"the {program.name} program ran, but could not be recorded: {facts[0]['error']}", where=log)
    done.write_text(task.mark(program) + "\n", encoding="utf-8")
    return recorded


def _variables(program: RunSource, place: Path, seed: int | None) -> dict[str, str]:
    variables = {**os.environ, **dict(program.variables), PLAN: str(place / "plan.json")}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, (str(place), variables.get("PYTHONPATH", ""))))
    if seed is not None:
        variables.setdefault("PYTHONHASHSEED", "0")  # the order of sets of texts
    return variables


def _wait(program: RunSource, variables: dict[str, str], log: Path) -> int:
    """Run to the end; Ctrl-C is passed on, so that the recording is written."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            program.words, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait()
        except BaseException:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_PATIENCE)
                    break
            raise


def _facts(notes: Path) -> list[dict[str, Any]]:
    facts = []
    for path in sorted(notes.glob("*.json")):
        with suppress(OSError, ValueError):
            facts.append({"process": path.stem, **json.loads(path.read_text(encoding="utf-8"))})
    return facts


def last_words(log: Path) -> str:
    """The error of a failed program's last traceback, otherwise its last line."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        text = file.read().decode("utf-8", "replace")
    lines = [(prefix[0] if (prefix := _RANK_PREFIX.match(line)) else "", _RANK_PREFIX.sub("", line.rstrip()))
             for line in text.splitlines()]  # fmt: skip
    errors: dict[str, str] = {}  # the last of each process; the process that failed first comes first
    for number, (process, line) in enumerate(lines):
        if line.endswith("Traceback (most recent call last):"):  # a progress bar may stand before it
            own = (text for source, text in lines[number + 1 :] if source == process)
            error = next((text for text in own if text and not text.startswith((" ", "\t"))), "")
            if error and "ChildFailedError" not in error:  # the launcher's own, which only says that a process failed
                errors[process] = error
    spoken = [line for _, line in lines if line.strip() and not line.startswith("twinprobe: ")]
    return next(iter(errors.values()), spoken[-1].strip() if spoken else "it printed nothing")


def _unwatched(program: RunSource, notes: Path, log: Path) -> BadInput:
    if (notes / "torch").exists():
        what, hint = "called no torch.nn.Module with parameters", "find records PyTorch models"
    elif (notes / "python").exists():
        what, hint = (
            "never imported torch",
            "find runs PyTorch programs only; record other programs, then compare the recordings",
        )
    else:
        what, hint = "could not be watched: it started no Python that reads PYTHONPATH", "python -E, -I and -S do not"
    return BadInput(f"the {program.name} program {what}", where=log, hint=hint)
