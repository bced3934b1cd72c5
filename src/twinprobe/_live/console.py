"""Text for people: one line on the terminal, and the tree of a model's calls with marks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from twinprobe._report.console import visible
from twinprobe._runs.names import FORWARD, GRADIENTS, parse_op

AGREES, DIFFERS, FIRST, UNSEEN = "agrees", "differs", "first", "not compared"
SIGNS = {AGREES: "✔", DIFFERS: "✖", FIRST: "➤", UNSEEN: "·"}
_PLAIN_SIGNS = {AGREES: "+", DIFFERS: "x", FIRST: ">", UNSEEN: "."}
MOST_LINES = 60


def say(text: str) -> None:
    """Print one line."""
    from rich.console import Console

    Console().print(visible(text), soft_wrap=True, highlight=False, markup=False)


def shortened(names: list[str]) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


@dataclass
class Branch:
    """One call of a model."""

    name: str
    label: str
    mark: str
    children: list[Branch] = field(default_factory=list)

    def count(self) -> int:
        """How many calls there are from here on."""
        return 1 + sum(child.count() for child in self.children)

    @property
    def agrees(self) -> bool:
        """Whether nothing differs from here on."""
        return self.mark not in (DIFFERS, FIRST) and all(child.agrees for child in self.children)


@dataclass(frozen=True)
class Calls:
    """The calls of a model: all that its tree needs of a run, without the tensors."""

    names: list[str]
    parents: dict[str, str | None]


def call_tree(run: Calls, marks: Mapping[str, str]) -> list[Branch]:
    """The calls of a model inside one another, marked by name; functions are shown only where they differ."""
    branches: dict[str, Branch] = {}
    # In the order in which they began: those without values of their own too.
    for name in dict.fromkeys([*run.parents, *run.names]):
        op = parse_op(name)
        if op.direction != FORWARD:
            continue
        mark = marks.get(name, UNSEEN)
        if op.is_module or mark in (DIFFERS, FIRST):
            branches[name] = Branch(name, _label(name), mark)
    roots: list[Branch] = []
    for name, branch in branches.items():
        parent, seen = run.parents.get(name), {name}  # a recording may hold circles
        while parent is not None and parent not in branches and parent not in seen:
            seen.add(parent)
            parent = run.parents.get(parent)
        (branches[parent].children if parent in branches else roots).append(branch)
    return roots


def tree_lines(roots: list[Branch], *, plain: bool = False, most: int = MOST_LINES) -> list[tuple[str, str]]:
    """(line, mark) from top to bottom; in a long tree what agrees is folded."""
    total = sum(root.count() for root in roots)
    lines: list[tuple[str, str]] = []
    for root in roots:
        _grow(root, "", "", lines, fold=total > most, plain=plain)
    if len(lines) > most:
        at = next((place for place, (_, mark) in enumerate(lines) if mark == FIRST), 0)
        begin = max(0, min(at - most // 2, len(lines) - most))
        left = len(lines) - most
        lines = [*lines[begin : begin + most], (f"... {left} more lines", UNSEEN)]
    return lines


def _grow(branch: Branch, lead: str, next_lead: str, lines: list[tuple[str, str]], *, fold: bool, plain: bool) -> None:
    sign = (_PLAIN_SIGNS if plain else SIGNS)[branch.mark]
    folded = fold and branch.agrees and bool(branch.children)
    more = f"  ({branch.count() - 1} inside agree)" if folded else ""
    lines.append((f"{lead}{sign} {branch.label}{more}", branch.mark))
    if folded:
        return
    tee, corner, bar = ("|- ", "`- ", "|  ") if plain else ("├─ ", "└─ ", "│  ")
    for child in branch.children:
        last = child is branch.children[-1]
        _grow(
            child, next_lead + (corner if last else tee), next_lead + ("   " if last else bar), lines,
            fold=fold, plain=plain,
        )  # fmt: skip


def sibling(name: str, direction: str) -> str:
    """The forward or backward call that a call or a gradient of a parameter belongs to."""
    op = parse_op(name)
    head = ".".join(filter(None, (op.prefix, op.body, op.cls)))
    call = max(op.call, 0)
    if op.is_module or op.direction == GRADIENTS:
        return f"{head}.{direction}.{call}"
    return f"{head}.{call}.{direction}"


def _label(name: str) -> str:
    op = parse_op(name)
    again = f" call {op.call + 1}" if op.call > 0 and op.is_module else ""
    if not op.is_module:
        return f"{op.body}() call {op.call + 1}"
    return f"{op.body} ({op.cls}){again}" if op.body else f"{op.cls}{again}"
