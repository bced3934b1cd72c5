"""Call stacks of nodes, each distinct one kept once."""

from __future__ import annotations

from twinprobe.graph.repairs import forward_twin, is_module, with_call
from twinprobe.graph.tree import Tree
from twinprobe.runs.run import Run
from twinprobe.runs.stacks import Stacks


class CallSites:
    """Distinct stacks, numbered in the order in which nodes first need them."""

    def __init__(self, run: Run, tree: Tree, order: list[int]) -> None:
        self.frames: list[list[str]] = []
        self.of_node: list[int] = [0] * len(tree)
        numbers: dict[tuple[str, ...], int] = {}
        known: dict[int, int] = {}
        stacks = run.stacks if order else Stacks()
        for node in order:
            place = _place(tree.names[node], stacks.of_op)
            number = known.get(place)
            if number is None:
                frames = [] if place < 0 else stacks.frames[place]
                number = numbers.setdefault(tuple(frames), len(self.frames))
                if number == len(self.frames):
                    self.frames.append(frames)
                known[place] = number
            self.of_node[node] = number


def _place(name: str, of_op: dict[str, int]) -> int:
    """Which recorded stack a node has; a backward call without one borrows its forward's."""
    place = of_op.get(name)
    if place is None and ".backward" in name:
        twin = forward_twin(name)
        place = of_op.get(twin)
        if place is None and is_module(twin):
            place = of_op.get(with_call(twin, "0"))
    return -1 if place is None else place
