"""Micro steps: the rounds of forward and backward inside one recorded step."""

from __future__ import annotations

from pathlib import Path

import msgspec

from twinprobe.graph.tree import MODULE, Tree
from twinprobe.runs.whole_file import whole_file

_COUNTER = b"megatron_micro_step_number"


def assign_micro_steps(tree: Tree, construct: Path) -> int:
    """Give every node its micro step and return how many there are.

    A forward module after any other module begins the next round; APIs belong to the round they stand in. Megatron
    dumps say it themselves.
    """
    said = _recorded(construct)
    tree.micro_steps = [0] * len(tree)
    current, others_seen = 0, False
    for node in tree.children[0]:
        name = tree.names[node]
        if tree.kinds[node] == MODULE:
            if ".forward" not in name:
                others_seen = True
            elif others_seen:
                current, others_seen = current + 1, False
        tree.micro_steps[node] = said.get(name, current)
    for node in tree.pre_order()[1:]:
        parent = tree.parents[node]
        if parent > 0:
            tree.micro_steps[node] = said.get(tree.names[node], tree.micro_steps[parent])
    return max(tree.micro_steps) + 1


def _recorded(construct: Path) -> dict[str, int]:
    """Explicit numbers, where construct.json holds [parent, number] pairs."""
    try:
        blob = whole_file(construct)
        document = msgspec.json.decode(blob) if _COUNTER in blob else {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    numbers = {}
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, list) and len(value) == 2 and isinstance(value[1], int) and 0 <= value[1] < 1 << 31:
            numbers[name] = value[1]
    return numbers
