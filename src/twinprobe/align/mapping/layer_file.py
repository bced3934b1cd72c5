"""The layer mapping file: per class, which name inside it is called what in the other run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from twinprobe.align.mapping.yaml_files import KINDS, Mapping, Text, at, read_yaml, text_of
from twinprobe.errors import BadInput

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
            raise BadInput(f"the class {written} holds {KINDS[type(content)]}", where=at(path, line), hint=_HINT)
        if cls in file.classes:
            file.early.append((line, f"{_OLD_TOP} and {TOP} are one: what is named twice is taken from the first"))
        rules = file.classes.setdefault(cls, [])
        known = {rule.left for rule in rules}
        file.class_lines.setdefault(cls, line)
        for left, (number, value) in content.items.items():
            right = text_of(path, value, f"the value of {left!r}")
            parts += left.count(".") + right.count(".") + 4
            if parts > _MOST_PARTS:
                raise BadInput("no layer mapping has so many names", where=at(path, number), hint=_HINT)
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
        raise BadInput(f"'{left}: {right}' does not name a layer on both sides", where=at(path, line), hint=_HINT)
    return LayerRule(cls, tuple(names[0].split(".")), tuple(names[1].split(".")), line)
