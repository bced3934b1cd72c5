"""Matching by hand: two nodes, or two whole branches, and the layer_mapping.yaml that says the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import yaml

from twinprobe._graph.read.db import GOLDEN, TARGET, last_link
from twinprobe._runs.names import BACKWARD, FORWARD, parse_op
from twinprobe._view.nodes import GraphView, Matches

_MOST = 200_000


def add_pair(view: GraphView, target: str, golden: str, *, branch: bool) -> Callable[[Matches], None]:
    """An edit that matches two nodes and, with ``branch``, what is under them and their backward twins."""
    pairs = [(target, golden)]
    if branch:
        pairs += _under(view, target, golden)
        twins = (_twin(target), _twin(golden))
        if _both_there(view, *twins):
            pairs += [twins, *_under(view, *twins)]
    return _adding(view, pairs)


def remove_pair(view: GraphView, target: str, *, branch: bool) -> Callable[[Matches], None]:
    """An edit that parts a node from its partner and, with ``branch``, what is under it."""
    names = [target]
    if branch:
        names += [row["node_name"] for row in _descendants(view, TARGET, target)]

    def edit(matches: Matches) -> None:
        for name in names:
            matches.remove(name)

    return edit


def add_all(view: GraphView, pairs: dict[str, str]) -> tuple[Callable[[Matches], None], int]:
    """An edit for imported pairs, whichever side each is written from, and how many of them fit this graph."""
    fitting: dict[str, str] = {}
    for name, partner in pairs.items():
        if name not in fitting and _both_there(view, name, partner):
            fitting[name] = partner
        elif partner not in fitting and _both_there(view, partner, name):
            fitting[partner] = name
    return _adding(view, fitting.items()), len(fitting)


def _adding(view: GraphView, pairs: Iterable[tuple[str, str]]) -> Callable[[Matches], None]:
    def edit(matches: Matches) -> None:
        for target, golden in pairs:
            row = view.graph.node(GOLDEN, golden)
            matches.add(target, golden, last_link(row["matched_node_link"]) if row else None)

    return edit


def layer_mapping(view: GraphView) -> str:
    """The hand-made matches of modules as a layer_mapping.yaml, by the class under which each name lives."""
    mapping: dict[str, dict[str, str]] = {}
    for target, golden in view.matches.added.items():
        if parse_op(target).is_module and parse_op(golden).is_module:
            _add_rule(view, mapping, target, golden)
    ordered = {key: mapping[key] for key in sorted(mapping, key=lambda key: (key != "TopLayer", key))}
    return str(yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True)) if ordered else "{}\n"


def _add_rule(view: GraphView, mapping: dict[str, dict[str, str]], target: str, golden: str) -> None:
    above = view.path(TARGET, target)[:-1]
    beside = {row["node_name"] for row in view.path(GOLDEN, golden)[:-1]}
    for row in reversed(above):
        mate = view.partner(TARGET, row)
        if mate in beside or row is above[0]:
            module, partner = parse_op(row["node_name"]), parse_op(mate or "")
            left, right = _relative(target, module.body), _relative(golden, partner.body)
            if left != right:
                mapping.setdefault(module.cls or "TopLayer", {})[left] = right
            return


def _relative(name: str, above: str) -> str:
    body = parse_op(name).body
    return body[len(above) + 1 :] if above and body.startswith(above + ".") else body


def _under(view: GraphView, target: str, golden: str) -> Iterator[tuple[str, str]]:
    """Pairs of descendants that carry the same name under their parents, the n-th with the n-th."""
    waiting = [(target, golden)]
    for _ in range(_MOST):
        if not waiting:
            return
        pair = waiting.pop()
        left, right = (_children(view, side, name) for side, name in zip((TARGET, GOLDEN), pair, strict=True))
        for key, child in left.items():
            if key in right:
                yield child, right[key]
                waiting.append((child, right[key]))


def _children(view: GraphView, side: str, parent: str) -> dict[tuple[str, int], str]:
    found: dict[tuple[str, int], str] = {}
    seen: Counter[str] = Counter()
    for row in view.graph.children(side, parent, 0, _MOST, None):
        op = parse_op(row["node_name"])
        short = f"{op.prefix}.{_relative(op.text, parse_op(parent).body)}.{op.direction}"
        found[short, seen[short]] = row["node_name"]
        seen[short] += 1
    return found


def _descendants(view: GraphView, side: str, name: str) -> Iterator[dict[str, Any]]:
    waiting = [name]
    for _ in range(_MOST):
        if not waiting:
            return
        for row in view.graph.children(side, waiting.pop(), 0, _MOST, None):
            yield row
            if not row["leaf"]:
                waiting.append(row["node_name"])


def _twin(name: str) -> str:
    parts = name.split(".")
    swap = {FORWARD: BACKWARD, BACKWARD: FORWARD}
    return ".".join(swap.get(part, part) if at >= len(parts) - 2 else part for at, part in enumerate(parts))


def _both_there(view: GraphView, target: str, golden: str) -> bool:
    return view.graph.node(TARGET, target) is not None and view.graph.node(GOLDEN, golden) is not None
