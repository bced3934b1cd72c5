"""Running a program under the dumping library of the ATB acceleration library, and tidying up what it wrote."""

from __future__ import annotations

import argparse
import csv
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from twinprobe._record.llm.config import DETERMINISTIC
from twinprobe._runs.llm.tree import OpNode, read_topology
from twinprobe._runs.whole_files import write_whole
from twinprobe.errors import BadInput, TwinProbeError

# The options of ``llm dump``, checked, and the environment variables that pass them to the dumping library.

DUMP_TYPES = ("model", "layer", "op", "kernel", "tensor", "cpu_profiling", "onnx", "stats")
LOG_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3, "fatal": 4, "critical": 5}
_IDS = re.compile(r"\d+(_\d+)*(,\d+(_\d+)*)*")
_RANGE = re.compile(r"\d+,\d+(,\d+,\d+)*")
_NAME = re.compile(r"[A-Za-z0-9_,]+")
_SHELL = re.compile(r"[<>|;&`$\n\r\0]")
_LONGEST_RANGE = 500


@dataclass(frozen=True)
class DumpOptions:
    """Every option of ``llm dump``; the names are those of the command line."""

    exec: str
    type: tuple[str, ...] = ("tensor", "model")
    only_save_desc: bool = False
    save_operation_ids: str = ""
    execute_range: str = "0,0"
    save_operation_child: bool = True
    save_time: int = 3
    operation_name: str | None = None
    save_tiling: bool = False
    save_tensor_part: int = 2
    output: Path = Path()
    device_id: int | None = None
    seed: int | None = None
    enable_symlink: bool = False
    config_path: Path | None = None
    log_level: str = "info"
    layout: str = "ait"

    @classmethod
    def of(cls, args: argparse.Namespace) -> DumpOptions:
        """The options as they were typed."""
        given = {field.name: getattr(args, field.name) for field in fields(cls) if hasattr(args, field.name)}
        return cls(**{**given, "type": tuple(given.get("type", cls.type))})

    @property
    def command(self) -> list[str]:
        """The program and its arguments; no shell sees them."""
        if _SHELL.search(self.exec):
            what = f"no shell runs the command, so it can have none of < > | ; & ` $: {self.exec!r}"
            raise BadInput(what, where="--exec", hint="put it into a script and give bash SCRIPT")
        try:
            words = shlex.split(self.exec)
        except ValueError as error:
            raise BadInput(f"{error}: {self.exec!r}", where="--exec") from None
        if not words:
            raise BadInput("is empty", where="--exec")
        return words

    def check(self) -> None:
        """Refuse values that the dumping library would misread."""
        self.command  # noqa: B018  raises for a bad command
        if self.save_operation_ids and not _IDS.fullmatch(self.save_operation_ids):
            raise BadInput(f"{self.save_operation_ids!r} are not operators", where="-ids", hint="for example 2,3_1")
        if not _RANGE.fullmatch(self.execute_range) or len(self.execute_range) > _LONGEST_RANGE:
            raise BadInput(f"{self.execute_range!r} are not rounds", where="-er", hint="pairs of first,last: 3,5,7,7")
        numbers = [int(part) for part in self.execute_range.split(",")]
        if any(first > last for first, last in zip(numbers[::2], numbers[1::2], strict=True)):
            raise BadInput(f"{self.execute_range!r}: a first round comes after its last", where="-er")
        if self.operation_name and not _NAME.fullmatch(self.operation_name):
            raise BadInput(f"{self.operation_name!r} is not an operator's name", where="-opname")
        if "stats" in self.type and "tensor" not in self.type:
            raise BadInput("stats needs tensor beside it", where="--type", hint="--type tensor stats")
        if self.config_path is not None and not self.config_path.is_file():
            raise BadInput("does not exist", where=self.config_path)

    @property
    def types(self) -> tuple[str, ...]:
        """Everything that is dumped: a model includes its layers, onnx the model and its operators."""
        wanted = list(dict.fromkeys(self.type))
        if "onnx" in wanted:
            wanted += [name for name in ("model", "op") if name not in wanted]
        if "model" in wanted and "layer" not in wanted:
            wanted.append("layer")
        return tuple(wanted)

    def environment(self, timestamp: str, probe: Path) -> dict[str, str]:
        """The variables that the library reads, and the library itself for the loader."""
        together = self.save_time == 3
        variables = {
            "ATB_DUMP_TYPE": "|".join(self.types),
            "ATB_SAVE_TENSOR": "2" if self.only_save_desc else "1",
            "ATB_SAVE_TENSOR_TIME": "1" if together else str(self.save_time),
            "ATB_SAVE_TENSOR_IN_BEFORE_OUT_AFTER": str(int(together)),
            "ATB_SAVE_TENSOR_RANGE": self.execute_range,
            "ATB_SAVE_CHILD": str(int(self.save_operation_child)),
            "ATB_SAVE_TILING": str(int(self.save_tiling)),
            "ATB_SAVE_TENSOR_PART": str(self.save_tensor_part),
            "ATB_SAVE_CPU_PROFILING": str(int("cpu_profiling" in self.type)),
            "ATB_OUTPUT_DIR": f"{self.output.absolute()}/",
            "ATB_TIMESTAMP": timestamp,
            "ATB_CUR_PID": str(os.getpid()),
            "ATB_AIT_LOG_LEVEL": str(LOG_LEVELS[self.log_level]),
            "LD_PRELOAD": ":".join(part for part in (str(probe), os.environ.get("LD_PRELOAD", "")) if part),
        }
        optional = {
            "ATB_SAVE_TENSOR_IDS": self.save_operation_ids,
            "ATB_SAVE_TENSOR_RUNNER": (self.operation_name or "").lower(),
            "ATB_SAVE_TENSOR_STATISTICS": "1" if "stats" in self.type else "",
            "ATB_SAVE_SYMLINK": "1" if self.enable_symlink else "",
            "ATB_DEVICE_ID": "" if self.device_id is None else str(self.device_id),
            "ATB_DUMP_CONFIG": str(self.config_path.absolute()) if self.config_path else "",
            "ATB_DUMP_SUB_PROC_INFO_SAVE_PATH": str(self.process_folder) if "onnx" in self.type else "",
        }
        variables |= {name: value for name, value in optional.items() if value}
        return variables | ({} if self.seed is None else {**DETERMINISTIC, "PYTHONHASHSEED": str(self.seed)})

    @property
    def process_folder(self) -> Path:
        """Where the library lists the topologies that it wrote."""
        return self.output.absolute() / str(os.getpid())


# Processor times that the dumping library writes as text lines, turned into csv.

_LINE = re.compile(r"\s*\[(?P<name>[^\]]+)\]\s*:(?P<values>.*)")
_PAIR = re.compile(r"\s*([^:,]+?)\s*:\s*([^,]*?)\s*(?:,|$)")


def profiling_to_csv(path: Path) -> Path:
    """Write ``operation_statistic_N.csv`` from its ``.txt``, which is deleted: one row per operator."""
    rows: dict[str, dict[str, str]] = {}
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from None
    for line in lines:
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        values = dict(_PAIR.findall(match["values"]))
        front = "execute_" if "kernelExecuteTime" in values else "setup_" if "runnerSetupTime" in values else ""
        rows.setdefault(match["name"], {}).update({front + key: value for key, value in values.items()})
    columns = sorted({key for row in rows.values() for key in row})
    target = path.with_suffix(".csv")

    def write(place: Path) -> None:
        with place.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["opname", *columns], restval="")
            writer.writeheader()
            writer.writerows({"opname": name, **row} for name, row in rows.items())

    write_whole(target, write, sync=True)  # before the only other copy goes
    path.unlink()
    return target


_NEEDED = 2 << 30
_LAST_LINES = 20
_GRACE = 5.0  # seconds for the output of processes that outlive the program
_NEW_ABI = re.compile(rb"[\w.]*Probe[\w.]*cxx11[\w.]*|[\w.]*cxx11[\w.]*Probe[\w.]*")
_OTHER = "choose another folder with -o"
_HINT = "source the set_env.sh of CANN and of ATB"


def dump(options: DumpOptions) -> list[str]:
    """Run the program and say in lines where its dump is; BadInput where it cannot run or fails."""
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
    return [*convert(options, folder), f"The dump is in {folder}"]


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


def _home(variable: str, title: str) -> Path:
    value = os.environ.get(variable, "")
    if not value:
        raise BadInput(f"{title} is not here: {variable} is not set", hint=_HINT)
    if not Path(value).is_dir():
        raise BadInput(f"{title} is not here: {variable} names no folder", where=value, hint=_HINT)
    return Path(value)


def _prepare(output: Path) -> None:
    try:
        output.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(output).free
    except OSError as error:
        raise BadInput(f"cannot be used: {error.strerror}", where=output, hint=_OTHER) from None
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
    made = next((folder for folder in (old, new) if folder.is_dir() and _changed_since(folder, began)), None)
    if made is None:
        raise TwinProbeError(
            "the program ended well, but nothing was dumped", where=output,
            hint="does it run on the ATB library, and did it reach the rounds of -er?",
        )  # fmt: skip
    wanted = old if options.layout == "ait" else new
    if made != wanted and not wanted.exists():
        made = made.rename(wanted)
    return made


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
    files = sorted([*folder.glob("model/*/*.json"), *folder.glob("layer/*/*.json")])
    if not listed.is_file():
        return files
    names = {Path(line.strip()).resolve() for line in listed.read_text(encoding="utf-8").splitlines() if line.strip()}
    shutil.rmtree(options.process_folder, ignore_errors=True)
    return [path for path in files if path.resolve() in names] or files


_IR_VERSION, _OPSET = 8, 13
_FLOATS, _STRINGS = 6, 8  # kinds of an attribute


def atb_json_to_onnx(path: Path) -> Path:
    """Write ``NAME.onnx`` beside ``NAME.json``, with the operators that have no parts."""
    tree = read_topology(path)[0]
    nodes = b"".join(_field(1, _node(node)) for node in tree.leaves() if node is not tree)
    graph = nodes + _text(2, tree.name)
    graph += b"".join(_field(11, _text(1, name)) for name in tree.inputs)
    graph += b"".join(_field(12, _text(1, name)) for name in tree.outputs)
    model = _number(1, _IR_VERSION) + _text(2, "twinprobe") + _field(7, graph) + _field(8, _number(2, _OPSET))
    target = path.with_suffix(".onnx")
    write_whole(target, lambda place: place.write_bytes(model), sync=True)
    return target


def _node(node: OpNode) -> bytes:
    content = b"".join(_text(1, name) for name in node.inputs) + b"".join(_text(2, name) for name in node.outputs)
    content += _text(3, node.name) + _text(4, node.op_type)
    return content + b"".join(_field(5, _attribute(name, value)) for name, value in _flat(node.param))


def _flat(param: dict[str, Any], front: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in param.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{front}{key}.")
        else:
            yield f"{front}{key}", value


def _attribute(name: str, value: Any) -> bytes:
    values = value if isinstance(value, list) else [value]
    if all(isinstance(item, int | float) for item in values):
        packed = struct.pack(f"<{len(values)}f", *(_single(item) for item in values))
        return _text(1, name) + _field(7, packed) + _number(20, _FLOATS)
    return _text(1, name) + b"".join(_text(9, str(item)) for item in values) + _number(20, _STRINGS)


def _single(value: float) -> float:
    return max(min(float(value), 3.4e38), -3.4e38) if value == value else value  # noqa: PLR0124  NaN stays NaN


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3) + _varint(value)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
