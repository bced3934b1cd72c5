"""The page of an alignment: both trees side by side, and a line for each pair."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twinprobe.align.auto.alignment import Alignment, Alone
from twinprobe.align.auto.tree import CallTree, call_tree
from twinprobe.align.side import Side
from twinprobe.report.self_contained import asset, fill
from twinprobe.report.text import visible
from twinprobe.runs.run import Run


def fill_page(alignment: Alignment, target: Run, golden: Run, path: Path) -> None:
    """Write the page to exactly this path."""
    trees = call_tree(Side(target)), call_tree(Side(golden))
    numbers = [{name: node for node, name in enumerate(tree.name)} for tree in trees]
    data: dict[str, Any] = {
        "sides": [
            _side("target", target, trees[0], alignment.target_alone),
            _side("golden", golden, trees[1], alignment.golden_alone),
        ],
        "links": [
            [
                [numbers[0][name] for name in relation.target if name in numbers[0]],
                [numbers[1][name] for name in relation.golden if name in numbers[1]],
                relation.confidence, relation.kind, relation.rule, visible(relation.reason),
            ]
            for relation in alignment.relations
        ],
        "modules": alignment.modules,
        "matched": alignment.matched_modules,
        "notes": [visible(note) for note in alignment.notes],
    }  # fmt: skip
    fill(
        path, asset("alignment.html"), title="TwinProbe alignment",
        style=asset("alignment.css"), script=asset("alignment.js"), data=data,
    )  # fmt: skip


def _side(title: str, run: Run, tree: CallTree, alone: list[Alone]) -> dict[str, Any]:
    """A tree in columns, in its own numbering; children in the order of execution."""
    why = {one.name: one.why for one in alone}
    return {
        "title": title,
        "path": visible(str(run.path)),
        "framework": visible(run.framework),
        "names": [visible(name) for name in tree.name],
        "labels": [_label(tree, node) for node in range(len(tree))],
        "parents": tree.parent,
        "children": tree.children,
        "modules": [int(is_module) for is_module in tree.is_module],
        "why": {node: why[name] for node, name in enumerate(tree.name) if name in why},
    }


def _label(tree: CallTree, node: int) -> str:
    """What a node is called inside its parent, and its class."""
    if not tree.is_module[node]:
        return visible(tree.name[node].removesuffix(".forward"))
    path, above = tree.path[node], tree.path[tree.parent[node]] if node else ""
    own = path[len(above) + 1 :] if above and path.startswith(above + ".") else path
    return visible(f"{own} ({tree.cls[node]})" if tree.cls[node] else own)
