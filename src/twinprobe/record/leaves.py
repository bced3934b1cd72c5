"""What a call took and gave, captured on the training thread as a tree that nothing can change later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from twinprobe.record.rows import Leaf

_DEPTH_LIMIT = 400
_PLAIN = frozenset({int, float, bool, str, type(None)})

Foreign = Callable[[Any, str | None], Any]
Failed = Callable[[Any, Exception], Any]
NOT_MINE = object()


def remark_of(error: BaseException) -> str:
    """What marks a place of the dump that the recorder failed at."""
    return f"not recorded ({type(error).__name__}; see dump_error_info.log)"


def unrecorded(value: Any, error: BaseException) -> Leaf:
    """What stands in the dump for a value that could not be captured."""
    return Leaf({"type": type(value).__name__, "value": None, "remark": remark_of(error)})


class Capturer:
    """Turns live values into a tree of plain containers, scalars, Notes and Leaves that nothing can change later.

    ``foreign`` knows the framework's own types (tensors first of all) and answers NOT_MINE for the rest. ``direct`` is
    the short way for the commonest types. ``failed`` is told of a value that cannot be captured, and gives what stands
    for it: the rest of the call is recorded.
    """

    def __init__(
        self, foreign: Foreign, failed: Failed, direct: Mapping[type, Callable[[Any], Any]] | None = None
    ) -> None:
        self._foreign = foreign
        self._failed = failed
        self._direct = direct or {}

    def __call__(self, value: Any, key: str | None = None, depth: int = 0) -> Any:
        kind = type(value)
        try:
            direct = self._direct.get(kind)
            if direct is not None:
                return direct(value)
            if kind in _PLAIN and not (key == "device" and kind is str):
                return value
            if kind is list or kind is tuple:
                return [self(item, None, depth + 1) for item in value] if depth < _DEPTH_LIMIT else None
            if kind is dict:
                return self.mapping(value, depth)
            found = self._foreign(value, key)
            return self._rest(value, depth) if found is NOT_MINE else found
        except Exception as error:
            return self._failed(value, error)

    def mapping(self, value: Mapping[Any, Any], depth: int = 0) -> dict[str, Any] | None:
        """A mapping with every key as text; a key such as ``dtype`` tells what its value means."""
        if depth >= _DEPTH_LIMIT:
            return None
        return {str(key): self(item, str(key), depth + 1) for key, item in value.items()}

    def _rest(self, value: Any, depth: int) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):  # a Hugging Face ModelOutput is one
            pairs = ((item.name, getattr(value, item.name, None)) for item in dataclasses.fields(value))
            return {name: self(item, name, depth + 1) for name, item in pairs}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return {str(name): self(getattr(value, name), str(name), depth + 1) for name in value._fields}
        if isinstance(value, list | tuple):
            return [self(item, None, depth + 1) for item in value]
        if isinstance(value, Mapping):
            return self.mapping(value, depth)
        return _python_leaf(value)


def _python_leaf(value: Any) -> Any:
    if isinstance(value, np.generic):
        return Leaf({"type": type(value).__name__, "value": _json_scalar(value.item())})
    if isinstance(value, slice):
        bounds = [item if isinstance(item, int) else None for item in (value.start, value.stop, value.step)]
        return Leaf({"type": "slice", "value": bounds})
    if value is Ellipsis:
        return Leaf({"type": "ellipsis", "value": "..."})
    if isinstance(value, bool | int | float | str):  # subclasses: an IntEnum, a str Enum
        plain = next(kind for kind in (bool, int, float, str) if isinstance(value, kind))
        return plain(value)
    return None


def _json_scalar(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
