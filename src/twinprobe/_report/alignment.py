"""The files of an alignment: alignment.json, a mapping file in each dialect, and the page with both trees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from twinprobe._align.auto.alignment import DOUBTFUL, Alignment, LayerRules, Unmatched, layer_rules, to_document
from twinprobe._align.auto.row_links import aligned_pairs, link_alignment
from twinprobe._align.auto.tree import CallTree, call_tree
from twinprobe._align.calls import MINDSPORE, RunCalls
from twinprobe._align.links import CallLinks, Pairs
from twinprobe._align.mapping.flat_mapping import write_data_mapping
from twinprobe._align.mapping.layer_tree import TOP
from twinprobe._report.console import json_bytes, visible
from twinprobe._report.files import Staging, prepare_folder
from twinprobe._report.reports import asset, fill
from twinprobe._runs.names import FORWARD, is_module, parse_op
from twinprobe._runs.run import Run

# The page of an alignment: both trees side by side, and a line for each pair.


def fill_page(alignment: Alignment, target: Run, golden: Run, path: Path) -> None:
    """Write the page to exactly this path."""
    trees = call_tree(RunCalls(target)), call_tree(RunCalls(golden))
    numbers = [{name: node for node, name in enumerate(tree.name)} for tree in trees]
    data: dict[str, Any] = {
        "sides": [
            _side("target", target, trees[0], alignment.target_unmatched),
            _side("golden", golden, trees[1], alignment.golden_unmatched),
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
        style=asset("alignment.css"), script=asset("alignment.js") + asset("chinese.js"), data=data,
    )  # fmt: skip


def _side(title: str, run: Run, tree: CallTree, alone: list[Unmatched]) -> dict[str, Any]:
    """A tree in columns, in its own numbering; children in the order of execution."""
    why = {entry.name: entry.why for entry in alone}
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


JSON, LAYERS, CELLS, APIS, DATA, PAGE = (
    "alignment.json", "layer_mapping.yaml", "cell_mapping.yaml", "api_mapping.yaml", "data_mapping.yaml",
    "alignment.html",
)  # fmt: skip
_LISTED = 40


def write_alignment(alignment: Alignment, target: Run, golden: Run, folder: Path) -> list[Path]:
    """Write all files, whole or not at all; return their paths. A mapping without a line is not written."""
    prepare_folder(folder)
    texts = {
        LAYERS: layer_mapping_text(layer_rules(alignment)),
        CELLS: _cell_mapping_text(alignment),
        APIS: _api_mapping_text(alignment, target, golden),
    }
    with Staging() as staging:
        document = {**to_document(alignment), "target_run": str(target.path), "golden_run": str(golden.path)}
        staging.file(folder / JSON).write_bytes(json_bytes(document) + b"\n")
        for name, text in texts.items():
            if text:
                staging.file(folder / name).write_text(text, encoding="utf-8")
        write_data_mapping(staging.file(folder / DATA), target, golden, _row_pairs(alignment, target, golden))
        fill_page(alignment, target, golden, staging.file(folder / PAGE))
    return [folder / name for name in (JSON, *(name for name, text in texts.items() if text), DATA, PAGE)]


def _row_pairs(alignment: Alignment, target: Run, golden: Run) -> Pairs:
    """All rows that the alignment pairs one to one: a line of a data mapping holds no more."""
    call_links = CallLinks(target, golden)
    pairs = aligned_pairs(call_links, link_alignment(call_links, alignment))
    partners = pairs.golden.copy()
    partners[[place for place, (rows, others) in pairs.groups.items() if len(rows) + len(others) > 2]] = -1
    return Pairs(pairs.target, partners, pairs.rule)


def _pairs_of_heads(alignment: Alignment, *, modules: bool) -> dict[str, str]:
    """Module (path and class) or API -> its partner, the one it meets most often; each partner once for modules."""
    votes: dict[str, Counter[str]] = {}
    for relation in alignment.relations:
        names = [parse_op(name) for name in (*relation.target, *relation.golden)]
        if relation.one_to_one and all(name.is_module == modules and name.direction == FORWARD for name in names):
            target, golden = (name.without_call.removesuffix(f".{FORWARD}") for name in names)
            if modules:
                target, golden = target.partition(".")[2], golden.partition(".")[2]
            votes.setdefault(target, Counter())[golden] += 1
    return {target: names.most_common(1)[0][0] for target, names in votes.items()}


def _cell_mapping_text(alignment: Alignment) -> str:
    pairs = _pairs_of_heads(alignment, modules=True)
    head = "# Cell mapping found by twinprobe align: module of the target run: module of the other run.\n"
    lines = [f"{_quoted(target)}: {_quoted(golden)}\n" for target, golden in pairs.items()]
    return head + "".join(lines) if lines else ""


def _api_mapping_text(alignment: Alignment, target: Run, golden: Run) -> str:
    """APIs in the form of the frameworks: ``ms_api`` names MindSpore's side where there is one."""
    pairs = _pairs_of_heads(alignment, modules=False)
    head = "# API mapping found by twinprobe align: APIs that were paired most often.\n"
    turned = golden.framework == MINDSPORE != target.framework
    lines = []
    for name, partner in pairs.items():
        left, right = (partner, name) if turned else (name, partner)
        lines.append(f"- ms_api: {_quoted(left)}\n  pt_api: {_quoted(right)}\n")
    return head + "".join(lines) if lines else ""


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
        lines += [f"  {_quoted(target)}: {_quoted(golden)}" for target, golden in names.items()]
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
    fit, of = alignment.matched_modules, alignment.modules
    lines = []
    if any(of):
        lines.append(f"{fit[0]} of {of[0]} modules match {fit[1]} of {of[1]}; {_calls(alignment)} API calls match too")
    else:
        lines.append(f"{_calls(alignment)} API calls match; no modules were recorded")
    width = max((len(rule) for rule in alignment.by_rule()), default=0)
    lines += [f"  {rule:<{width}}  {count:>6}" for rule, count in alignment.by_rule().items()]
    lines += _alone_lines("target", alignment.target_unmatched) + _alone_lines("golden", alignment.golden_unmatched)
    doubtful = alignment.doubtful()
    if doubtful:
        lines.append(f"{len(doubtful)} pairs are doubtful (confidence below {DOUBTFUL}):")
        for relation in doubtful[:_SHOWN]:
            names = " + ".join(relation.target), " + ".join(relation.golden)
            lines.append(f"  {relation.confidence:.2f}  {names[0]} = {names[1]} ({relation.rule})")
        lines += _more(len(doubtful))
    return [visible(line) for line in lines]


def _calls(alignment: Alignment) -> int:
    return sum(not is_module(name) for relation in alignment.relations for name in relation.target)


def _alone_lines(side: str, alone: list[Unmatched]) -> list[str]:
    modules = [entry for entry in alone if is_module(entry.name)]
    others = Counter(entry.why for entry in alone if not is_module(entry.name))
    lines = []
    if modules:
        lines.append(f"{len(modules)} modules of the {side} run have no counterpart:")
        lines += [f"  {module.name}: {module.why}" for module in modules[:_SHOWN]]
        lines += _more(len(modules))
    if others:
        lines.append(f"{others.total()} API calls of the {side} run have no counterpart:")
        lines += [f"  {count:>6}  {why}" for why, count in others.most_common(_SHOWN)]
        lines += _more(len(others))
    return lines


def _more(count: int) -> list[str]:
    return [f"  ... and {count - _SHOWN} more"] if count > _SHOWN else []
