"""The files of an alignment: alignment.json, layer_mapping.yaml and the page with both trees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from twinprobe._align.auto.alignment import DOUBTFUL, Alignment, Alone, LayerRules, layer_rules, to_document
from twinprobe._align.auto.tree import CallTree, call_tree
from twinprobe._align.calls import Side
from twinprobe._align.mapping.layer_tree import TOP
from twinprobe._report.console import json_bytes, visible
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._report.html import asset, fill
from twinprobe._runs.names import CONTAINERS
from twinprobe._runs.run import Run

# The page of an alignment: both trees side by side, and a line for each pair.


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


JSON, YAML, PAGE = "alignment.json", "layer_mapping.yaml", "alignment.html"
_LISTED = 40


def write_alignment(alignment: Alignment, target: Run, golden: Run, folder: Path) -> list[Path]:
    """Write all three files, whole or not at all; return their paths."""
    prepare_folder(folder)
    paths = [folder / name for name in (JSON, YAML, PAGE)]
    with Staging() as staging:
        document = {**to_document(alignment), "target_run": str(target.path), "golden_run": str(golden.path)}
        staging.file(paths[0]).write_bytes(json_bytes(document) + b"\n")
        staging.file(paths[1]).write_text(layer_mapping_text(layer_rules(alignment)), encoding="utf-8")
        fill_page(alignment, target, golden, staging.file(paths[2]))
    return paths


def layer_mapping_text(rules: LayerRules) -> str:
    """A layer mapping file, with a comment on what it cannot hold."""
    lines = [
        "# Layer mapping found by twinprobe align: under each class of the target run, child: child in the other run."
    ]
    if rules.left_out:
        lines.append("# This form holds one-to-one renames by class alone. Not in it, but in alignment.json:")
        lines += [f"#   {visible(text)}" for text in rules.left_out[:_LISTED]]
        if len(rules.left_out) > _LISTED:
            lines.append(f"#   and {len(rules.left_out) - _LISTED} more")
    if not rules.classes:
        lines += ["# All names are equal: nothing needs renaming.", f"{TOP}: {{}}"]
    for cls, names in rules.classes.items():
        lines += ["", f"{_quoted(cls)}:"]
        lines += [f"  {_quoted(mine)}: {_quoted(theirs)}" for mine, theirs in names.items()]
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    """A name as YAML text: plain where that is safe."""
    plain = name.replace("_", "").replace(".", "")
    if plain.isalnum() and plain.isascii() and not name[0].isdigit() and name.lower() not in _WORDS:
        return name
    return "'" + visible(name).replace("'", "''") + "'"


_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


# An alignment on the terminal: matched modules by rule, unmatched ones with the reason, doubtful pairs.

_SHOWN = 8


def alignment_lines(alignment: Alignment) -> list[str]:
    """The summary, line by line."""
    found, of = alignment.matched_modules, alignment.modules
    lines = []
    if any(of):
        lines.append(f"{found[0]} of {of[0]} modules fit {found[1]} of {of[1]}; {_calls(alignment)} API calls fit, too")
    else:
        lines.append(f"{_calls(alignment)} API calls fit; no modules were recorded")
    width = max((len(rule) for rule in alignment.by_rule()), default=0)
    lines += [f"  {rule:<{width}}  {count:>6}" for rule, count in alignment.by_rule().items()]
    lines += _alone_lines("target", alignment.target_alone) + _alone_lines("golden", alignment.golden_alone)
    doubtful = alignment.doubtful()
    if doubtful:
        lines.append(f"{len(doubtful)} pairs are doubtful (confidence below {DOUBTFUL}):")
        for relation in doubtful[:_SHOWN]:
            names = " + ".join(relation.target), " + ".join(relation.golden)
            lines.append(f"  {relation.confidence:.2f}  {names[0]} = {names[1]} ({relation.rule})")
        lines += _more(len(doubtful))
    return [visible(line) for line in lines]


def _calls(alignment: Alignment) -> int:
    return sum(not _is_module(name) for relation in alignment.relations for name in relation.target)


def _alone_lines(side: str, alone: list[Alone]) -> list[str]:
    modules = [one for one in alone if _is_module(one.name)]
    others = Counter(one.why for one in alone if not _is_module(one.name))
    lines = []
    if modules:
        lines.append(f"{len(modules)} modules of the {side} run stay alone:")
        lines += [f"  {one.name}: {one.why}" for one in modules[:_SHOWN]]
        lines += _more(len(modules))
    if others:
        lines.append(f"{others.total()} API calls of the {side} run stay alone:")
        lines += [f"  {count:>6}  {why}" for why, count in others.most_common(_SHOWN)]
        lines += _more(len(others))
    return lines


def _more(count: int) -> list[str]:
    return [f"  ... and {count - _SHOWN} more"] if count > _SHOWN else []


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in CONTAINERS
