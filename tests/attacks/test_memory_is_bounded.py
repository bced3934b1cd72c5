"""Memory in proportion: the worst file of each kind, read in a process of its own, whose growth is measured.

python tests/attacks/test_memory_is_bounded.py prints the table of SECURITY.md's second promise.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FUZZ = HERE.parent / "fuzz"
sys.path[:0] = [str(FUZZ), str(HERE), str(HERE.parent)]

from fuzz_readers import READERS  # noqa: E402
from worst_files import Worst, worst_files  # noqa: E402

from support import slow  # noqa: E402
from warm_python import run_warm  # noqa: E402

FREE = 64 << 20
WORST = worst_files()
# One of each type of file, which is what decides by which means it is read.
FIRST = list({Path(READERS[worst.reader].file).suffix: name for name, worst in reversed(WORST.items())}.values())

# The reader's seeds first: what is loaded once is not the cost of a file.
CHILD = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1]]
from fuzz_engine import current_bytes, peak_bytes
from fuzz_readers import READERS
from twinprobe.errors import TwinProbeError
reader, folder = READERS[sys.argv[2]], Path(sys.argv[3])
def look(path):
    if path.suffix in (".pt", ".npy", ".bin"):  # without the copy that fuzzing makes of the elements
        from twinprobe._runs.llm.files import open_llm_tensor
        return open_llm_tensor(path.parent, path.name).data.view("u1").max()
    return reader.read(path)
def read(path):
    try:
        look(path)
        return "read"
    except TwinProbeError as error:
        return str(error)[:300].replace("\\n", " ")
(folder / "seed").mkdir()
for seed in reader.seeds():
    (folder / "seed" / reader.file).write_bytes(seed)
    read(folder / "seed" / reader.file)
before = current_bytes()
ended = read(folder / reader.file)
print(max(peak_bytes() - before, 0), ended)
"""


def growth(worst: Worst, folder: Path) -> tuple[int, int, str]:
    """The size of the file, by how much reading it made its process grow, and how the reading ended."""
    path = folder / READERS[worst.reader].file
    path.write_bytes(worst.content())
    done = run_warm(CHILD, str(FUZZ), worst.reader, str(folder))
    assert done.returncode == 0, done.stderr[-3000:]
    taken, _, ended = done.stdout.strip().partition(" ")
    return path.stat().st_size, int(taken), ended


@pytest.mark.parametrize("name", [*FIRST, *slow(*(name for name in WORST if name not in FIRST))])
def test_the_worst_file_takes_no_more_than_is_promised(name: str, tmp_path: Path) -> None:
    size, taken, ended = growth(WORST[name], tmp_path)
    assert taken <= FREE + WORST[name].times * size, f"{taken >> 20} MB for {size >> 20} MB ({ended})"


@pytest.mark.slow
def test_so_do_files_that_are_much_larger_than_what_is_free(tmp_path: Path) -> None:
    """64 MB hide what a small file costs for each of its bytes."""
    environment = {**os.environ, "TWINPROBE_WORST_SIZE": "40000000", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, __file__], capture_output=True, text=True, env=environment, timeout=3000, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == len(WORST) + 2
    assert "TOO MUCH" not in done.stdout, done.stdout


def table(names: Iterable[str]) -> Iterable[str]:
    """One line per file, as the documentation has them."""
    yield "| reader: file | size | bound | taken | how it ends |"
    yield "| --- | ---: | ---: | ---: | --- |"
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            size, taken, ended = growth(WORST[name], Path(folder))
        bound = f"64 MB + {WORST[name].times}x"
        how = "read" if ended == "read" else "refused"
        how += "" if taken <= FREE + WORST[name].times * size else ", TOO MUCH"
        yield f"| {name} | {size / 1e6:.1f} MB | {bound} | {taken / 1e6:.0f} MB | {how} |"


if __name__ == "__main__":
    for line in table(name for name in WORST if not sys.argv[1:] or any(word in name for word in sys.argv[1:])):
        print(line, flush=True)
