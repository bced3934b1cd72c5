"""The operators of an inference run as a tree, read from model_tree.json or an ATB topology."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe._runs.whole_files import read_json
from twinprobe.errors import BadInput

ORDER, EXECUTION = "order", "execution"
"""Set in the param of a tree whose modules stand in the order of their calls."""

_MOST_NODES = 2_000_000
_DEEPEST = 200
_LAST_NUMBER = re.compile(r"_(\d+)$")


@dataclass(slots=True, eq=False)
class OpNode:
    """One operator or module. ``folder`` is where its tensors lie, relative to the folder of a token."""

    name: str
    op_type: str
    folder: str
    children: list[OpNode] = field(default_factory=list)
    param: dict[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    called: bool = True

    def walk(self) -> Iterator[OpNode]:
        """This node and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def finished(self) -> Iterator[OpNode]:
        """This node and all below it in the order in which they end: children first."""
        waiting = [(self, False)]
        while waiting:
            node, opened = waiting.pop()
            if opened or not node.children:
                yield node
                continue
            waiting.append((node, True))
            waiting.extend((child, False) for child in reversed(node.children))

    def leaves(self) -> Iterator[OpNode]:
        """The nodes without children, in order."""
        return (node for node in self.walk() if not node.children)


def read_model_tree(path: Path) -> OpNode:
    """Read model_tree.json: ``{"name": ..., "type": ..., "children": [...]}``."""
    document = read_json(path)
    tree = _Reader(path, "modules").module(document, "", 0)
    if document.get(ORDER) == EXECUTION:
        tree.param[ORDER] = EXECUTION
    return tree


def read_topology(path: Path, *, shift: int = 0) -> tuple[OpNode, int]:
    """One ATB model: its tree (the model itself at the top, without a folder) and the number of its first operator.

    ``shift`` is added to the numbers of its operators in folder names.
    """
    document = read_json(path)
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise BadInput('is not an ATB topology: it needs a list "nodes"', where=path)
    name = document.get("modelName")
    name = name if isinstance(name, str) and name else path.stem
    first = _first_number(document["nodes"], path) + shift
    tree = OpNode(name, name, "", inputs=_texts(document, "inTensors"), outputs=_texts(document, "outTensors"))
    tree.children = _Reader(path, "operators").operators(document["nodes"], "", first, "nodes", 0)
    return tree, first


class _Reader:
    """Makes nodes of a document, so many and so deep at most."""

    def __init__(self, path: Path, what: str) -> None:
        self._path, self._what = path, what
        self._left = _MOST_NODES

    def _check(self, value: Any, key: str, mistake: str, where: str, depth: int) -> None:
        self._left -= 1
        if depth > _DEEPEST or self._left < 0:
            raise BadInput(f"is nested too deeply or has too many {self._what}", where=f"{self._path}: {where}")
        if not isinstance(value, dict) or not isinstance(value.get(key), str):
            raise BadInput(mistake, where=f"{self._path}: {where}")

    def module(self, value: Any, where: str, depth: int) -> OpNode:
        self._check(value, "name", 'is not a module: it needs a "name"', where or "top level", depth)
        name, kind, children = value["name"], value.get("type", ""), value.get("children", [])
        if not isinstance(kind, str) or not isinstance(children, list):
            raise BadInput('"type" must be a text and "children" a list', where=f"{self._path}: {name}")
        nodes = [self.module(child, f"{name}[{index}]", depth + 1) for index, child in enumerate(children)]
        return OpNode(name, kind, name, nodes, called=value.get("called") is not False)

    def operators(self, values: list[Any], front: str, first: int, where: str, depth: int) -> list[OpNode]:
        """``front`` stands before the numbers of their folders, which begin with ``first``."""
        nodes = []
        for index, value in enumerate(values):
            place = f"{where}[{index}]"
            self._check(value, "opType", 'is not an operator: it needs an "opType"', place, depth)
            kind, name, param, children = (*map(value.get, ("opType", "opName", "param")), value.get("nodes", []))
            if not isinstance(children, list):
                raise BadInput('"nodes" must be a list', where=f"{self._path}: {place}")
            folder = f"{front}{first + index}_{kind}"
            below = self.operators(children, f"{folder}/", 0, f"{place}.nodes", depth + 1)
            tensors = _texts(value, "inTensors"), _texts(value, "outTensors")
            name, param = name if isinstance(name, str) else kind, param if isinstance(param, dict) else {}
            nodes.append(OpNode(name, kind, folder, below, param, *tensors))
        return nodes


def _first_number(nodes: list[Any], path: Path) -> int:
    if not nodes:
        raise BadInput("holds no operators", where=path)
    name = nodes[0].get("opName") if isinstance(nodes[0], dict) else None
    match = _LAST_NUMBER.search(name) if isinstance(name, str) else None
    return int(match[1][:9]) if match else 0


def _texts(value: dict[str, Any], key: str) -> tuple[str, ...]:
    items = value.get(key)
    return tuple(item for item in items if isinstance(item, str)) if isinstance(items, list) else ()
