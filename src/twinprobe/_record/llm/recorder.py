"""Recording the inference of a torch model with the recorder of training runs: other folders, tokens for steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from twinprobe._record.calls import ModuleCall
from twinprobe._record.config import RecordConfig
from twinprobe._record.entries import Capturer, Entry
from twinprobe._record.llm.config import DumpConfig
from twinprobe._record.llm.folders import TokenEngine, device_folder, write_json
from twinprobe._record.torch.hooks import ModuleHooks, watched_modules
from twinprobe._record.torch.recorder import TorchRecorder
from twinprobe._record.torch.tensors import TensorRegistry
from twinprobe._runs.whole_files import write_whole

# model_tree.json: all modules of a model, in the order of their first calls, those never called marked.

ROOT = "root"


def model_tree(model: torch.nn.Module, first_calls: Mapping[str, int] | None) -> dict[str, Any]:
    """The tree as it stands in the file; without calls it is in the order of definition and nothing is marked."""
    tree, _ = _node(ROOT, model, first_calls)
    if first_calls is not None:
        tree["order"] = "execution"
    return tree


def _node(name: str, module: torch.nn.Module, calls: Mapping[str, int] | None) -> tuple[dict[str, Any], int | None]:
    """A module and when it, or anything in it, was first called."""
    children = [_node(f"{name}.{child}", part, calls) for child, part in module.named_children()]
    children.sort(key=lambda child: (child[1] is None, child[1] or 0))  # stable: without calls, as they are defined
    node: dict[str, Any] = {"name": name, "type": type(module).__name__, "children": [child for child, _ in children]}
    times = [time for time in ((calls or {}).get(name), *(time for _, time in children)) if time is not None]
    if calls is not None and not times:
        node["called"] = False
    return node, min(times, default=None)


_PARTS = ("input_args", "input_kwargs", "output")


class TokenHooks(ModuleHooks):
    """Module hooks that keep what the layout has: arguments as they are, and outputs in their own nesting."""

    def __init__(self, recorder: LlmRecorder) -> None:
        super().__init__(recorder)
        self._llm = recorder

    def _enter(self, call: ModuleCall, args: Any, kwargs: Any, frame: FrameType) -> None:
        del frame  # the layout has no stacks
        recorder = self._llm
        name = recorder.module_name(call)
        recorder.first_calls.setdefault(call.info.prefix.removesuffix("."), len(recorder.first_calls))
        if not recorder.wants_module(call.info.module, name):
            return
        call.parts = {}
        if recorder.inputs:
            call.parts["input_args"] = [recorder.capture(item) for item in args]
            call.parts["input_kwargs"] = recorder.capture.mapping(kwargs)

    def _leave(self, call: ModuleCall, output: Any, failed: bool) -> None:
        if call.parts is None:
            return
        recorder = self._llm
        if recorder.outputs and not failed:
            call.parts["output"] = recorder.capture(output)
        recorder.emit(recorder.module_name(call), call.parts, is_root=call.parent is None)


class LlmRecorder(TorchRecorder):
    """One model under one DumpConfig. Every call of the model is a token."""

    tensor_suffix = ".pth"

    def __init__(self, model: torch.nn.Module, config: DumpConfig) -> None:
        self.model = model
        self.wanted = config
        super().__init__(_record_config(config))
        self.engine.close()  # the one of training runs; ours has other folders
        self.device = device_name(model)
        # A CPU has no device number: it gets the one that the user gives.
        number = config.device_id if self.device == "cpu" and config.device_id is not None else ""
        self.top, self.folder = device_folder(config.dump_path, config.layout, f"{self.device}{number}")
        modules = model.named_modules()
        self.types = {f"{ROOT}.{path}" if path else ROOT: type(module).__name__ for path, module in modules}
        statistics = config.dump_statistics_mode > 0
        analysis = self.top / "tensor_analyze.csv" if config.analyze else None
        self.tokens = self.engine = TokenEngine(
            self.config, self, self.folder, statistics=statistics, analysis=analysis, types=self.types
        )
        self.registry = TensorRegistry(values=statistics or config.analyze, digest=None)
        self.save = config.dump_statistics_mode != 1
        self.capture = Capturer(self.values, self.failed)
        self.inputs, self.outputs = config.wants_inputs, config.wants_outputs
        self.first_calls: dict[str, int] = {}
        self.modules: TokenHooks = TokenHooks(self)
        self._apis = {getattr(function, "__name__", "") for function in config.api_list}
        self._api_counts: dict[str, int] = {}
        self._last: tuple[str, dict[str, Any]] | None = None
        self._depth = 0
        asked = f"{self.device.rstrip('0123456789')}{config.device_id}"
        self._is_asked = config.device_id is None or self.device in ("cpu", asked)

    # -- beginning and end --------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Register all hooks and write what is known before the first call."""
        if self.wanted.dump_weight:
            self._write_weights()
        write_json(self.folder / "model_tree.json", model_tree(self.model, None))
        if not self._is_asked:
            return
        handles = self.modules._handles
        handles.append(self.model.register_forward_pre_hook(self._begin, with_kwargs=True))
        self.modules.watch(self.model, f"{ROOT}.")
        for path, module, compiled in watched_modules(self.model):
            if id(module) not in self.modules.infos:
                self.modules.watch(module, f"{ROOT}.{path}.", compiled)
        handles.append(self.model.register_forward_hook(self._end, with_kwargs=True, always_call=True))

    def detach(self) -> None:
        """Remove all hooks and finish the files."""
        self.mode.detach()
        self.modules.detach()
        if self.engine.begun:
            self.engine.end()
        self.engine.close()

    def _begin(self, *_: Any) -> None:
        self._depth += 1
        if self._depth > 1:
            return
        self._api_counts.clear()
        self._last = None
        if self.engine.begin() and "api" in self.wanted.mode:
            self.mode.attach()

    def _end(self, *_: Any) -> None:
        self._depth -= 1
        if self._depth:
            return
        self.mode.detach()
        if self.engine.active:
            if self._last is not None:
                self._hand_over(*self._last)
            tree = model_tree(self.model, dict(self.first_calls))
            self.tokens.later(lambda: write_json(self.folder / "model_tree.json", tree))
        self.engine.next_step()

    # -- what hooks and the function mode ask -------------------------------------------------------------------------

    def module_name(self, call: ModuleCall) -> str:
        """The folder of a call: the module's name, and the number of the call if it is not the first of this token."""
        name = call.info.prefix.removesuffix(".")
        return name if call.number == 0 else f"{name}-{call.number}"

    def wants_module(self, module: torch.nn.Module, name: str) -> bool:
        """Whether the configuration asks for this module."""
        kinds = self.wanted.module_list
        if "module" not in self.wanted.mode and not self.wanted.dump_last_logits:
            return False
        return (not kinds or isinstance(module, kinds)) and self.wanted.wants_name(name.partition("-")[0])

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        """Asked by the function mode about an API, whose name is known by its third word from the end."""
        del ancestors
        if not self.engine.active or self.wanted.dump_last_logits:
            return False
        function = _function(name)
        if self._apis and function not in self._apis:
            return False
        return self.wanted.wants_name(f"{self._enclosing()}.{function}")

    def emit_forward(self, name: str, parts: dict[str, Any]) -> None:
        """Take over an API's entry from the function mode."""
        folder = f"{self._enclosing()}.{_function(name)}"
        number = self._api_counts.get(folder, 0)
        self._api_counts[folder] = number + 1
        self.types.setdefault(folder, _function(name))
        output = parts.get("output")
        if isinstance(output, list) and len(output) == 1:
            parts = {**parts, "output": output[0]}
        if not self.outputs:
            parts.pop("output", None)
        self._hand_over(folder if not number else f"{folder}.{number}", parts)

    def emit(self, name: str, parts: dict[str, Any], *, is_root: bool) -> None:
        """Take over a module's entry."""
        if not self.wanted.dump_last_logits:
            self._hand_over(name, parts)
        elif not is_root and "output" in parts:
            self._last = (name, {"output": parts["output"]})

    def _hand_over(self, name: str, parts: dict[str, Any]) -> None:
        self.engine.emit(Entry(f"{name}/", {key: parts[key] for key in _PARTS if key in parts}))

    def _enclosing(self) -> str:
        calls = self.modules.calls
        return calls[-1].info.prefix.removesuffix(".") if calls else ROOT

    def _write_weights(self) -> None:
        folder = self.folder / "weights"
        folder.mkdir(mode=0o750, exist_ok=True)
        for name, parameter in self.model.named_parameters():
            if self.wanted.wants_name(f"{ROOT}.{name}"):
                write_whole(folder / f"{ROOT}.{name}.pth", partial(_save, parameter.detach().cpu().clone()), sync=True)


def _save(tensor: torch.Tensor, path: Path) -> None:
    with path.open("wb") as stream:
        torch.save(tensor, stream)


def _function(name: str) -> str:
    """``matmul`` of ``Torch.matmul.3.forward``."""
    return name.rsplit(".", 2)[0].partition(".")[2]


def _record_config(config: DumpConfig) -> RecordConfig:
    return RecordConfig(
        dump_path=config.dump_path,
        task="statistics" if config.dump_statistics_mode == 1 else "tensor",
        level="mix" if "api" in config.mode else "L0",
        steps=frozenset(config.token_range),
        extra_info=False,
        risk_level="ALL",
        data_mode=frozenset({"forward", *(["input"] if config.wants_inputs else []),
                             *(["output"] if config.wants_outputs else [])}),
    )  # fmt: skip


def device_name(model: torch.nn.Module) -> str:
    """``npu0``, ``cuda1`` or ``cpu``: where the last parameter is."""
    device = next((parameter.device for parameter in reversed(list(model.parameters()))), None)
    return "cpu" if device is None or device.type == "cpu" else f"{device.type}{device.index or 0}"
