"""Running a program under the dumping library of the ATB acceleration library, and tidying up what it wrote."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from twinprobe.errors import BadInput, TwinProbeError
from twinprobe.record.llm.atb_onnx import atb_json_to_onnx
from twinprobe.record.llm.atb_options import DumpOptions
from twinprobe.record.llm.atb_profiling import profiling_to_csv

_NEEDED = 2 << 30
_LAST_LINES = 20
_GRACE = 5.0  # seconds for the output of processes that outlive the program
_NEW_ABI = re.compile(rb"[\w.]*Probe[\w.]*cxx11[\w.]*|[\w.]*cxx11[\w.]*Probe[\w.]*")
_OTHER = "choose another folder with -o"
_HINT = "source the set_env.sh of CANN and of ATB"


@dataclass
class Dumped:
    """Where the dump lies and what else the user should know."""

    folder: Path
    lines: list[str] = field(default_factory=list)


def dump(options: DumpOptions) -> Dumped:
    """Run the program and return where its dump is; BadInput where it cannot run or fails."""
    options.check()
    probe = find_probe()
    _prepare(options.output)
    timestamp = time.strftime("%Y%m%d_%H%M%S")
    began = time.time()
    code, tail = run(options.command, os.environ | options.environment(timestamp, probe))
    if code:
        shown = "\n".join(["its last lines were:", *tail]) if tail else "it said nothing"
        raise BadInput(f"the program ended with the exit code {code}; {shown}", where="--exec")
    folder = _dump_folder(options, timestamp, began)
    return Dumped(folder, [*convert(options, folder), f"The dump is in {folder}"])


def find_probe() -> Path:
    """The library that dumps, in the flavour that fits the installed ATB."""
    toolkit = _home("ASCEND_TOOLKIT_HOME", "the CANN toolkit")
    library = _home("ATB_HOME_PATH", "the ATB library") / "lib" / "libatb.so"
    if not library.is_file():
        raise BadInput("the ATB library is not there", where=library, hint=_HINT)
    flavour = 1 if _NEW_ABI.search(library.read_bytes()) else 0
    probe = toolkit / "tools" / "ait_backend" / "dump" / f"libatb_probe_abi{flavour}.so"
    if not probe.is_file():
        raise BadInput("the library that dumps is not there", where=probe, hint="install it with the CANN toolkit")
    return probe


def _home(variable: str, what: str) -> Path:
    value = os.environ.get(variable, "")
    if not value:
        raise BadInput(f"{what} is not here: {variable} is not set", hint=_HINT)
    if not Path(value).is_dir():
        raise BadInput(f"{what} is not here: {variable} names no folder", where=value, hint=_HINT)
    return Path(value)


def _prepare(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output).free
    except OSError as error:
        raise BadInput(
            f"cannot be used: {error.strerror}", where=output, hint="choose another folder with -o"
        ) from None
    if not os.access(output, os.W_OK):
        raise BadInput("cannot be written to", where=output, hint=_OTHER)
    if free < _NEEDED:
        raise BadInput("has less than 2 GB free", where=output, hint=_OTHER)


def run(command: list[str], environment: dict[str, str]) -> tuple[int, list[str]]:
    """Run a program, pass its output on as it comes, and keep the last lines."""
    tail: deque[bytes] = deque(maxlen=1 << 6)
    try:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
    except OSError as error:
        raise BadInput(f"cannot be started: {error.strerror}", where=command[0]) from None
    assert process.stdout is not None
    reader = threading.Thread(target=_pass_on, args=(process.stdout.fileno(), tail), daemon=True)
    reader.start()
    try:
        code = process.wait()
    except BaseException:
        process.kill()
        raise
    # A process that the program left behind may hold the pipe open for ever.
    reader.join(_GRACE)
    text = b"".join(tail).decode("utf-8", "replace")
    return code, [line for line in text.splitlines() if line.strip()][-_LAST_LINES:]


def _pass_on(source: int, tail: deque[bytes]) -> None:
    while True:
        try:
            piece = os.read(source, 1 << 14)
        except OSError:
            return
        if not piece:
            return
        tail.append(piece)
        sys.stdout.write(piece.decode("utf-8", "replace"))
        sys.stdout.flush()


def _dump_folder(options: DumpOptions, timestamp: str, began: float) -> Path:
    """The folder that the library made, under the name that was asked for."""
    output = options.output.absolute()
    old, new = output / "ait_dump", output / f"msit_dump_{timestamp}"
    found = next((folder for folder in (old, new) if folder.is_dir() and _changed_since(folder, began)), None)
    if found is None:
        raise TwinProbeError(
            "the program ended well, but nothing was dumped", where=output,
            hint="does it run on the ATB library, and did it reach the rounds of -er?",
        )  # fmt: skip
    wanted = old if options.layout == "ait" else new
    if found != wanted and not wanted.exists():
        found = found.rename(wanted)
    return found


def _changed_since(folder: Path, began: float) -> bool:
    newest = max((path.stat().st_mtime for path in folder.glob("*/*")), default=folder.stat().st_mtime)
    return newest >= began - 2


def convert(options: DumpOptions, folder: Path) -> list[str]:
    """Turn profiling texts into csv and topologies into onnx, as far as they were asked for."""
    lines = []
    if "cpu_profiling" in options.type:
        for text in sorted(folder.glob("cpu_profiling/*/operation_statistic_*.txt")):
            profiling_to_csv(text)
            lines.append(f"Profiling: {text.with_suffix('.csv')}")
    if "onnx" in options.type:
        for topology in _topologies(options, folder):
            lines.append(f"Model for viewing: {atb_json_to_onnx(topology)}")
    return lines


def _topologies(options: DumpOptions, folder: Path) -> list[Path]:
    """Those that the library lists, else all of the dump."""
    listed = options.process_folder / "subprocess_info.txt"
    found = sorted([*folder.glob("model/*/*.json"), *folder.glob("layer/*/*.json")])
    if not listed.is_file():
        return found
    names = {Path(line.strip()).resolve() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()}
    shutil.rmtree(options.process_folder, ignore_errors=True)
    return [path for path in found if path.resolve() in names] or found
