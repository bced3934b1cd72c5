"""A pipe where a file is expected: refused or left out, since nobody may ever write to it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from support import forward, tensor, tensor_dump, write_dump
from twinprobe._cli import main
from twinprobe._record.config import load_config
from twinprobe.errors import BadInput

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("llm", "compare")]

from kernel_dumps import line, save_statistics  # noqa: E402
from llm_dumps import SMALL, decoder_values, write_torch  # noqa: E402

COMMAND = "import sys; from twinprobe._cli import main; sys.exit(main())"
PATIENCE = 600.0  # seconds, far more than any of these commands takes
CALL = "Torch.a.0.forward"
PAIR = "compare -tp t/dump.json -gp g/dump.json -o out --format csv"
DRAW = "graph_visualize -tp t -gp g -o out --file_type db"
MERGE = "merge_result -i results -o out -config merge.yaml"
LLM = "llm compare -gp lg -mp lt -o out"

# What is a pipe in the folder that the command runs in; the command; how it ends.
GIVEN = {
    "-tp": ("pipe", "compare -tp pipe -gp g/dump.json -o out", 2),
    "-gp": ("pipe", "compare -tp t/dump.json -gp pipe -o out", 2),
    "-o": ("out", PAIR, 2),
    **{f"compare {flag}": ("pipe", f"{PAIR} {flag} pipe", 2) for flag in ("-am", "-cm", "-dm", "-lm", "--alignment")},
    "align A": ("pipe", "align pipe g/dump.json -o out", 2),
    "graph -i": ("pipe", "graph -i pipe -o out", 2),
    "graph -lm": ("pipe", f"{DRAW} -lm pipe", 2),
    "graph --alignment": ("pipe", f"{DRAW} --alignment pipe", 2),
    "graph -tp": ("pipe", "graph_visualize -tp pipe -o out", 2),
    "view": ("pipe.vis.db", "view pipe.vis.db --export page.html", 2),
    "merge_result -i": ("pipe", "merge_result -i pipe -o out -config merge.yaml", 2),
    "merge_result -config": ("pipe", "merge_result -i results -o out -config pipe", 2),
    "llm compare -gp": ("pipe.pth", "llm compare -gp pipe.pth -mp pipe.pth -o out", 2),
    "llm compare -mf": ("pipe", f"{LLM} -mf pipe", 2),
    "llm compare -alg": ("pipe.py", f"{LLM} -alg pipe.py:f", 2),
}
IN_ITS_OWN_PROCESS = {"run --config": ("pipe", "run --config pipe script.py", 2)} | {
    place: GIVEN[place] for place in ("compare -lm", "graph -i", "merge_result -config")
}
INSIDE = {
    "dump.json": ("t/dump.json", PAIR, 2),
    "stack.json": ("t/stack.json", PAIR, 0),
    "construct.json": ("t/construct.json", PAIR, 0),
    "a tensor": (f"tt/dump_tensor_data/{CALL}.output.0.npy", "compare -tp tt -gp tg -o out --format csv", 0),
    "a tensor, to be taken up": (
        f"tt/dump_tensor_data/{CALL}.output.0.npy",
        "compare -tp tt -gp tg -o out --resume",
        0,
    ),
    "a claim": ("out/.twinprobe-20260101000000.claim", PAIR, 0),
    "notes of a command": ("out/.twinprobe/20260101000000/command.json", f"{PAIR} --resume", 0),
    "a part of a dataset": ("results/step=0/rank=0/part.parquet", MERGE, 2),
    "llm metadata": ("m/metadata.json", "llm compare -gp m -mp m -o out", 2),
    "kernel statistics": ("kt/rank_0/Net/0/0/statistic.csv", "compare -tp kt -gp kg -o out", 2),
    "a list of kernel names": ("kt/rank_0/Net/0/0/mapping.csv", "compare -tp kt -gp kg -o out", 0),
    "a graph in a folder": ("graphs/a.vis.db", "view graphs --export page.html", 2),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Small sound runs of every kind, and what else the commands need."""
    for side, norm in (("t", 1.0), ("g", 9.0)):
        data = {CALL: forward([tensor()], [tensor(norm=norm)])}
        write_dump(tmp_path / side, data, parents={CALL: None}, stacks={"0": [[CALL], ["File a.py, line 1, in f"]]})
        tensor_dump(tmp_path / f"t{side}", {CALL: {"output.0": np.ones(3, np.float32) * norm}})
        save_statistics(tmp_path / f"k{side}", [line("op", "1,0,0.5,2")])
        write_torch(tmp_path / f"l{side}" / "7_npu0", {0: decoder_values(SMALL)}, SMALL.layers)
    for rank in range(2):
        part = tmp_path / "results" / "step=0" / f"rank={rank}" / "part.parquet"
        part.parent.mkdir(parents=True)
        part.write_bytes(b"PAR1")
    (tmp_path / "merge.yaml").write_text("api: [Torch.a]\n")
    (tmp_path / "script.py").write_text("")
    return tmp_path


@contextmanager
def nobody_waits_for(pipe: Path) -> Iterator[None]:
    """Who still waits for the pipe after ten minutes is let go, and the test fails."""
    over, waited = threading.Event(), []

    def let_go() -> None:
        while not over.wait(PATIENCE if not waited else 0.1):
            with suppress(OSError):  # nobody reads
                waited.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
                os.close(waited[-1])

    watch = threading.Thread(target=let_go, daemon=True)
    watch.start()
    try:
        yield
    finally:
        over.set()
        watch.join()
    assert not waited, f"something waited for {pipe}"


@pytest.mark.parametrize("place", [*GIVEN, *INSIDE])
def test_no_command_waits_for_a_pipe(
    runs: Path, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, command, code = (GIVEN | INSIDE)[place]
    (runs / pipe).parent.mkdir(parents=True, exist_ok=True)
    (runs / pipe).unlink(missing_ok=True)
    os.mkfifo(runs / pipe)
    monkeypatch.chdir(runs)
    with nobody_waits_for(runs / pipe):
        assert main(command.split()) == code
    if place in GIVEN:
        assert Path(pipe).name in capsys.readouterr().err


@pytest.mark.parametrize("place", IN_ITS_OWN_PROCESS)
def test_nor_does_the_program_itself(runs: Path, place: str) -> None:
    pipe, command, code = IN_ITS_OWN_PROCESS[place]
    os.mkfifo(runs / pipe)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *command.split()],
        cwd=runs, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert "it is not a regular file" in done.stderr


def test_nor_does_the_recorder(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with nobody_waits_for(tmp_path / "config.json"), pytest.raises(BadInput, match="not a regular file"):
        load_config(tmp_path / "config.json")
