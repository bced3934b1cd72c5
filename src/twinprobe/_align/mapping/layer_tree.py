"""Paths of one run in the words of the other: the walk down the module tree under class-scoped rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinprobe._align.calls import RunCalls, split
from twinprobe._align.mapping.yaml_files import KINDS, Mapping, Text, location, read_yaml, text_of
from twinprobe._runs.names import is_number
from twinprobe.errors import BadInput

# The layer mapping file: per class, which name inside it is called what in the other run.

TOP = "TopLayer"
_OLD_TOP = "Cell"
# Layer mappings are written by hand; each part of a name is a text of its own in memory.
_MOST_PARTS = 1 << 18
_HINT = "write a class, and under it 'name: name in the other run'"


@dataclass(frozen=True, eq=False)
class LayerRule:
    """Inside ``cls``, the path ``left`` (one or more segments) is ``right`` in the other run."""

    cls: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    line: int

    @property
    def is_number(self) -> bool:
        """Whether the rule names a layer by its number."""
        return self.left[-1].isdecimal()


@dataclass
class LayerFile:
    """All rules by class, the longest left side first."""

    path: Path
    classes: dict[str, list[LayerRule]] = field(default_factory=dict)
    class_lines: dict[str, int] = field(default_factory=dict)
    early: list[tuple[int, str]] = field(default_factory=list)

    @property
    def rules(self) -> list[LayerRule]:
        """All rules in the order of the file."""
        return sorted((rule for rules in self.classes.values() for rule in rules), key=lambda rule: rule.line)


def read_layer_file(path: Path) -> LayerFile:
    """Read a layer mapping. ``Cell`` is the old name of ``TopLayer``; numbers are taken as text."""
    node = read_yaml(path)
    if not isinstance(node, Mapping):
        raise BadInput(f"holds {KINDS[type(node)]}, a mapping of classes was expected", where=path, hint=_HINT)
    file = LayerFile(path)
    parts = 0
    for written, (line, content) in node.items.items():
        cls = TOP if written == _OLD_TOP else written
        if isinstance(content, Text) and content.is_null:
            file.early.append((line, f"the class {written} names nothing"))
            continue
        if not isinstance(content, Mapping):
            raise BadInput(f"the class {written} holds {KINDS[type(content)]}", where=location(path, line), hint=_HINT)
        if cls in file.classes:
            file.early.append((line, f"{_OLD_TOP} and {TOP} are one: what is named twice is taken from the first"))
        rules = file.classes.setdefault(cls, [])
        known = {rule.left for rule in rules}
        file.class_lines.setdefault(cls, line)
        for left, (number, value) in content.items.items():
            right = text_of(path, value, f"the value of {left!r}")
            parts += left.count(".") + right.count(".") + 4
            if parts > _MOST_PARTS:
                raise BadInput("no layer mapping has so many names", where=location(path, number), hint=_HINT)
            rule = _rule(path, cls, left, right, number)
            if rule.left not in known:
                known.add(rule.left)
                rules.append(rule)
    for rules in file.classes.values():
        rules.sort(key=lambda rule: -len(rule.left))
    return file


def _rule(path: Path, cls: str, left: str, right: str, line: int) -> LayerRule:
    # People copy names from printed models, where the class follows in brackets.
    names = left.partition("(")[0].strip(), right.partition("(")[0].strip()
    if not all(names) or any("" in name.split(".") for name in names):
        raise BadInput(f"'{left}: {right}' does not name a layer on both sides", where=location(path, line), hint=_HINT)
    return LayerRule(cls, tuple(names[0].split(".")), tuple(names[1].split(".")), line)


# No model is nested deeper; a longer path in a dump is not taken apart.
MAX_DEPTH = 100
_STAGE_CLASS, _STAGE = "ParallelTransformer", "layers"


class ModuleTree:
    """The module paths of a run, the class at each, and every prefix that exists."""

    def __init__(self, side: RunCalls) -> None:
        self.side = side
        self.classes: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        for callee in side.modules:
            self.classes.setdefault(callee.body, callee.cls)
        self._parent_paths = {self.path_of(parent) for parent in set(side.run.parents.values()) if parent}
        self.prefixes: set[str] = {""}
        for leaf in [*self.classes, *self._parent_paths]:
            path = leaf if leaf.count(".") < MAX_DEPTH else ""
            while path not in self.prefixes:
                self.prefixes.add(path)
                path = path.rpartition(".")[0]
        self.words = {path.rpartition(".")[2] for path in self.prefixes}

    def path_of(self, op_name: str) -> str:
        """The attribute path of a module call; a parent outside the grammar (optimizer) is its own path."""
        path = self._paths.get(op_name)
        if path is None:
            number = self.side.number_of.get(op_name)
            if number is not None:
                path = self.side.callee_of[number].body
            else:
                name = split(op_name)[0]
                path = ".".join(name.split(".")[1:-1]) or name
            self._paths[op_name] = path
        return path

    def layer_name(self, path: str) -> str:
        """What a rule's class is compared with: the class, or the attribute's name where no call was recorded."""
        return self.classes.get(path) or path.rpartition(".")[2]

    def numbered(self) -> dict[str, list[int]]:
        """Containers with numbered children: path -> the numbers."""
        found: dict[str, set[int]] = {}
        for path in self.prefixes:
            parent, _, last = path.rpartition(".")
            if is_number(last):
                found.setdefault(parent, set()).add(int(last))
        return {path: sorted(numbers) for path, numbers in found.items()}


class Translator:
    """Translates paths of the left run and remembers where each rule led."""

    def __init__(self, tree: ModuleTree, file: LayerFile) -> None:
        self._tree = tree
        self._classes = file.classes
        self._longest = {cls: max(len(rule.left) for rule in rules) for cls, rules in file.classes.items() if rules}
        self._paths: dict[str, str] = {"": ""}
        # How deep a rule that begins above a path may reach: below that depth, a path is its parent's and one step.
        self._reach: dict[str, int] = {"": 0}
        # Rule -> the translated path it produced, for every place where it applied.
        self.applied: dict[LayerRule, list[str]] = {}

    def path(self, path: str) -> str:
        """A module's path in the other run's words."""
        known = self._paths.get(path)
        if known is None:
            if path.count(".") >= MAX_DEPTH:
                return path
            parent, _, last = path.rpartition(".")
            depth = parent.count(".") + 1 if parent else 0
            if self._reaches(parent, depth) <= depth:
                known = self._step(parent, last)
            else:
                known = ".".join(self._walk(TOP, path.split("."), ""))
            self._paths[path] = known
        return known

    def layer(self, path: str) -> str:
        """The class (or attribute) under which rules for the names inside a path stand; empty where there are none."""
        name = self._tree.layer_name(path) if path else TOP
        return name if name in self._classes else ""

    def inside(self, layer: str, names: list[str]) -> list[str]:
        """Names inside a layer (a framework function, an API) in the other run's words."""
        if not layer and (len(names) == 1 or names[0] not in self._classes):
            return names
        return self._walk(layer, names, None)

    def _reaches(self, path: str, depth: int) -> int:
        """The greatest depth to which a rule that begins above this path could reach."""
        if not path:
            return 0
        reach = self._reach.get(path)
        if reach is None:
            parent = path.rpartition(".")[0]
            above = self._reaches(parent, depth - 1)
            layer = self._tree.layer_name(parent) if parent else TOP
            reach = self._reach[path] = max(above, depth - 1 + self._longest.get(layer, 1))
        return reach

    def _step(self, parent: str, name: str) -> str:
        above = self.path(parent)
        layer = self._tree.layer_name(parent) if parent else TOP
        rule = self._rule(layer, [name], 0) if layer in self._classes else None
        last = ".".join(rule.right) if rule else name
        result = f"{above}.{last}" if above else last
        if rule is not None:
            self.applied.setdefault(rule, []).append(result)
        return result

    def _walk(self, layer: str, segments: list[str], path: str | None) -> list[str]:
        """Segment by segment, each under the rules of the layer it lies in; without a path, inside some layer."""
        result: list[str] = []
        at = 0
        while at < len(segments):
            rule = self._rule(layer, segments, at)
            taken = rule.left if rule else (segments[at],)
            result.extend(rule.right if rule else taken)
            at += len(taken)
            if rule is not None:
                self.applied.setdefault(rule, []).append(".".join(result))
            layer = taken[-1]
            if path is not None:
                path = ".".join(segments[:at])
                layer = self._tree.layer_name(path)
        return result

    def _rule(self, layer: str, segments: list[str], at: int) -> LayerRule | None:
        rules = self._classes.get(layer, ())
        return next((rule for rule in rules if tuple(segments[at : at + len(rule.left)]) == rule.left), None)


def stage_offsets(
    left: ModuleTree, right: ModuleTree, translator: Translator
) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Where a pipeline stage numbers its layers differently: container (in the right's words) -> how far to shift.

    The layers of a ParallelTransformer count from 0 in one code base and through all stages in another. Only
    containers with equally many layers are renumbered.
    """
    mine = {translator.path(path): (path, numbers) for path, numbers in left.numbered().items()}
    theirs = right.numbered()
    offsets: tuple[dict[str, int], dict[str, int]] = ({}, {})
    notes = []
    for container in mine.keys() & theirs.keys():
        path, numbers = mine[container]
        if not (_is_stage(left, path) or _is_stage(right, container)):
            continue
        others = theirs[container]
        if numbers[0] == others[0] or len(numbers) != len(others):
            continue
        offsets[0][container], offsets[1][container] = -numbers[0], -others[0]
        notes.append(
            f"the layers {numbers[0]} to {numbers[-1]} of {path} are taken for {others[0]} to {others[-1]} of "
            f"{container} (a pipeline stage); write them under 'layers:' to pair them otherwise"
        )
    return offsets[0], offsets[1], sorted(notes)


def _is_stage(tree: ModuleTree, container: str) -> bool:
    parent, _, last = container.rpartition(".")
    return last == _STAGE and tree.classes.get(parent) == _STAGE_CLASS
