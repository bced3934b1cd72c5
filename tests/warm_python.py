"""Programs in processes of their own that have torch and polars loaded: forked from one that waits, since importing
takes longer than most of them. Optimizers and parallel layers load torch._dynamo, which takes as long as torch."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

# A child leaves the loop and ends as an interpreter does: with its exit code, its traceback and its cleanup handlers.
_SERVER = """
import gc, json, os, signal, sys
import polars, torch, torch._dynamo, twinprobe.torch, twinprobe._cli
gc.collect()
gc.freeze()  # children neither copy nor search what is loaded here
for line in sys.stdin:
    job = json.loads(line)
    child = os.fork()
    if child == 0:
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
signal.alarm(600)  # ends a hang
os.environ.clear()
os.environ.update(job["environment"])
os.chdir(job["folder"])
for number, name in enumerate((os.devnull, job["out"], job["error"])):
    handle = os.open(name, os.O_RDWR)
    os.dup2(handle, number)
    os.close(handle)
sys.argv, sys.path[0] = ["-c", *job["words"]], ""
sys.path.append(job["tests"])
exec(compile(job["code"], "<string>", "exec"), globals())
"""
_RUN_FILE = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
_servers: list[subprocess.Popen[str]] = []


def run_warm(
    code: str | Path, *words: str, folder: Path | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What ``python -c CODE WORDS`` gives, or where a path is given, ``python PATH WORDS``."""
    if isinstance(code, Path):
        code, words = _RUN_FILE, (str(code), *words)
    if not _servers:
        waiting = [sys.executable, "-c", _SERVER]
        _servers.append(subprocess.Popen(waiting, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        atexit.register(_servers[0].communicate)  # it ends where nothing more can come
    server = _servers[0]
    assert server.stdin
    assert server.stdout
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as error:
        job = {
            "code": code, "words": words, "tests": str(Path(__file__).parent), "folder": str(folder or Path.cwd()),
            "out": out.name, "error": error.name,
            "environment": dict(os.environ if environment is None else environment),
        }  # fmt: skip
        server.stdin.write(json.dumps(job) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        texts = [file.read().decode(errors="replace") for file in (out, error)]
        return subprocess.CompletedProcess(["python", "-c"], status, *texts)
