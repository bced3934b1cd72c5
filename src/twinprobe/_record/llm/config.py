"""DumpConfig, which selects what is recorded of an inference run, and register_hook, which records it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any

from twinprobe.errors import BadInput

AIT, MSIT = "ait", "msit"
_MODES = ("module", "api")
# Environment variables that make the libraries of an NPU deterministic.
DETERMINISTIC = {
    "LCCL_DETERMINISTIC": "1",
    "HCCL_DETERMINISTIC": "true",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "ATB_LLM_LCOC_ENABLE": "0",
}
_BOTH = 2


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_list(value: Any, check: Callable[[Any], bool]) -> bool:
    return isinstance(value, list | tuple | range) and all(map(check, value))


_FLAG = (lambda value: isinstance(value, bool)), "True or False"
_NUMBER = (lambda value: value is None or _is_number(value)), "a number from 0 up"
# What each parameter may be, and how to say so.
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "dump_path": (lambda value: isinstance(value, str | Path), "a path"),
    "token_range": (
        lambda value: _is_list(value, _is_number),
        "a list of tokens such as [0, 1, 2]; the prompt is 0",
    ),
    "analyze": _FLAG,
    "module_list": (
        lambda value: _is_list(value, lambda entry: isinstance(entry, type)),
        "a list of module classes such as [torch.nn.Linear]",
    ),
    "api_list": (lambda value: _is_list(value, callable), "a list of functions such as [torch.matmul]"),
    "tensor_part": (lambda value: _is_number(value) and value <= _BOTH, "0 inputs, 1 outputs, 2 both"),
    "device_id": _NUMBER,
    "dump_statistics_mode": (lambda value: _is_number(value) and value <= _BOTH, "0 tensors, 1 statistics, 2 both"),
    "dump_last_logits": _FLAG,
    "mode": (
        lambda value: value in _MODES or (bool(value) and _is_list(value, _MODES.__contains__)),
        '"module", "api" or a list of both',
    ),
    "dump_weight": _FLAG,
    "layer_name": (lambda value: isinstance(value, str | None), "a name with * for anything"),
    "seed": _NUMBER,
    "layout": (lambda value: value in (AIT, MSIT), "ait or msit"),
}


@dataclass(eq=False)
class DumpConfig:
    """What to record, with the parameters in the order of ait_llm. You may create several.

    ``layout`` chooses the folders: ``ait`` (``{PID}_npu0/{token}``) or ``msit`` (``msit_dump_{time}/torch_tensors/
    npu0_{PID}/{token}``).
    """

    dump_path: Any = "./"
    token_range: Any = (0,)
    analyze: bool = False
    module_list: Any = ()
    api_list: Any = ()
    tensor_part: int = _BOTH
    device_id: int | None = None
    dump_statistics_mode: int = 0
    dump_last_logits: bool = False
    mode: Any = "module"
    dump_weight: bool = False
    layer_name: str | None = None
    seed: int | None = None
    _: KW_ONLY
    layout: str = AIT

    def __post_init__(self) -> None:
        for field in fields(self):  # None stands for the default
            if getattr(self, field.name) is None:
                setattr(self, field.name, field.default)
            check, expected = _CHECKS[field.name]
            if not check(getattr(self, field.name)):
                what = f"{field.name} is {getattr(self, field.name)!r}"
                raise BadInput(what, where="DumpConfig", hint=f"expected {expected}")
        self.dump_path = Path(self.dump_path)
        self.mode = (self.mode,) if isinstance(self.mode, str) else tuple(dict.fromkeys(self.mode))
        self.token_range, self.module_list, self.api_list = map(
            tuple, (self.token_range, self.module_list, self.api_list)
        )
        self._pattern = re.compile(".*".join(map(re.escape, (self.layer_name or "*").split("*"))), re.DOTALL)

    @property
    def wants_inputs(self) -> bool:
        return self.tensor_part in (0, _BOTH)

    @property
    def wants_outputs(self) -> bool:
        return self.tensor_part in (1, _BOTH)

    def wants_name(self, name: str) -> bool:
        """Whether ``layer_name`` asks for this module, API or weight."""
        return self._pattern.fullmatch(name) is not None
