"""White and black lists of layers: which of them a model made by create_model records."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twinprobe._live.frameworks.adapter import adapter_of
from twinprobe._record.calls import NameFilter
from twinprobe._runs.names import parse_op
from twinprobe.errors import BadInput

_MODES = ("self", "sublayers", "all")


class LayerLists:
    """Paths of layers of one model. A white list, once there is one, makes the black list count no more."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.white: set[str] = set()
        self.black: set[str] = set()
        self.unassigned: set[str] = set()  # weights that are neither copied nor dumped
        self.mapped: set[str] = set()  # weights that only a rule of the mapped layer can tell apart

    def add(self, which: set[str], layers: Any, mode: str) -> None:
        """Put layers (or one) on a list: themselves, what is inside them, or all of it."""
        if mode not in _MODES:
            raise BadInput(f"mode is {mode!r}", hint=f"allowed: {', '.join(_MODES)}")
        wanted = list(layers) if isinstance(layers, list | tuple | set) else [layers]
        known = dict(adapter_of(self._model).modules(self._model))
        for layer in wanted:
            path = next((path for path, one in known.items() if one is layer), None)
            if path is None:
                raise BadInput(
                    f"{type(layer).__name__} is not a layer of this model", hint="give layers of the model itself"
                )
            inside = {one for one in known if one != path and (not path or one.startswith(f"{path}."))}
            which |= {"self": {path}, "sublayers": inside, "all": {path} | inside}[mode]

    def add_class(self, which: set[str], kind: Any, mode: str) -> None:
        """Put every layer of a class on a list."""
        self.add(which, [one for _, one in adapter_of(self._model).modules(self._model) if isinstance(one, kind)], mode)

    def wants(self, path: str) -> bool:
        """Whether a layer is recorded."""
        return path in self.white if self.white else path not in self.black

    def apply(self, recorder: Any) -> None:
        """Let a recorder go by the lists."""
        if self.white or self.black:
            recorder.engine.filter = _ListFilter(recorder.config, self)
            recorder.takes_all = False


class _ListFilter(NameFilter):
    def __init__(self, config: Any, lists: LayerLists) -> None:
        super().__init__(config)
        self._lists = lists
        self.everything = self.takes_all = False

    def wants(self, name: str, ancestors: Iterable[str] = ()) -> bool:
        del ancestors
        op = parse_op(name)
        return not op.is_module or self._lists.wants(op.body)
