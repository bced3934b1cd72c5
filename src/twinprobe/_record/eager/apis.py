"""API calls: a wrapper around each function, silent inside another one."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from operator import is_
from types import FrameType, FunctionType, ModuleType
from typing import Any, ClassVar

from twinprobe._record.calls import Api, ApiCall, Site
from twinprobe._record.eager.host_rows import RowCache
from twinprobe._record.entries import is_pending
from twinprobe._record.perturb import computes


def functions_of(
    space: Any, names: Iterable[str], api_of: Callable[[str], Api], homes: tuple[str, ...] = ("",)
) -> Iterator[Site]:
    """The public Python functions of a module by these names; ``homes`` are the modules that may define them."""
    for name in sorted(names):
        function = None if name.startswith("_") else getattr(space, name, None)
        if isinstance(function, FunctionType) and str(function.__module__).startswith(homes):
            yield Site(space, name, function, api_of(name))


class ApiWatch:
    """Wraps functions and records their calls."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder

    def wrap(self, site: Site) -> Any:
        """The function to put in the original's place."""
        recorder, api, tree_rank = self._recorder, site.api, self._recorder.tree_rank
        original = writing(recorder.row_cache)(site.original) if api.in_place else site.original

        @functools.wraps(original)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if recorder.busy or recorder.in_api or not recorder.listening() or api.rank > tree_rank:
                return original(*args, **kwargs)
            return self.record(api, original, args, kwargs, sys._getframe(1))

        return recorded

    def record(self, api: Api, original: Any, args: Any, kwargs: Any, frame: FrameType, skip: int = 0) -> Any:
        """Call and record. ``skip`` leaves out leading arguments, such as the primitive itself."""
        recorder = self._recorder
        recorder.busy = True
        call = ApiCall(recorder, api, frame)
        try:
            recorder.work("recording an API's inputs", call.before, args[skip:], kwargs)
            watch = call.watch
            if watch is not None:
                args, kwargs = (*args[:skip], *watch.args), watch.kwargs
            recorder.busy, recorder.in_api = False, True
            try:
                output = original(*args, **kwargs)
            except BaseException:
                if watch is not None:
                    watch.cancel()
                raise
            if recorder.perturbation is not None and computes(api):
                recorder.work("perturbing", recorder.perturbation.after, output, (args[skip:], kwargs), api.in_place)
            given = (*args[skip:], *kwargs.values()) if api.collective else output
            pending = "istributed." in api.prefix and is_pending(output)
            recorder.work("recording an API's outputs", call.after, given, pending)
            if pending:
                recorder.row_cache.forget()  # what was measured is still being written
            return output
        finally:
            recorder.busy = recorder.in_api = False


# Replacing functions where they are found, and putting every one of them back.

_MISSING = object()


class Patches:
    """Functions are replaced in the framework's namespaces and wherever else they were imported by name."""

    def __init__(self, wrap: Callable[[Site], Any], own_package: str, scanned: tuple[str, ...]) -> None:
        self._wrap = wrap
        self._own = (own_package, "twinprobe")
        self._inside = scanned
        self._wrappers: dict[tuple[int, str], tuple[Site, Any]] = {}
        self._by_original: dict[int, Any] = {}
        self._scanned: dict[str, int] = {}
        self._modules = 0
        self._sites: Iterable[Site] | None = None
        # By the number of a namespace: itself, and what it gets under which names. Homes of functions, and importers.
        self._spaces: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._importers: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        self._classes: list[tuple[Any, str, Any]] = []
        self._before: list[tuple[dict[str, Any], tuple[Any, ...], dict[str, Any]]] = []
        self._changed: list[tuple[Any, str, Any, Any]] = []
        self._suspended = 0
        self.attached = False

    def attach(self, sites: Iterable[Site]) -> None:
        """Replace everything."""
        if sites is not self._sites:
            self._sites = sites
            self._learn(sites)
        self._scan()
        self.attached = True
        self._put()

    def _learn(self, sites: Iterable[Site]) -> None:
        for site in sites:
            key = (id(site.owner), site.attribute)
            earlier = self._wrappers.get(key)
            if earlier is None or earlier[0].original is not site.original:
                wrapper = self._wrap(site)
                self._wrappers[key] = (site, wrapper)
                self._by_original.setdefault(id(site.original), wrapper)
        self._spaces.clear()
        self._classes.clear()
        for site, wrapper in self._wrappers.values():
            if isinstance(site.owner, ModuleType):
                names = vars(site.owner)
                self._spaces.setdefault(id(names), (names, {}))[1][site.attribute] = wrapper
            else:
                self._classes.append((site.owner, site.attribute, wrapper))

    def detach(self) -> None:
        """Put everything back."""
        if self.attached:
            self._take()
            self.attached = False
            self._suspended = 0

    remove = detach

    def suspend(self) -> None:
        """The originals, for a while."""
        self._suspended += 1
        if self._suspended == 1 and self.attached:
            self._take()

    def resume(self) -> None:
        """End of suspend()."""
        self._suspended = max(0, self._suspended - 1)
        if self._suspended == 0 and self.attached:
            self._put()

    def _put(self) -> None:
        for space, wrappers in chain(self._spaces.values(), self._importers.values()):  # thousands: a dict at a time
            self._before.append((space, _values(space, wrappers), wrappers))
            space.update(wrappers)
        for owner, attribute, wrapper in self._classes:
            own = vars(owner).get(attribute, _MISSING)
            try:
                setattr(owner, attribute, wrapper)
            except (AttributeError, TypeError):
                continue  # this class forbids it
            self._changed.append((owner, attribute, own, wrapper))

    def _take(self) -> None:
        for owner, attribute, own, wrapper in reversed(self._changed):
            if vars(owner).get(attribute) is not wrapper:
                continue  # the program has replaced it since
            if own is _MISSING:
                delattr(owner, attribute)
            else:
                setattr(owner, attribute, own)
        self._changed.clear()
        for space, before, wrappers in reversed(self._before):
            if _MISSING not in before and all(map(is_, _values(space, wrappers), wrappers.values())):
                space.update(zip(wrappers, before, strict=True))
                continue
            for (name, wrapper), own in zip(wrappers.items(), before, strict=True):
                if space.get(name) is not wrapper:
                    continue  # the program has replaced it since
                if own is _MISSING:
                    del space[name]
                else:
                    space[name] = own
        self._before.clear()

    def _scan(self) -> None:
        """Names that other modules imported: ``from mindspore.ops import relu``. Modules seen before are skipped."""
        everywhere = self._modules != len(sys.modules)
        self._modules = len(sys.modules)
        for module_name in list(sys.modules) if everywhere else ["__main__"]:
            module = sys.modules.get(module_name)
            names = getattr(module, "__dict__", None)
            if names is None or not self._is_scanned(module_name, names):
                continue
            if self._scanned.get(module_name) == len(names) and module_name != "__main__":
                continue
            self._scanned[module_name] = len(names)
            if self._by_original.keys().isdisjoint(map(id, list(names.values()))):
                continue
            _, wrappers = self._importers.setdefault(id(names), (names, {}))
            _, at_home = self._spaces.get(id(names), (names, {}))
            for name, value in list(names.items()):
                wrapper = self._by_original.get(id(value))
                if wrapper is not None and name not in at_home:
                    wrappers.setdefault(name, wrapper)

    def _is_scanned(self, module_name: str, names: dict[str, Any]) -> bool:
        """Compiled modules of the framework have no file: what they hold is called where it was imported to."""
        if module_name.partition(".")[0] not in self._own:
            return True
        return module_name.startswith(self._inside) and "__file__" in names


def _values(space: dict[str, Any], names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(map(space.get, names, repeat(_MISSING)))


class Replaced:
    """A function replaced by another one, until remove(). Several may stand on top of each other, and go in any
    order: the one above then puts back what was below."""

    _standing: ClassVar[dict[tuple[int, str], list[Replaced]]] = {}

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self._owner, self._name, self._own = owner, name, vars(owner).get(name, _MISSING)
        setattr(owner, name, make(getattr(owner, name)))
        self._standing.setdefault((id(owner), name), []).append(self)

    def remove(self) -> None:
        """Put the original back, where it was: in a class it may be inherited."""
        stack = self._standing[id(self._owner), self._name]
        at = stack.index(self)
        stack.remove(self)
        if at < len(stack):
            stack[at]._own = self._own
        elif self._own is _MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)


def around(before: Callable[[], None], after: Callable[[], None] = lambda: None) -> Callable[[Any], Any]:
    """A maker of functions that call ``before`` and ``after`` around the original."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def run(*args: Any, **kwargs: Any) -> Any:
            before()
            try:
                return original(*args, **kwargs)
            finally:
                after()

        return run

    return make


def calling(called: Callable[[Any, Any, Any, Any], Any]) -> Callable[[Any], Any]:
    """A maker of methods that hand a call over: ``called(original, owner, args, kwargs)``."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def call(owner: Any, *args: Any, **kwargs: Any) -> Any:
            return called(original, owner, args, kwargs)

        return call

    return make


def writing(cache: RowCache) -> Callable[[Any], Any]:
    """A maker of functions that write to a tensor: earlier measurements no longer hold after them."""
    return around(cache.settle, cache.forget)
