"""Questions about matches made by hand, and the one request that writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twinprobe.errors import BadInput
from twinprobe.graph.read_db import GOLDEN, TARGET
from twinprobe.view import matches, pairing
from twinprobe.view.ask_tree import Answer
from twinprobe.view.questions import Desk, Question


def made_by_hand(desk: Desk, asked: Question) -> Answer:
    """The matches made by hand, by name of the run under test, as JSON and as layer_mapping.yaml."""
    with desk.scene(asked) as scene:
        made = scene.matches
        return {"matches": made.added, "removed": sorted(made.removed), "yaml": pairing.layer_mapping(scene)}


def change(desk: Desk, values: Mapping[str, Any]) -> Answer:
    """Match, part or import: written to a file beside the graph, never into it."""
    asked = Question({key: str(value) for key, value in values.items() if key != "pairs"})
    with desk.scene(asked) as scene:
        if not scene.config.compared:
            raise BadInput("there is only one graph in this file")
        action, branch, fitting = asked.text("action"), asked.flag("branch"), 1
        target, golden = asked.text("target"), asked.text("golden")
        if action == "add":
            for side, name in ((TARGET, target), (GOLDEN, golden)):
                if scene.graph.node(side, name) is None:
                    raise BadInput(f"there is no node {name!r} in the {side} graph")
            edit = pairing.add_pair(scene, target, golden, branch=branch)
        elif action == "remove":
            edit = pairing.remove_pair(scene, target, branch=branch)
        elif action == "import" and isinstance(values.get("pairs"), dict):
            edit, fitting = pairing.add_all(scene, {str(k): str(v) for k, v in values["pairs"].items()})
        else:
            raise BadInput("action must be add, remove, or import with pairs")
        now = matches.change(scene.source.path, f"{scene.step}/{scene.rank}", edit)
        return {"matches": now.added, "removed": sorted(now.removed), "fitting": fitting}
