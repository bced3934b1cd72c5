"""One reader on changed files, in a process of its own: fuzz_engine.py READER AMOUNT FOLDER SEED.

The amount is a number of inputs ("100"), the same on every machine, or of seconds ("30s"). With seconds and atheris
(where it can be had) the inputs that reach new lines are kept and changed further; otherwise changes of the seeds are
changed again. An input that ends in anything but our own errors, or that takes more memory than 64 MB
and three times its size, is written to FOLDER; numbers go to FOLDER/numbers.json. One that kills the process or keeps
it for too long is what FOLDER/work holds when it has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import json
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]
MEMORY = 64 << 20
SLOW = 20.0  # seconds of processor time for one input of some kilobytes: however busy the machine, that is a hang
_PAGE = resource.getpagesize()
_INSTRUMENTED = ["twinprobe", "zipfile", "yaml", "csv"]


def peak_bytes() -> int:
    """The most memory that this process has had so far; getrusage alone would count what it was started from."""
    with suppress(OSError, IndexError, ValueError):
        status = Path("/proc/self/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def current_bytes() -> int:
    """The memory that this process has now, where the system tells."""
    try:
        return int(Path("/proc/self/statm").read_bytes().split()[1]) * _PAGE
    except OSError:
        return peak_bytes()


class Trial:
    """One input after the other; remembers what went wrong, once for each place in the code."""

    def __init__(self, name: str, folder: Path, work: Path) -> None:
        from fuzz_readers import READERS

        self.reader = READERS[name]
        self.folder = folder
        self.path = work / self.reader.file
        self.counts: Counter[str] = Counter()
        self.findings: dict[str, str] = {}
        self.slowest = self.largest_growth = 0.0
        # Shows where it was, then ends the process.
        faulthandler.register(signal.SIGPROF, file=sys.__stderr__, chain=True)

    def one(self, data: bytes) -> None:
        """Give the reader one input."""
        from twinprobe.errors import TwinProbeError

        self.path.write_bytes(data)
        signal.setitimer(signal.ITIMER_PROF, SLOW)  # the input stays in its file
        before, highest, start = current_bytes(), peak_bytes(), time.monotonic()
        try:
            self.reader.read(self.path)
            self.counts["read"] += 1
        except TwinProbeError as error:
            str(error).encode()
            self.counts["refused"] += 1
        except Exception as error:
            self._found(_place(error), data, "".join(traceback.format_exception(error)))
        self._check_cost(data, before, highest, time.monotonic() - start)

    def _check_cost(self, data: bytes, before: int, highest: int, seconds: float) -> None:
        self.slowest = max(self.slowest, seconds)
        if peak_bytes() > highest:
            growth = peak_bytes() - before
            self.largest_growth = max(self.largest_growth, growth)
            if growth > MEMORY + 3 * len(data):
                self._found("memory", data, f"{growth >> 20} MB for {len(data)} bytes")

    def _found(self, what: str, data: bytes, text: str) -> None:
        self.counts["wrong"] += 1
        if what not in self.findings:
            self.findings[what] = text
            (self.folder / f"{len(self.findings)}-{self.path.name}").write_bytes(data)
            self.save()

    def save(self) -> None:
        """Write what is known so far."""
        numbers = {**self.counts, "findings": self.findings, "slowest": round(self.slowest, 3),
                   "growth_mb": round(self.largest_growth / (1 << 20), 1)}  # fmt: skip
        (self.folder / "numbers.json").write_text(json.dumps(numbers, indent=1))


def _place(error: Exception) -> str:
    """The kind of an error and the last line of the project that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "twinprobe" in frame.filename]
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} {where}"


def run(name: str, amount: str, folder: Path, seed: int) -> None:
    """Give one reader so many inputs, or as many as fit into so many seconds; may end the process."""
    work = folder / "work"
    work.mkdir(parents=True)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    if not amount.endswith("s"):
        trial = _warm(name, folder, work)
        _plain_loop(trial, Random(seed), lambda: sum(trial.counts.values()) >= int(amount))
        return
    seconds = float(amount.removesuffix("s"))
    try:
        import atheris
    except ImportError:
        trial = _warm(name, folder, work)
        end = time.monotonic() + seconds
        _plain_loop(trial, Random(seed), lambda: time.monotonic() > end)
    else:
        with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=_INSTRUMENTED):
            trial = _warm(name, folder, work)
        _guided_loop(trial, seed, time.monotonic() + seconds)


def _warm(name: str, folder: Path, work: Path) -> Trial:
    """Read the seeds twice, so that what is loaded once does not count as the cost of an input."""
    from twinprobe.errors import TwinProbeError

    trial = Trial(name, folder, work)
    for data in trial.reader.seeds() * 2:
        trial.path.write_bytes(data)
        with contextlib.suppress(TwinProbeError):  # some real files hold nothing that can be used
            trial.reader.read(trial.path)
    return trial


def _plain_loop(trial: Trial, chance: Random, is_over: Callable[[], bool]) -> None:
    pool = trial.reader.seeds()
    originals = len(pool)
    while not is_over():
        data = trial.reader.mutation(chance.choice(pool), chance)
        if len(data) < 1 << 20:
            trial.one(data)
            if chance.random() < 0.05:
                pool.append(data)
            if len(pool) > 500:
                del pool[originals : originals + 100]
    trial.save()


def _guided_loop(trial: Trial, seed: int, end: float) -> None:
    import atheris

    chance, originals = Random(seed), trial.reader.seeds()

    def one(data: bytes) -> None:
        if time.monotonic() > end:
            trial.save()
            os._exit(0)
        trial.one(data)

    def mutate(data: bytes, most: int, number: int) -> bytes:
        if number % 4 == 0:
            return bytes(atheris.Mutate(data, most))
        # What reached new lines is mostly damaged already: a sound file takes other ways.
        base = chance.choice(originals) if number % 4 == 1 else data
        return trial.reader.mutation(base, chance)[:most]

    corpus = trial.folder / "corpus"
    corpus.mkdir()
    for at, data in enumerate(originals):
        (corpus / str(at)).write_bytes(data)
    options = [f"-seed={seed % (1 << 31) or 1}", "-max_len=200000", "-rss_limit_mb=0", "-verbosity=0", "-len_control=0",
               f"-artifact_prefix={trial.folder}/"]  # fmt: skip
    atheris.Setup([sys.argv[0], *options, str(corpus)], one, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
