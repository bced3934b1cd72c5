"""The same work without an engine: as many plain processes, each in a loop, nothing handed out, nothing noted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from scale_tools.watch import one_thread

_RANKS = """
import sys, time
from dataclasses import replace
from pathlib import Path
from twinprobe._compare.request import Request; from twinprobe._compare.job import plan, run_rank
folder, own, ranks = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
request = Request(folder / "t", folder / "g", own, ("dataset",), "20260102030405",
                  ranks=frozenset(int(rank) for rank in ranks.split(",")))
jobs = [replace(job, formats=(), dataset=own / "compare_dataset_20260102030405") for job in plan(request)[0]]
run_rank(jobs[0])
print("ready", flush=True)
sys.stdin.readline()
began, cpu = time.perf_counter(), time.process_time()
for job in jobs:
    run_rank(job)
print((time.perf_counter() - began) / len(jobs), (time.process_time() - cpu) / len(jobs))
"""

_PAIRS = """
import sys, time
from pathlib import Path
from twinprobe._measure.elements import AT_ONCE
from twinprobe._measure.engine import engine_for
from twinprobe._measure.pair import measure_pair
from twinprobe._runs.tensors.tensor_files import open_tensor
target, golden = (Path(word) for word in sys.argv[1:])
pairs = [(path, golden / path.name) for path in sorted(target.iterdir())[:40]]
engine_for(1 << 40)
measure_pair(*(open_tensor(path, at_once=AT_ONCE) for path in pairs[0]))
print("ready", flush=True)
sys.stdin.readline()
began, cpu = time.perf_counter(), time.process_time()
for pair in pairs:
    measure_pair(*(open_tensor(path, at_once=AT_ONCE) for path in pair))
size = sum(path.stat().st_size for pair in pairs for path in pair)
print((time.perf_counter() - began) / size, (time.process_time() - cpu) / size)
"""


@dataclass(frozen=True)
class Plain:
    """What a unit of work (a rank, a byte) takes one of the processes: seconds, and seconds of a processor."""

    seconds: float
    cpu: float

    def mean(self, other: Plain) -> Plain:
        """Between two measurements, one before and one after."""
        return Plain((self.seconds + other.seconds) / 2, (self.cpu + other.cpu) / 2)


def plain_ranks(folder: Path, ranks: int, workers: int) -> Plain:
    """Seconds a rank, in so many processes at once; each is warm, and has some ranks of its own."""
    each = max(1, min(8, ranks // workers))
    words = []
    for worker in range(workers):
        own = [str((worker * each + at) % ranks) for at in range(each)]
        words.append([str(folder), str(folder / f"plain{worker}"), ",".join(own)])
    found = _at_once(_RANKS, words)
    for worker in range(workers):
        shutil.rmtree(folder / f"plain{worker}")
    return found


def plain_pairs(folder: Path, workers: int) -> Plain:
    """Seconds a byte of tensor files that lie in memory, a pair at a time, on one core, in so many processes at once.

    Every pair is another one, so that none is in the processor's own memory already.
    """
    store = "dump_tensor_data"
    words = [[str(folder / side / f"rank{worker % 2}" / store) for side in ("t", "g")] for worker in range(workers)]
    return _at_once(_PAIRS, words)


def _at_once(code: str, words: list[list[str]]) -> Plain:
    """Start the processes, let them begin together, and take the mean of what they say."""
    children = [
        subprocess.Popen([sys.executable, "-c", code, *own], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                         env=one_thread())
        for own in words
    ]  # fmt: skip
    for child in children:
        assert child.stdout is not None
        child.stdout.readline()
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    said = [child.communicate()[0].split() for child in children]
    if any(child.returncode for child in children):
        sys.exit("a plain process failed")
    return Plain(*(sum(float(one[at]) for one in said) / len(said) for at in (0, 1)))
