"""Does the same small work again and again in forked children, each of which meets another fault.

A program of its own: it imports what the work needs once, then reads jobs, one JSON object a line, and answers each.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import resource
import shlex  # noqa: F401  # a child without rights to this interpreter's folder cannot import it any more
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

Job = dict[str, Any]
_FILE_CALLS = frozenset({"open", "write", "flush", "close", "fsync", "rename", "replace", "unlink", "link", "mkdir"})
_WRITERS = ("twinprobe", "pathlib", "zipfile")
_FILE_EVENTS = frozenset({"open", "os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"})


def record(job: Job, say: Callable[[int], None]) -> None:
    """Train a small network for some steps; every second step is flushed, and told."""
    import torch

    from twinprobe.torch import PrecisionDebugger

    if job.get("store"):
        torch.distributed.init_process_group("gloo", init_method=f"file://{job['store']}", rank=0, world_size=1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    debugger = PrecisionDebugger(dump_path=job["folder"], level="mix", task=job.get("task", "tensor"))
    for step in range(job.get("steps", 4)):
        debugger.start(model=model)
        model(torch.full((8, 16), float(job.get("value", 1)))).sum().backward()
        debugger.stop()
        debugger.step()
        if step % 2:
            debugger.flush()
            say(step)
        if step == job.get("lose_permission"):
            for folder in (job["folder"], *map(str, Path(job["folder"]).glob("step*"))):
                os.chmod(folder, 0o500)  # noqa: PTH101
        if step == job.get("wait_after"):
            say(100)
            time.sleep(3600)
    print("trained to the end", flush=True)


def command(job: Job, say: Callable[[int], None]) -> None:
    """Run a command of TwinProbe."""
    from twinprobe._cli import main

    code = main(job["words"])
    say(code)


WORK = {"record": record, "command": command}


def child(job: Job, tell: int, output: int) -> None:
    """One forked child: takes on the fault, does the work, and tells what it has finished."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        events, calls = _watch(job), _watch_calls(job)
        _suffer(job)
        _trace(job)
        _meddle(job)
        WORK[job["work"]](job, lambda number: (os.write(tell, f"{number} ".encode()), None)[1])
        status = 0
        os.write(tell, f"events={events[0]} calls={calls[0]} ".encode())
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _watch(job: Job) -> list[int]:
    """Count what is done to files of the folder; at the number ``kill_event`` the signal comes."""
    count, folder, last = [0], job["folder"], job.get("kill_event")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _FILE_EVENTS and arguments and _inside(arguments[0], folder):
            count[0] += 1
            if count[0] == last:
                os.kill(os.getpid(), job.get("signal", signal.SIGKILL))

    sys.addaudithook(hook)
    return count


def _watch_calls(job: Job) -> list[int]:
    """Count the calls of the system's file functions, before and after each; at ``kill_call`` the process dies."""
    count, last = [0], job.get("kill_call")
    if last is None:
        return count

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event in ("c_call", "c_return") and getattr(function, "__name__", "") in _FILE_CALLS:
            if not any(part in frame.f_code.co_filename for part in _WRITERS):
                return
            count[0] += 1
            if count[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.setprofile(profile)
    sys.setprofile(profile)
    return count


def _trace(job: Job) -> None:
    """Write down, line by line, what is renamed, removed and synced in the folder: [event, path, new name]."""
    if not job.get("trace"):
        return
    trace = os.open(job["trace"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(*words: Any) -> None:
        os.write(trace, (json.dumps([os.fsdecode(word) for word in words]) + "\n").encode())

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.rename", "os.remove") and _inside(arguments[0], job["folder"]):
            note(event, *[word for word in arguments[:2] if not isinstance(word, int)])
        elif event == "ctypes.dlsym" and arguments[1] == "syncfs":
            note("syncfs")

    def profile(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function is os.fsync:  # its argument is one of the caller's variables
            for value in list(frame.f_locals.values()):
                handle = value if isinstance(value, int) else getattr(value, "fileno", lambda: -1)()
                with contextlib.suppress(OSError):
                    note("fsync", Path(f"/proc/self/fd/{handle}").readlink())

    sys.addaudithook(hook)
    threading.setprofile(profile)
    sys.setprofile(profile)


def _meddle(job: Job) -> None:
    """Change files under the reader's hands: ``[when, what, path]``, when a file whose name ends so is opened.

    ``meddle`` comes just before it is opened, ``meddle_after`` just after.
    """
    waiting, later = list(job.get("meddle", ())), list(job.get("meddle_after", ()))

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not waiting or isinstance(arguments[0], int):
            return
        for item in [one for one in waiting if os.fsdecode(arguments[0]).endswith(one[0])]:
            waiting.remove(item)
            _MEDDLING[item[1]](Path(item[2]))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "return" and frame.f_code.co_name == "contents":  # opened and looked at, its elements not yet read
            for item in [one for one in later if str(frame.f_locals.get("path")).endswith(one[0])]:
                later.remove(item)
                _MEDDLING[item[1]](Path(item[2]))

    sys.addaudithook(hook)
    if later:
        threading.setprofile(profile)
        sys.setprofile(profile)


def _rewrite(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:128] + bytes(len(content) - 128))


_MEDDLING: dict[str, Callable[[Path], object]] = {
    "shrink": lambda path: os.truncate(path, path.stat().st_size // 3),
    "empty": lambda path: os.truncate(path, 0),
    "remove": lambda path: path.unlink(),
    "rewrite": _rewrite,
    "replace": lambda path: (path.unlink(), path.mkdir()),
    "forbid": lambda path: path.chmod(0),
}


def _inside(path: Any, folder: str) -> bool:
    return not isinstance(path, int) and os.fsdecode(path).startswith(folder)


def _suffer(job: Job) -> None:
    if job.get("limit"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    if job.get("descriptors"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (job["descriptors"], job["descriptors"]))
    if job.get("exit_on_sigterm"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    else:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if job.get("user") is not None:
        os.setgroups([])
        os.setgid(job["user"])
        os.setuid(job["user"])
    if job.get("start"):
        os.read(job["start"], 1)


def run(jobs: list[Job]) -> list[dict[str, Any]]:
    """Run jobs side by side, released at once, and say what came of each."""
    gate, opener = os.pipe()
    running = []
    for job in jobs:
        told, tell = os.pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115  read after the child's end
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            child({**job, "start": gate}, tell, output.fileno())
        os.close(tell)
        running.append((job, pid, told, output, began))
    os.write(opener, b"x" * len(jobs))
    results = [_await(*one) for one in running]
    os.close(gate)
    os.close(opener)
    return results


def _await(job: Job, pid: int, told: int, output: Any, began: float) -> dict[str, Any]:
    heard = ""
    if job.get("kill_after") is not None:
        time.sleep(job["kill_after"])
        os.kill(pid, job.get("signal", signal.SIGKILL))
    if job.get("wait_after") is not None:
        while "100" not in heard.split():
            heard += os.read(told, 1000).decode()
        os.kill(pid, job["signal"])
    _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - began
    while piece := os.read(told, 1000):
        heard += piece.decode()
    os.close(told)
    output.seek(0)
    said = output.read().decode(errors="replace")
    output.close()
    words = heard.split()
    counts = {name: int(number) for name, _, number in (word.partition("=") for word in words) if number}
    return {
        "status": os.waitstatus_to_exitcode(status),
        "told": [int(word) for word in words if word.isdecimal()],
        "events": counts.get("events", 0),
        "calls": counts.get("calls", 0),
        "seconds": seconds,
        "said": said,
    }


def serve() -> None:
    """Import what the jobs need, then work until there are no more."""
    with contextlib.suppress(ImportError):
        import torch

        import twinprobe.torch

        torch.set_num_threads(1)
    import polars  # noqa: F401

    import twinprobe._compare.job
    import twinprobe._measure.pair
    import twinprobe._report.reports  # noqa: F401

    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
