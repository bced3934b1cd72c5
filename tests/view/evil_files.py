"""A graph file whose names, stacks and texts are full of markup."""

from __future__ import annotations

import json
from pathlib import Path

from graph_files import flat, write_pair

EVIL = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "\"'><svg onload=alert(3)>",
    "javascript:alert(4)", "{{constructor.constructor('alert(5)')()}}", "a\u202eb\u0000c\n<b>",
    "Module.<i>.X.forward.0", "__proto__", "constructor",
]  # fmt: skip


def evil_file(path: Path) -> Path:
    """A graph file in which every text is an attack."""
    nodes = flat(EVIL)
    for name in EVIL:
        nodes[name] |= {
            "stack_info": [name],
            "input_data": {f"{name}.input.0": {"type": name, "shape": name, name: name}},
            "data": {"precision_index": 1, "overflow_level": name},
            "matched_node_link": ["DefaultModel", name],
        }
    known = {
        "first_node": EVIL[0],
        "first_sentence": f"{EVIL[1]}: {EVIL[0]}",
        "nodes": {EVIL[0]: {"error": 1.0, "matched_by": EVIL[2], "origin": EVIL[0]}},
    }
    tips = json.dumps({name: name for name in EVIL})
    return write_pair(path, nodes, nodes, ToolTip=tips, task=EVIL[0], TwinProbe=known)
