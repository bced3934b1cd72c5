"""Parents that a recorder could not know, put right before the tree is built.

A backward call starts when a gradient arrives, often before (or without) its enclosing module's own backward; an
activation that is recomputed runs its module's forward once more in the middle of the backward pass.
"""

from __future__ import annotations

import re

from twinprobe.runs.names import CONTAINERS, GRADIENTS, is_number
from twinprobe.runs.run import Run
from twinprobe.runs.stacks import Stacks

Parents = dict[str, str | None]

_FRAME = re.compile(r"File ([^,]*), line \d+, in (\w+)")
_RECOMPUTE_FILE = re.compile(r"checkpoint|recompute|tensor_parallel/random")
_RECOMPUTE_FUNCTIONS = frozenset({"backward", "unpack_hook", "recompute_fn", "recompute", "_recompute", "re_forward"})


def repaired_parents(run: Run) -> Parents:
    """The enclosing call of each call, gradients of parameters included; None stands for the root."""
    known = run.parents
    again = _recomputing_stacks(run.stacks)
    repaired: Parents = {}
    for name, parent in known.items():
        if ".backward" in name:
            repaired[name] = _backward_parent(name, parent, known)
        elif parent is None and again and run.stacks.of_op.get(name) in again and is_module(name):
            repaired[name] = turned(known.get(with_call(name, "0")), known)
        else:
            repaired[name] = parent
    _add_gradients(repaired, run.ops)
    return repaired


def is_module(name: str) -> bool:
    """Whether a name is that of a module's call."""
    return name.partition(".")[0] in CONTAINERS


def forward_twin(name: str) -> str:
    """The forward call that a backward call belongs to."""
    head, found, tail = name.rpartition(".backward")
    return f"{head}.forward{tail}" if found else name


def with_call(name: str, call: str) -> str:
    """The same module's call with another number."""
    return f"{name.rpartition('.')[0]}.{call}"


def turned(parent: str | None, known: Parents) -> str | None:
    """The backward call of a forward module call, where one was recorded."""
    if parent is None:
        return None
    head, found, tail = parent.rpartition(".forward")
    if not found:
        return parent if parent in known else None
    for name in (f"{head}.backward{tail}", f"{head}.backward.0"):
        if name in known:
            return name
    return None


def _backward_parent(name: str, parent: str | None, known: Parents) -> str | None:
    """The recorded one, unless there is none, its path says no, or the forward call lay deeper inside of it."""
    twin = forward_twin(name)
    if twin not in known and is_module(name):
        twin = with_call(twin, "0")
    better = turned(known.get(twin), known)
    if twin not in known or better == name:
        return parent
    if parent is None or (is_module(name) and not _encloses(parent, name)):
        return better
    # MindSpore hangs all that follows an embedding's first gradient on the module around the embedding.
    return better if better and is_module(parent) and _path(better).startswith(_path(parent) + ".") else parent


def _encloses(parent: str, name: str) -> bool:
    """Whether the parent's path is the beginning of the module's path; in-place modules are seen elsewhere."""
    if not is_module(parent):
        return True
    return _path(name).startswith(_path(parent) + ".") or _path(parent) == parent.partition(".")[0]


def _path(name: str) -> str:
    return name.rsplit(".", 3)[0]


def _recomputing_stacks(stacks: Stacks) -> set[int]:
    """The call sites that lie inside the recomputation of a checkpoint."""
    return {at for at, frames in enumerate(stacks.frames) if any(_recomputes(frame) for frame in frames)}


def _recomputes(frame: str) -> bool:
    if (
        "backward" not in frame
        and "recompute" not in frame
        and "unpack_hook" not in frame
        and "re_forward" not in frame
    ):
        return False
    found = _FRAME.match(frame)
    return found is not None and found[2] in _RECOMPUTE_FUNCTIONS and _RECOMPUTE_FILE.search(found[1]) is not None


def _add_gradients(parents: Parents, ops: list[str]) -> None:
    """Put the gradients of a module's parameters under its last backward, else its last forward."""
    gradients = [name for name in ops if GRADIENTS in name and GRADIENTS in name.rsplit(".", 2)[-2:]]
    if not gradients:
        return
    last: dict[str, str] = {}
    for name in parents:
        if is_module(name):
            head, _, call = name.rpartition(".")
            if is_number(call) and (head not in last or int(call) > int(last[head].rpartition(".")[2])):
                last[head] = name
    for name in gradients:
        module = name.rpartition(f".{GRADIENTS}")[0]
        parents.setdefault(name, last.get(f"{module}.backward") or last.get(f"{module}.forward"))
