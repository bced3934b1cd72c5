"""Small graph files made for the tests, with contents of the test's choice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COLORS = {
    "#FFFCF3": {"value": [0, 0.3], "description": "", "accuracy_level": "pass"},
    "#FFDC7F": {"value": [0.3, 0.6], "description": "", "accuracy_level": "warning"},
    "#FF704D": {"value": [0.6, 1], "description": "", "accuracy_level": "error"},
    "#C7C7C7": {"value": [], "description": "", "accuracy_level": "unmatched node"},
}


def node(name: str, parent: str, children: list[str] | None = None, **more: Any) -> dict[str, Any]:
    """A node as `.vis` files hold it."""
    tensor = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": "[2, 8]",
        "Max": "1.5",
        "Min": "-1.5",
        "Mean": "0.1",
        "Norm": "3.0",
    }
    base = {
        "id": name, "node_type": 0 if children else 1, "upnode": parent, "subnodes": children or [],
        "input_data": {f"{name}.input.0": tensor}, "output_data": {f"{name}.output.0": tensor},
        "matched_node_link": ["DefaultModel", name], "suggestions": {},
        "stack_info": ["File model.py, line 1, in f, \n y = x"],
        "data": {"precision_index": 0},
    }  # fmt: skip
    return base | more


def write_pair(path: Path, target: dict[str, Any], golden: dict[str, Any], **more: Any) -> Path:
    """A compared `.vis` of two node maps; the root is DefaultModel."""
    side = lambda nodes: {"root": "DefaultModel", "dump_data_dir": None, "node": nodes}  # noqa: E731
    document = {"NPU": side(target), "Bench": side(golden), "ToolTip": "{}", "Colors": COLORS, "MicroSteps": 1,
                "task": "summary", "OverflowCheck": False}  # fmt: skip
    path.write_text(json.dumps(document | more, indent=1), encoding="utf-8")
    return path


def flat(names: list[str], **more: Any) -> dict[str, Any]:
    """A root with these children."""
    return {"DefaultModel": node("DefaultModel", "None", names, matched_node_link=["DefaultModel"])} | {
        name: node(name, "DefaultModel", **more) for name in names
    }
