"""What ``llm dump`` is asked for, checked, and how the dumping library is told: by environment variables."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import dataclass, fields
from pathlib import Path

from twinprobe.errors import BadInput

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
            raise BadInput(f"{self.save_operation_ids!r} are no operators", where="-ids", hint="for example 2,3_1")
        if not _RANGE.fullmatch(self.execute_range) or len(self.execute_range) > _LONGEST_RANGE:
            raise BadInput(f"{self.execute_range!r} are no rounds", where="-er", hint="pairs of first,last: 3,5,7,7")
        numbers = [int(part) for part in self.execute_range.split(",")]
        if any(first > last for first, last in zip(numbers[::2], numbers[1::2], strict=True)):
            raise BadInput(f"{self.execute_range!r}: a first round comes after its last", where="-er")
        if self.operation_name and not _NAME.fullmatch(self.operation_name):
            raise BadInput(f"{self.operation_name!r} is no operator's name", where="-opname")
        if "stats" in self.type and "tensor" not in self.type:
            raise BadInput("stats needs tensor beside it", where="--type", hint="--type tensor stats")
        if self.config_path is not None and not self.config_path.is_file():
            raise BadInput("does not exist", where=self.config_path)

    @property
    def types(self) -> tuple[str, ...]:
        """What is really dumped: a model brings its layers, onnx the model and its operators."""
        wanted = list(dict.fromkeys(self.type))
        if "onnx" in wanted:
            wanted += [name for name in ("model", "op") if name not in wanted]
        if "model" in wanted and "layer" not in wanted:
            wanted.append("layer")
        return tuple(wanted)

    def environment(self, timestamp: str, probe: Path) -> dict[str, str]:
        """The variables that the library reads, and the library itself for the loader."""
        together = self.save_time == 3
        told = {
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
        told |= {name: value for name, value in optional.items() if value}
        return told | (self._deterministic() if self.seed is not None else {})

    @property
    def process_folder(self) -> Path:
        """Where the library lists the topologies that it wrote."""
        return self.output.absolute() / str(os.getpid())

    def _deterministic(self) -> dict[str, str]:
        return {
            "LCCL_DETERMINISTIC": "1",
            "HCCL_DETERMINISTIC": "true",
            "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
            "ATB_LLM_LCOC_ENABLE": "0",
            "PYTHONHASHSEED": str(self.seed),
        }
