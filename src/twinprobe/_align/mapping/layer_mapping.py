"""Layer mapping (-lm): modules by their translated path, APIs by their place inside a module."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from twinprobe._align.calls import Callee, RunCalls, renumbered
from twinprobe._align.links import NONE, CallLinks
from twinprobe._align.mapping.api_names import family, family_written, torch_name
from twinprobe._align.mapping.layer_tree import TOP, LayerFile, LayerRule, ModuleTree, Translator, stage_offsets
from twinprobe._align.mapping.yaml_files import Names, Remarks
from twinprobe._runs.names import BACKWARD, FORWARD

# Which function of the framework an API was called from, between the module around it and the call.

_FRAME = re.compile(r"File (?P<file>.+?), line \d+, in (?P<function>[^,\n]+)")
_FRAMEWORK = re.compile(r"[/\\](?:site|dist)-packages[/\\](?:torch|torch_npu|mindspore|mindtorch|paddle)[/\\]")
_TOOLS = re.compile(r"msprobe|mindspeed|twinprobe", re.IGNORECASE)
# Files through which every call of a module or a hooked function passes: they say nothing about it.
_PLUMBING = re.compile(
    r"[/\\](?:nn[/\\]cell\.py|graph[/\\]_utils[/\\].*|common[/\\](?:api|hook_handle|jit_.*)\.py"
    r"|nn[/\\]modules[/\\]module\.py|utils[/\\]_contextlib\.py|utils[/\\]checkpoint\.py|_dynamo[/\\].*"
    r"|autograd[/\\](?:function|graph|grad_mode)\.py|nn[/\\]layer[/\\]layers\.py)$"
)
_MODULE_BODY = frozenset({"forward", "construct"})
_SILENT = frozenset({"__call__", "<lambda>", "wrapper", "inner", "decorate_context"})
_WITHOUT_STACK = frozenset({"Primitive", "Jit"})


class StackScopes:
    """The framework function around each API call; empty text where user code called it directly."""

    def __init__(self, side: RunCalls) -> None:
        self._side = side
        self._functions: dict[int, str] = {}

    def of(self, op: int) -> str:
        """The outermost function of the framework inside the module that made this call."""
        if self._side.callee_of[op].prefix in _WITHOUT_STACK:
            return ""
        stacks = self._side.run.stacks
        at = stacks.of_op.get(self._side.ops[op])
        if at is None:
            return ""
        if at not in self._functions:
            self._functions[at] = framework_function(stacks.frames[at])
        return self._functions[at]


def framework_function(frames: list[str]) -> str:
    """Walk out from the call: the last function of the framework before the module's own body or user code."""
    name = ""
    for frame in frames:
        found = _FRAME.match(frame)
        if found is None:
            break
        file, function = found["file"], found["function"].strip()
        if _TOOLS.search(file) or _PLUMBING.search(file):
            continue
        if not _FRAMEWORK.search(file) or function in _MODULE_BODY:
            break
        if function not in _SILENT:
            name = function
    return name


RULE = "layer mapping"


def link_layers(call_links: CallLinks, file: LayerFile) -> None:
    """Link modules, then the APIs inside them, then their backward calls and parameters."""
    remarks = Remarks(file.path)
    for line, text in file.early:
        remarks.add(line, text)
    trees = ModuleTree(call_links.target), ModuleTree(call_links.golden)
    left, right, mirrored = remarks.sides(*trees, partial(_fits, file))
    linker = _Linker(call_links, file, left, right, mirrored)
    linker.link_modules(remarks)
    linker.link_apis(FORWARD)
    call_links.follow_forward()
    linker.link_apis(BACKWARD)
    _remark(remarks, file, linker.translator, left, right)
    call_links.notes.extend(remarks.texts())


def _fits(file: LayerFile, left: ModuleTree, right: ModuleTree) -> int:
    """How many rules have their left side inside their class in one run and their right side somewhere in the other."""
    inside: dict[str, set[str]] = defaultdict(set)
    for path in left.prefixes - {""}:
        inside[left.layer_name(path.rpartition(".")[0]) if "." in path else TOP].add(path.rpartition(".")[2])
    return sum(rule.left[0] in inside[rule.cls] and rule.right[-1] in right.words for rule in file.rules)


class _Linker:
    def __init__(
        self, call_links: CallLinks, file: LayerFile, left: ModuleTree, right: ModuleTree, mirrored: bool
    ) -> None:
        self._call_links = call_links
        self._file = file
        self._left, self._right = left, right
        self._mirrored = mirrored
        self.translator = Translator(left, file)
        self._offsets: tuple[dict[str, int], dict[str, int]] = ({}, {})

    def link_modules(self, remarks: Remarks) -> None:
        if not any(rule.is_number for rule in self._file.rules):
            mine, theirs, notes = stage_offsets(self._left, self._right, self.translator)
            self._offsets = mine, theirs
            for note in notes:
                remarks.whole_file(note)
        known: dict[str, list[Callee]] = defaultdict(list)
        for callee in self._right.side.modules:
            known[renumbered(callee.body, self._offsets[1])].append(callee)
        used: dict[str, str] = {}
        for callee in self._left.side.modules:
            path = self.translator.path(callee.body)
            others = known.get(renumbered(path, self._offsets[0]))
            if not others:
                continue
            other = next((other for other in others if other.cls == callee.cls), others[0])
            if used.setdefault(other.name, callee.body) != callee.body:
                remarks.whole_file(f"{callee.body} meets {other.body}, which {used[other.name]} has met before")
                continue
            self._call_links.link_callees(*((other, callee) if self._mirrored else (callee, other)), RULE)

    def link_apis(self, direction: str) -> None:
        """Queue the free API calls of either run by their place; the n-th meets the n-th."""
        sides = self._left.side, self._right.side
        if not all(side.has_hierarchy for side in sides):
            return
        stacks = [StackScopes(side) for side in sides] if all(side.run.stacks.of_op for side in sides) else [None, None]
        mine = _Places(self._call_links, self._left, self._mirrored, stacks[0], self._left_path, self._left_words)
        theirs = _Places(
            self._call_links, self._right, not self._mirrored, stacks[1], self._right_path, self._right_words
        )
        queues: dict[_Place, list[int]] = defaultdict(list)
        for op, place in mine.places(direction):
            queues[place].append(op)
        others: dict[_Place, list[int]] = defaultdict(list)
        for op, place in theirs.places(direction):
            if place in queues:
                others[place].append(op)
        for place, calls in others.items():
            self._link_queue(queues[place], calls)

    def _link_queue(self, left: list[int], right: list[int]) -> None:
        if len(left) > 1 or len(right) > 1:
            spellings = self._spellings(self._left, left), self._spellings(self._right, right)
            if spellings[0] != spellings[1] and Counter(spellings[0]) == Counter(spellings[1]):
                # The same functions in another order: each spelling has its own queue.
                for spelling in dict.fromkeys(spellings[0]):
                    self._link_calls(
                        [op for op, name in zip(left, spellings[0], strict=True) if name == spelling],
                        [op for op, name in zip(right, spellings[1], strict=True) if name == spelling],
                    )
                return
        self._link_calls(left, right)

    @staticmethod
    def _spellings(tree: ModuleTree, ops: list[int]) -> list[str]:
        return [torch_name(tree.side.callee_of[op], is_mindspore=tree.side.is_mindspore) for op in ops]

    def _link_calls(self, left: list[int], right: list[int]) -> None:
        target, golden = (right, left) if self._mirrored else (left, right)
        for op, other in self._call_links.in_order(target, golden):
            self._call_links.link(op, other, RULE)

    def _left_words(self, layer: str, names: list[str], callee: Callee) -> tuple[str, str]:
        """The function and the API's family in the right run's words."""
        found = self.translator.inside(layer, names)
        if found[-1] != names[-1]:
            name = family_written(found[-1], is_mindspore=self._right.side.is_mindspore)
        else:
            name = family(torch_name(callee, is_mindspore=self._left.side.is_mindspore))
        return ".".join(found[:-1]), name

    def _right_words(self, _layer: str, names: list[str], callee: Callee) -> tuple[str, str]:
        return ".".join(names[:-1]), family(torch_name(callee, is_mindspore=self._right.side.is_mindspore))

    def _left_path(self, path: str) -> tuple[str, str]:
        """A path in the right run's words, and the layer whose rules hold inside it."""
        return renumbered(self.translator.path(path), self._offsets[0]), self.translator.layer(path)

    def _right_path(self, path: str) -> tuple[str, str]:
        return renumbered(path, self._offsets[1]), ""


_Place = tuple[int | str, str, str]  # the module around (as a linked op, else its path), the function, the API's family


@dataclass
class _Places:
    """Where each free API call of a run stands, in words that both runs share."""

    _call_links: CallLinks
    _tree: ModuleTree
    _is_golden: bool
    _stacks: StackScopes | None
    _path_words: Callable[[str], tuple[str, str]]
    _name_words: Callable[[str, list[str], Callee], tuple[str, str]]

    def places(self, direction: str) -> Iterator[tuple[int, _Place]]:
        """Op and place of all free API calls, in order of appearance."""
        side, stacks = self._tree.side, self._stacks
        parents, ops, callees = side.run.parents, side.ops, side.callee_of
        around: dict[str | None, tuple[int | str, str]] = {}
        words: dict[tuple[str, str, str], tuple[str, str]] = {}
        for op in self._call_links.free(side.apis, direction, golden=self._is_golden):
            parent = parents.get(ops[op])
            place = around.get(parent)
            if place is None:
                place = around[parent] = self._around(parent)
            function = stacks.of(op) if stacks else ""
            callee = callees[op]
            key = (place[1], function, callee.name)
            name = words.get(key)
            if name is None:
                names = [function, callee.body] if function else [callee.body]
                name = words[key] = self._name_words(place[1], names, callee)
            yield op, (place[0], *name)

    def _around(self, parent: str | None) -> tuple[int | str, str]:
        """The module call around, as the target's op number where it is linked, so that repeated calls stay apart."""
        path, layer = self._path_words(self._tree.path_of(parent) if parent else "")
        number = self._tree.side.number_of.get(parent or "", NONE)
        if number == NONE:
            return path, layer
        link = (self._call_links.back if self._is_golden else self._call_links.partner)[number]
        if link == NONE:
            return path, layer
        return link if self._is_golden else number, layer


def _remark(remarks: Remarks, file: LayerFile, translator: Translator, left: ModuleTree, right: ModuleTree) -> None:
    """Say which rules matched nothing and which lead to a name that exists nowhere."""
    classes = {TOP, *left.classes.values(), *(path.rpartition(".")[2] for path in left.prefixes)}
    known_classes = Names(name for name in classes if name and not name.isdecimal())
    for cls, rules in file.classes.items():
        if cls not in classes:
            theirs = cls in right.classes.values()
            why = "; it is a class of the other run, the class of this one is needed" if theirs else ""
            text = f"no layer of class {cls} was recorded{why}"
            remarks.add(file.class_lines[cls], text, "unknown classes", partial(known_classes.hint, cls))
            continue
        for rule in rules:
            if rule not in translator.applied:
                name = ".".join(rule.left)
                hint = partial(_hint_inside, left, cls, rule)
                remarks.add(rule.line, f"{name!r} matched nothing inside {cls}", "keys that matched nothing", hint)
    _remark_values(remarks, translator, right)


def _remark_values(remarks: Remarks, translator: Translator, right: ModuleTree) -> None:
    """Values that lead nowhere, from the top down: what lies below one that went astray is not remarked on."""
    apis = {callee.body for callee in right.side.apis}
    nowhere = {
        places[0]: rule
        for rule, places in translator.applied.items()
        if not any(place in right.prefixes for place in places) and rule.right[-1] not in apis
    }
    astray: list[str] = []
    for place in sorted(nowhere, key=len):
        if any(place.startswith(above + ".") for above in astray):
            continue
        astray.append(place)
        rule = nowhere[place]
        name = ".".join(rule.right)
        parent = place.removesuffix(name).rstrip(".")
        known = Names(_below(right, parent, len(rule.right)) or right.words)
        text = f"{name!r} does not exist in the other run (as {place})"
        remarks.add(rule.line, text, "values that exist nowhere", partial(known.hint, name))


def _hint_inside(tree: ModuleTree, cls: str, rule: LayerRule) -> str:
    """The name nearest to a rule's, of what lies inside the first layers of its class; they are all alike."""
    parents = [""] if cls == TOP else [path for path in sorted(tree.prefixes - {""}) if tree.layer_name(path) == cls]
    return Names(child for parent in parents[:3] for child in _below(tree, parent, len(rule.left))).hint(
        ".".join(rule.left)
    )


def _below(tree: ModuleTree, parent: str, depth: int) -> list[str]:
    start = parent + "." if parent else ""
    inside = (path[len(start) :] for path in tree.prefixes if path.startswith(start))
    return [path for path in inside if path and path.count(".") + 1 == depth]
