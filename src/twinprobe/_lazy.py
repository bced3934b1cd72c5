"""Packages that take long to import. They are imported when something of them is used for the first time."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["polars"]


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        module = import_module(self.__name__)
        self.__dict__.update(vars(module))  # what it has is found without this from here on
        return getattr(module, name)


if TYPE_CHECKING:
    import polars
else:
    polars = _Lazy("polars")
