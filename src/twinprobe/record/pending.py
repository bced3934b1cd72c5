"""Communication that is still on its way: its tensors have a shape, and values nobody may look at yet."""

from __future__ import annotations

from typing import Any

from twinprobe.record.rows import Leaf, Note


def is_pending(result: Any) -> bool:
    """Whether a collective gave a handle to wait for. Waiting here would change the order of the run."""
    if isinstance(result, list | tuple):
        return any(map(is_pending, result))
    if not callable(getattr(result, "wait", None)):
        return False
    completed = getattr(result, "is_completed", None)
    return not (callable(completed) and completed())


def without_values(value: Any) -> Any:
    """The same tree, its notes without measurements and files."""
    if isinstance(value, Note):
        return Note(value.type, value.dtype, value.shape, None, value.requires_grad, False, None, value.extra)
    if isinstance(value, list):
        return [without_values(item) for item in value]
    if isinstance(value, Leaf):
        return Leaf({key: without_values(item) for key, item in value.json.items()})
    return value
