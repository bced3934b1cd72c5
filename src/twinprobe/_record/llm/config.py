"""DumpConfig, which says what of an inference is recorded, and register_hook, which records it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from twinprobe.errors import BadInput

AIT, MSIT = "ait", "msit"
_MODES = ("module", "api")
_BOTH = 2


class DumpConfig:
    """What to record, with the parameters in the order of ait_llm. You may create several.

    ``layout`` chooses the folders: ``ait`` (``{PID}_npu0/{token}``) or ``msit`` (``msit_dump_{time}/torch_tensors/
    npu0_{PID}/{token}``).
    """

    def __init__(
        self,
        dump_path: str | Path | None = None,
        token_range: Sequence[int] | None = None,
        analyze: bool = False,
        module_list: Sequence[type] | None = None,
        api_list: Sequence[Callable[..., Any]] | None = None,
        tensor_part: int = _BOTH,
        device_id: int | None = None,
        dump_statistics_mode: int = 0,
        dump_last_logits: bool = False,
        mode: str | Sequence[str] | None = None,
        dump_weight: bool = False,
        layer_name: str | None = None,
        seed: int | None = None,
        *,
        layout: str = AIT,
    ) -> None:
        self.dump_path = Path(_kind(dump_path if dump_path is not None else "./", (str, Path), "dump_path", "a path"))
        self.token_range = _tokens(token_range)
        self.analyze = _kind(analyze, (bool,), "analyze", "True or False")
        self.module_list = _classes(module_list)
        self.api_list = _functions(api_list)
        self.tensor_part = _choice(tensor_part, (0, 1, 2), "tensor_part", "0 inputs, 1 outputs, 2 both")
        self.device_id = _number_or_none(device_id, "device_id")
        self.dump_statistics_mode = _choice(
            dump_statistics_mode, (0, 1, 2), "dump_statistics_mode", "0 tensors, 1 statistics, 2 both"
        )
        self.dump_last_logits = _kind(dump_last_logits, (bool,), "dump_last_logits", "True or False")
        self.mode = _modes(mode)
        self.dump_weight = _kind(dump_weight, (bool,), "dump_weight", "True or False")
        self.layer_name = _kind(layer_name, (str, type(None)), "layer_name", "a name with * for anything")
        self.seed = _number_or_none(seed, "seed")
        self.layout = _choice(layout, (AIT, MSIT), "layout", "ait or msit")
        self._pattern = None if self.layer_name is None else _glob(self.layer_name)

    @property
    def wants_inputs(self) -> bool:
        return self.tensor_part in (0, _BOTH)

    @property
    def wants_outputs(self) -> bool:
        return self.tensor_part in (1, _BOTH)

    def wants_name(self, name: str) -> bool:
        """Whether ``layer_name`` asks for this module, API or weight."""
        return self._pattern is None or self._pattern.fullmatch(name) is not None


def _refused(name: str, value: object, expected: str) -> BadInput:
    return BadInput(f"{name} is {value!r}", where="DumpConfig", hint=f"expected {expected}")


def _kind(value: Any, kinds: tuple[type, ...], name: str, expected: str) -> Any:
    if not isinstance(value, kinds):
        raise _refused(name, value, expected)
    return value


def _choice(value: Any, allowed: tuple[Any, ...], name: str, expected: str) -> Any:
    if isinstance(value, bool) or value not in allowed:
        raise _refused(name, value, expected)
    return value


def _number_or_none(value: Any, name: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
        raise _refused(name, value, "a number from 0 on")
    return None if value is None else int(value)


def _tokens(value: Any) -> tuple[int, ...]:
    if value is None:
        return (0,)
    ok = isinstance(value, list | tuple | range)
    if not ok or not all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value):
        raise _refused("token_range", value, "a list of tokens such as [0, 1, 2]; the prompt is 0")
    return tuple(value)


def _classes(value: Any) -> tuple[type, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(one, type) for one in value):
        raise _refused("module_list", value, "a list of module classes such as [torch.nn.Linear]")
    return tuple(value)


def _functions(value: Any) -> tuple[Callable[..., Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(callable(one) for one in value):
        raise _refused("api_list", value, "a list of functions such as [torch.matmul]")
    return tuple(value)


def _modes(value: Any) -> tuple[str, ...]:
    if value is None:
        return ("module",)
    modes = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list | tuple) else (value,)
    if not modes or any(one not in _MODES for one in modes):
        raise _refused("mode", value, '"module", "api" or a list of both')
    return tuple(dict.fromkeys(modes))


def _glob(text: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in text.split("*")), re.DOTALL)


class DumpHandle:
    """What register_hook returns. Removing it takes every hook off the model and finishes the files."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    @property
    def path(self) -> Path:
        """The folder of this process's tokens."""
        return Path(self._recorder.folder)

    def flush(self) -> None:
        """Wait until everything recorded so far is on disk."""
        self._recorder.engine.flush()

    def remove(self) -> None:
        """Stop recording this model."""
        self._recorder.detach()

    def __enter__(self) -> DumpHandle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


def register_hook(model: Any, config: DumpConfig, hook_type: str = "dump_data") -> DumpHandle:
    """Record the calls of ``model`` as ``config`` says. Several models and configurations may be at work at a time."""
    import torch

    from twinprobe._record.llm.recorder import LlmRecorder
    from twinprobe._record.torch.recorder import seed_all

    if not isinstance(model, torch.nn.Module):
        raise BadInput(f"the model is {type(model).__name__}, not a torch.nn.Module", where="register_hook")
    if not isinstance(config, DumpConfig):
        raise BadInput(f"the configuration is {type(config).__name__}, not a DumpConfig", where="register_hook")
    if hook_type != "dump_data":
        raise BadInput(f"hook_type is {hook_type!r}", where="register_hook", hint='only "dump_data" is known')
    if config.seed is not None:
        os.environ |= {
            "LCCL_DETERMINISTIC": "1",
            "HCCL_DETERMINISTIC": "true",
            "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
            "ATB_LLM_LCOC_ENABLE": "0",
        }
        seed_all(config.seed, mode=True, rm_dropout=False)
    try:
        recorder = LlmRecorder(model, config)
        recorder.attach()
    except OSError as error:
        raise BadInput(f"cannot be written to: {error.strerror}", where=config.dump_path) from error
    return DumpHandle(recorder)
