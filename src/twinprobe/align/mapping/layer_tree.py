"""Paths of one run in the words of the other: the walk down the module tree under class-scoped rules."""

from __future__ import annotations

from twinprobe.align.mapping.layer_file import TOP, LayerFile, LayerRule
from twinprobe.align.side import Side, split
from twinprobe.runs.names import is_number

# No model is nested deeper; a longer path in a dump is not taken apart.
MAX_DEPTH = 100
_STAGE_CLASS, _STAGE = "ParallelTransformer", "layers"


class ModuleTree:
    """The module paths of a run, the class at each, and every prefix that exists."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.classes: dict[str, str] = {}
        self._paths: dict[str, str] = {}
        for head in side.modules:
            self.classes.setdefault(head.body, head.cls)
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
                path = self.side.head_of[number].body
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
        for rule in self._classes.get(layer, ()):
            if tuple(segments[at : at + len(rule.left)]) == rule.left:
                return rule
        return None


def stage_offsets(
    left: ModuleTree, right: ModuleTree, translator: Translator
) -> tuple[dict[str, int], dict[str, int], list[str]]:
    """Where a pipeline stage numbers its layers differently: container (in the right's words) -> first number.

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
        offsets[0][container], offsets[1][container] = numbers[0], others[0]
        notes.append(
            f"the layers {numbers[0]} to {numbers[-1]} of {path} are taken for {others[0]} to {others[-1]} of "
            f"{container} (a pipeline stage); write them under 'layers:' to pair them otherwise"
        )
    return offsets[0], offsets[1], sorted(notes)


def _is_stage(tree: ModuleTree, container: str) -> bool:
    parent, _, last = container.rpartition(".")
    return last == _STAGE and tree.classes.get(parent) == _STAGE_CLASS


def renumber(path: str, offsets: dict[str, int]) -> str:
    """A path with its layer number counted from the first of its stage."""
    for container, first in offsets.items():
        if path.startswith(container + "."):
            number, dot, rest = path[len(container) + 1 :].partition(".")
            if is_number(number):
                return f"{container}.{int(number) - first}{dot}{rest}"
    return path
