"""An inference dump, opened: its tokens, and for each the operators and their tensor files. No tensor is read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from twinprobe.errors import BadInput
from twinprobe.runs.llm.files import Files, atb_files, torch_files
from twinprobe.runs.llm.layout import ATB, TORCH, TREE, Device, Layout, find_layout, is_round
from twinprobe.runs.llm.tree import OpNode, Topology, read_model_tree, read_topology

WARMUP = "warmup"


@dataclass(frozen=True, slots=True)
class Token:
    """One token on one device: what the report calls it, its folder under the root, and which model ran."""

    label: str
    folder: str
    model: int = 0


@dataclass(slots=True)
class LlmDump:
    """A dump with the models that it holds: one, or the prefill and the decoder graph of an ATB run."""

    layout: Layout
    models: list[OpNode]
    notes: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return self.layout.kind

    @property
    def root(self) -> Path:
        return self.layout.root

    def tokens(self, device: Device) -> list[Token]:
        """The tokens of a device, or the one that the user named, in order."""
        rounds = self._rounds(device)
        if self.layout.token is not None:
            rounds = [name for name in rounds if name == self.layout.token]
        if self.kind == TORCH or len(self.models) < 2:
            return [Token(name or "0", _under(device.folder, name)) for name in rounds]
        return self._two_models(device, rounds)

    def _two_models(self, device: Device, rounds: list[str]) -> list[Token]:
        """With two graphs round 0 warms up, round 1 holds the prefill and the first decoding, later ones a token each.

        Where nothing but round 0 was dumped, that round is the run itself.
        """
        tokens: list[Token] = []
        only_first = self._rounds(device) == ["0"]
        for name in rounds:
            folder = _under(device.folder, name)
            if name == "1" or only_first:
                tokens += [Token("0", folder, 0), Token("1", folder, 1)]
            elif name == "0":
                tokens.append(Token(WARMUP, folder, 0))
            else:
                tokens.append(Token(name, folder, 1))
        return tokens

    def _rounds(self, device: Device) -> list[str]:
        folder = self.root / device.folder
        names = sorted((entry.name for entry in folder.iterdir() if is_round(entry.name) and entry.is_dir()), key=int)
        return names or [""]

    def files(self, token: Token) -> Files:
        """The tensor files of a token, by operator folder."""
        return (torch_files if self.kind == TORCH else atb_files)(self.root, token.folder)

    def tree(self, token: Token, files: Files) -> OpNode:
        """The operators of a token. Folders that the topology does not know are hung where their names belong."""
        if self.kind == TORCH:
            return _with_unknown_modules(self.models[0] if self.models else None, files)
        if self.models:
            return self.models[token.model]
        return _tree_of_folders(files)


def open_llm_dump(path: Path) -> LlmDump:
    """Recognise and open a dump."""
    layout = find_layout(path)
    notes: list[str] = []
    device = layout.chosen[0]
    if layout.kind == TORCH:
        tree = layout.root / device.folder / TREE
        if not tree.is_file():
            notes.append(f"{tree} is missing: the modules are taken from the folder names")
            return LlmDump(layout, [], notes)
        return LlmDump(layout, [read_model_tree(tree)], notes)
    topologies = _topologies(layout, device)
    if not topologies:
        notes.append(f"{layout.root}: no topology of the model is there; the operators are taken from the folder names")
    if len(topologies) > 2:
        left = ", ".join(topology.name for topology in topologies[2:])
        notes.append(f"{layout.root}: there are {len(topologies)} models; left out: {left}")
    dump = LlmDump(layout, [topology.tree for topology in topologies[:2]], notes)
    _fit_numbers(dump, device)
    return dump


def _topologies(layout: Layout, device: Device) -> list[Topology]:
    root = layout.root
    folders = [root / "model" / device.pid, root / "info" / "model" / device.name]
    folders += sorted(folder for folder in (root / "model").glob("*") if folder.is_dir())
    folder = next((one for one in folders if one.is_dir() and any(one.glob("*.json"))), None)
    if folder is None:
        return []
    shift = int((root / "layer" / folder.name / "TransdataOperation_0.json").is_file())
    found = [read_topology(file, shift=shift) for file in sorted(folder.glob("*.json"))]
    return sorted(found, key=lambda topology: topology.first)


def _fit_numbers(dump: LlmDump, device: Device) -> None:
    """Numbers in folder names may begin elsewhere than the topology says: take those under which the most are found."""
    for token in dump.tokens(device)[:2]:
        if not dump.models:
            return
        model = dump.models[token.model]
        tops = {name for name in dump.files(token) if "/" not in name}
        if not tops:
            continue
        offset = _offset(model, tops)
        if offset is None:
            raise BadInput(
                f"the operators of {model.name} are not in {token.folder}: the topology belongs to another run",
                where=dump.layout.path,
            )
        if offset:
            dump.notes.append(f"{dump.root}: on disk the operators of {model.name} have numbers higher by {offset}")
        for child in model.children if offset else ():
            _renumber(child, offset)


def _offset(model: OpNode, tops: set[str]) -> int | None:
    if all(child.folder in tops for child in model.children):
        return 0
    found: Counter[int] = Counter()
    numbers: dict[str, list[int]] = {}
    for name in tops:
        number, _, kind = name.partition("_")
        numbers.setdefault(kind, []).append(int(number))
    for child in model.children:
        number, _, kind = child.folder.partition("_")
        found.update(other - int(number) for other in numbers.get(kind, ()))
    return max(found, key=lambda offset: (found[offset], -abs(offset)), default=None)


def _renumber(child: OpNode, offset: int) -> None:
    for node in child.walk():
        node.folder = _moved(node.folder, offset)


def _moved(folder: str, offset: int) -> str:
    number, _, rest = folder.partition("_")
    return f"{int(number) + offset}_{rest}"


def _with_unknown_modules(tree: OpNode | None, files: Files) -> OpNode:
    """The module tree, and leaves for folders that it lacks: APIs, repeated calls, modules of a lost tree."""
    known = {node.folder for node in tree.walk()} if tree is not None else set()
    unknown = [folder for folder in files if folder not in known]
    if tree is not None and not unknown:
        return tree
    copy = _copied(tree) if tree is not None else OpNode("root", "", "root")
    nodes = {node.folder: node for node in copy.walk()}
    for folder in sorted(unknown, key=lambda name: name.count(".")):
        if folder in nodes:
            continue
        parent = folder.rpartition(".")[0]
        while parent and parent not in nodes:
            parent = parent.rpartition(".")[0]
        host = nodes.get(parent, copy)
        node = OpNode(folder, folder.rpartition(".")[2].split("-")[0], folder)
        nodes[folder] = node
        host.children.append(node)
    return copy


def _copied(tree: OpNode) -> OpNode:
    children = [_copied(child) for child in tree.children]
    return OpNode(tree.name, tree.op_type, tree.folder, children, tree.param, tree.inputs, tree.outputs, tree.called)


def _tree_of_folders(files: Files) -> OpNode:
    """The operators as the folders show them: ``1_Layer/0_LinearOperation``."""
    top = OpNode("", "", "")
    nodes = {"": top}
    for folder in sorted(files, key=_folder_order):
        parent, _, last = folder.rpartition("/")
        node = OpNode(folder, last.partition("_")[2], folder)
        nodes[folder] = node
        nodes[parent if parent in nodes else ""].children.append(node)
    return top


def _folder_order(folder: str) -> tuple[tuple[int, str], ...]:
    parts = [part.partition("_") for part in folder.split("/")]
    return tuple((int(number), rest) for number, _, rest in parts)


def _under(device: str, name: str) -> str:
    return f"{device}/{name}" if name else device


__all__ = ["ATB", "TORCH", "WARMUP", "Device", "LlmDump", "Token", "open_llm_dump"]
