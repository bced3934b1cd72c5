"""Which function of the framework an API was called from, between the module around it and the call."""

from __future__ import annotations

import re

from twinprobe.align.side import Side

_FRAME = re.compile(r"File (?P<file>.+?), line \d+, in (?P<function>[^,\n]+)")
_FRAMEWORK = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|mindspore|mindtorch|paddle)[/\\]")
_TOOLS = re.compile(r"msprobe|mindspeed|twinprobe", re.IGNORECASE)
# Files through which every call of a module or a hooked function passes: they say nothing about it.
_PLUMBING = re.compile(
    r"[/\\](?:nn[/\\]cell\.py|graph[/\\]_utils[/\\].*|common[/\\](?:api|hook_handle|jit_.*)\.py"
    r"|nn[/\\]modules[/\\]module\.py|utils[/\\]_contextlib\.py|utils[/\\]checkpoint\.py|_dynamo[/\\].*"
    r"|autograd[/\\](?:function|graph|grad_mode)\.py|nn[/\\]layer[/\\]layers\.py)$"
)
_MODULE_BODY = frozenset({"forward", "construct"})
_SILENT = frozenset({"__call__", "<lambda>", "wrapper", "inner", "decorate_context"})
_WITHOUT_STACK = frozenset({"Primitive", "Jit"})


class StackScopes:
    """The framework function around each API call; empty text where user code called it directly."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._functions: dict[int, str] = {}

    def of(self, op: int) -> str:
        """The outermost function of the framework inside the module that made this call."""
        if self._side.head_of[op].prefix in _WITHOUT_STACK:
            return ""
        stacks = self._side.run.stacks
        at = stacks.of_op.get(self._side.ops[op])
        if at is None:
            return ""
        if at not in self._functions:
            self._functions[at] = framework_function(stacks.frames[at])
        return self._functions[at]


def framework_function(frames: list[str]) -> str:
    """Walk out from the call: the last function of the framework before the module's own body or user code."""
    name = ""
    for frame in frames:
        found = _FRAME.match(frame)
        if found is None:
            break
        file, function = found["file"], found["function"].strip()
        if _TOOLS.search(file) or _PLUMBING.search(file):
            continue
        if not _FRAMEWORK.search(file) or function in _MODULE_BODY:
            break
        if function not in _SILENT:
            name = function
    return name
