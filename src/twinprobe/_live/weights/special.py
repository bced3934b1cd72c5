"""Rules of the user's own for layers that TwinProbe cannot copy by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from twinprobe._live.frameworks import framework_of
from twinprobe.errors import BadInput

Named = type | str
Init = Callable[[Any, Any], object]

# Newest last. The function takes (target, source), whatever the call form.
_RULES: list[tuple[str | None, Named, str | None, Named, Init]] = []
_FRAMEWORKS = ("torch", "paddle", "mindspore")


@overload
def add_special_init(target: Named, source: Named, /) -> Callable[[Init], Init]: ...
@overload
def add_special_init(target: Named, source: Named, function: Init, /) -> Init: ...
@overload
def add_special_init(base_framework: str, base: Named, raw_framework: str, raw: Named, /) -> Callable[[Init], Init]: ...
@overload
def add_special_init(base_framework: str, base: Named, raw_framework: str, raw: Named, function: Init, /) -> Init: ...
@overload
def add_special_init(*, paddle_name: Named, torch_name: Named, func: Init) -> Init: ...
def add_special_init(*given: Any, **named: Any) -> Any:
    """Copy the weights of a pair of classes with a function of your own.

    Either `add_special_init(TargetClass, SourceClass, function)`, where `function(target, source)` sets the weights of
    the target, or `add_special_init("torch", Base, "paddle", Raw, function)`, where `function(base, raw)` sets those of
    raw. A class is given as such or by its name; subclasses follow the rule. Without the function it is a decorator.
    """
    if named.keys() == {"paddle_name", "torch_name", "func"} and not given:
        given = (named["paddle_name"], named["torch_name"], named["func"])
    elif named:
        raise BadInput(f"add_special_init got {', '.join(named)}", hint="give the classes and the function by position")
    if len(given) in (2, 4):

        def register(function: Init) -> Init:
            _register(*given, function)
            return function

        return register
    if len(given) not in (3, 5) or not callable(given[-1]):
        raise BadInput(
            "add_special_init takes two classes and a function",
            hint="add_special_init(TargetClass, SourceClass, function), or with the framework before each class",
        )
    return _register(*given)


def _register(*given: Any) -> Init:
    *names, function = given
    if len(names) == 2:
        target, source = names
        rule: tuple[str | None, Named, str | None, Named, Init] = (None, target, None, source, function)
    else:
        base_framework, base, raw_framework, raw = names
        for framework in (base_framework, raw_framework):
            if framework not in _FRAMEWORKS:
                raise BadInput(f"unknown framework {framework!r}", hint=f"one of {', '.join(_FRAMEWORKS)}")
        rule = (raw_framework, raw, base_framework, base, lambda target, source: function(source, target))
    for named in (rule[1], rule[3]):
        if not isinstance(named, (type, str)):
            raise BadInput(f"{named!r} is neither a class nor the name of one")
    _RULES.append(rule)
    known: Init = function
    return known


def has_rules() -> bool:
    """Whether the user has registered any."""
    return bool(_RULES)


def special_init(target: Any, source: Any) -> Init | None:
    """The rule for two layers: the one nearest in the class hierarchies, the newest of several."""
    found: list[tuple[int, int, Init]] = []
    for age, (target_framework, target_class, source_framework, source_class, function) in enumerate(_RULES):
        distance = (
            _distance(target, target_class, target_framework),
            _distance(source, source_class, source_framework),
        )
        if None not in distance:
            found.append((sum(filter(None, distance)), -age, function))
    return min(found, key=lambda rule: rule[:2])[2] if found else None


def _distance(layer: Any, named: Named, framework: str | None) -> int | None:
    if framework is not None and framework_of(layer) != framework:
        return None
    for distance, kind in enumerate(type(layer).__mro__):
        if kind is named or kind.__name__ == named:
            return distance
    return None
