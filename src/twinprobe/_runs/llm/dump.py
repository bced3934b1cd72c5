"""An inference dump, opened: its tokens, and for each the operators and their tensor files. No tensor is read."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from twinprobe._runs.llm.files import ATB, TORCH, Files, TokenFolder, folders_in
from twinprobe._runs.llm.tree import OpNode, read_model_tree, read_topology
from twinprobe._runs.whole_files import read_json, remote
from twinprobe.errors import BadInput

TREE = "model_tree.json"
_TORCH_DEVICE = re.compile(
    r"(?P<pid>\d+)_(?P<kind>[a-z]+)(?P<number>\d*)|(?P<kind2>[a-z]+)(?P<number2>\d*)_(?P<pid2>\d+)"
)
_ATB_DEVICE = re.compile(r"(?P<number>\d+)_(?P<pid>\d+)")
_OPERATOR = re.compile(r"\d+_[^\d].*")
_ATB_ROOT = ("msit_dump", "ait_dump", "atb_dump_data", "atb_temp")
STORES = ("tensors", "data")
_HINT = (
    "expected {pid}_npu{id}/{token}, msit_dump_*/torch_tensors/{device}_{pid}/{token} or "
    "ait_dump/tensors/{device}_{pid}/{token}"
)


@dataclass(frozen=True, slots=True)
class Device:
    """One process's share of a dump: its folder under the root, and the number of its device (-1 on a CPU)."""

    folder: str
    number: int
    pid: str

    @property
    def name(self) -> str:
        return self.folder.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Layout:
    """A recognised dump. Everything lies under ``root``; ``device`` and ``token`` are set where the user named one."""

    kind: str
    path: Path
    root: Path
    devices: tuple[Device, ...]
    device: Device | None = None
    token: str | None = None

    @property
    def chosen(self) -> tuple[Device, ...]:
        """The devices that the user asked for."""
        return (self.device,) if self.device is not None else self.devices


def find_layout(path: Path) -> Layout:
    """Recognise the dump that a path names: its top folder, a device's folder or one token's folder."""
    if not path.exists():
        raise BadInput("does not exist", where=path)
    if not path.is_dir():
        raise BadInput("is a file, not the folder of a dump", where=path, hint="give two folders or two tensor files")
    # Links stay as the user wrote them.
    whole = path if remote(path) is not None else Path(os.path.abspath(path))  # noqa: PTH100
    layout = _atb(whole) or _torch(whole)
    if layout is None:
        raise BadInput("is neither a torch dump nor an ATB dump", where=path, hint=_HINT)
    return layout


def is_round(name: str) -> bool:
    """Whether a folder's name is the number of a token or of an execution round."""
    return name.isdecimal() and len(name) < 10


def _atb(path: Path) -> Layout | None:
    parents = [(path.parents[up], path.parts[-up - 1 :]) for up in range(min(5, len(path.parents)))]
    for root, below in [(path, ()), *parents]:
        for store in STORES:
            if below and below[0] != store:
                continue
            devices = _atb_devices(root, store)
            if devices:
                return _atb_layout(path, root, devices, below[1:])
    inside = [name for name in folders_in(path) if name.startswith(_ATB_ROOT)]
    inside = [name for name in inside if any(_atb_devices(path / name, store) for store in STORES)]
    if not inside:
        return None
    beside = [str(folder.relative_to(path)) for folder in _torch_below(path)]
    if len(inside) + len(beside) > 1:
        names = ", ".join([*inside, *beside][:4])
        raise BadInput(f"holds several dumps: {names}", where=path, hint="name one of them")
    return _atb(path / inside[0])


def _atb_layout(path: Path, root: Path, devices: list[Device], below: tuple[str, ...]) -> Layout:
    if not below:
        return Layout(ATB, path, root, tuple(devices))
    device = next((device for device in devices if device.name == below[0]), None)
    if device is None:
        raise BadInput("is not a device's folder of an ATB dump", where=path, hint=_HINT)
    token = below[1] if len(below) > 1 else None
    if token is not None and (not is_round(token) or len(below) > 2):
        raise BadInput("lies inside a token's folder", where=path, hint="name the token's folder itself")
    return Layout(ATB, path, root, tuple(devices), device, token)


def _atb_devices(root: Path, store: str) -> list[Device]:
    devices = []
    for name in folders_in(root / store):
        match = _ATB_DEVICE.fullmatch(name)
        # It holds rounds, or in the oldest layout operators without a round.
        inner = folders_in(root / store / name) if match is not None else []
        if match is not None and any(is_round(below) or _OPERATOR.fullmatch(below) for below in inner):
            devices.append(Device(f"{store}/{name}", int(match["number"]), match["pid"]))
    return sorted(devices, key=lambda device: (device.number, int(device.pid)))


def _torch(path: Path) -> Layout | None:
    for up, below in ((path, ()), (path.parent, (path.name,)), (path.parent.parent, (path.parent.name, path.name))):
        if (up / TREE).is_file() or _holds_modules(up):
            return _torch_layout(path, up, below)
    folders = _torch_below(path)
    roots = {folder.parent for folder in folders}
    if len(roots) > 1:
        names = ", ".join(sorted(str(root.relative_to(path)) for root in roots)[:4])
        raise BadInput(f"holds several dumps: {names}", where=path, hint="name one of them")
    if not roots:
        return None
    root = roots.pop()
    return Layout(TORCH, path, root, tuple(_torch_devices(root, {folder.name for folder in folders})))


def _torch_below(path: Path) -> list[Path]:
    patterns = (f"*/{TREE}", f"torch_tensors/*/{TREE}", f"msit_dump_*/torch_tensors/*/{TREE}")
    return sorted(file.parent for pattern in patterns for file in path.glob(pattern))


def _torch_layout(path: Path, folder: Path, below: tuple[str, ...]) -> Layout | None:
    root = folder.parent
    devices = _torch_devices(root, {folder.name})
    device = next(device for device in devices if device.name == folder.name)
    token = below[0] if below else None
    if token is not None and not is_round(token):
        return None
    if len(below) > 1:
        raise BadInput("lies inside a token's folder", where=path, hint="name the token's folder itself")
    return Layout(TORCH, path, root, tuple(devices), device, token)


def _torch_devices(root: Path, named: set[str]) -> list[Device]:
    """The device folders beside each other; a folder of any name counts if it was named."""
    devices = []
    for name in folders_in(root):
        match = _TORCH_DEVICE.fullmatch(name)
        if match is not None and (name in named or (root / name / TREE).is_file()):
            number = match["number"] or match["number2"] or "-1"
            devices.append(Device(name, int(number), match["pid"] or match["pid2"]))
        elif name in named:
            devices.append(Device(name, -1, ""))
    return sorted(devices, key=lambda device: (device.number, device.name))


def _holds_modules(folder: Path) -> bool:
    """Whether tokens with modules lie here although the tree is missing: a recording that was killed early."""
    return any(
        is_round(token) and any(name == "root" or name.startswith("root.") for name in folders_in(folder / token))
        for token in folders_in(folder)[:4]
    )


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
            return [Token(name or "0", f"{device.folder}/{name}".rstrip("/")) for name in rounds]
        return self._two_models(device, rounds)

    def _two_models(self, device: Device, rounds: list[str]) -> list[Token]:
        """With two graphs round 0 warms up, round 1 holds the prefill and the first decoding, later ones a token each.

        Where nothing but round 0 was dumped, that round is the run itself.
        """
        tokens: list[Token] = []
        only_first = self._rounds(device) == ["0"]
        for name in rounds:
            folder = f"{device.folder}/{name}".rstrip("/")
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

    def folder(self, token: Token) -> TokenFolder:
        """Where the tensor files of a token lie."""
        return TokenFolder(self.kind, self.root, token.folder)

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
        left = ", ".join(tree.name for tree in topologies[2:])
        notes.append(f"{layout.root}: there are {len(topologies)} models; left out: {left}")
    dump = LlmDump(layout, topologies[:2], notes)
    _fit_numbers(dump, device)
    return dump


def _topologies(layout: Layout, device: Device) -> list[OpNode]:
    root = layout.root
    folders = [root / "model" / device.pid, root / "info" / "model" / device.name]
    folders += sorted(folder for folder in (root / "model").glob("*") if folder.is_dir())
    folder = next((folder for folder in folders if folder.is_dir() and any(folder.glob("*.json"))), None)
    if folder is None:
        return []
    shift = int((root / "layer" / folder.name / "TransdataOperation_0.json").is_file())
    models = [read_topology(file, shift=shift) for file in sorted(folder.glob("*.json"))]
    return [tree for tree, _ in sorted(models, key=lambda model: model[1])]


def _fit_numbers(dump: LlmDump, device: Device) -> None:
    """Numbers in folder names may start elsewhere than in the topology: take the offset that fits most operators."""
    for token in dump.tokens(device)[:2]:
        if not dump.models:
            return
        model = dump.models[token.model]
        tops = {name for name in dump.folder(token).files if "/" not in name}
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
        for node in (node for child in model.children for node in child.walk()) if offset else ():
            number, _, rest = node.folder.partition("_")
            node.folder = f"{int(number) + offset}_{rest}"


def _offset(model: OpNode, tops: set[str]) -> int | None:
    if all(child.folder in tops for child in model.children):
        return 0
    offsets: Counter[int] = Counter()
    numbers: dict[str, list[int]] = {}
    for name in tops:
        number, _, kind = name.partition("_")
        numbers.setdefault(kind, []).append(int(number))
    for child in model.children:
        number, _, kind = child.folder.partition("_")
        offsets.update(on_disk - int(number) for on_disk in numbers.get(kind, ()))
    return max(offsets, key=lambda offset: (offsets[offset], -abs(offset)), default=None)


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
        node = nodes[folder] = OpNode(folder, folder.rpartition(".")[2].split("-")[0], folder)
        nodes.get(parent, copy).children.append(node)
    return copy


def _copied(tree: OpNode) -> OpNode:
    children = [_copied(child) for child in tree.children]
    return OpNode(tree.name, tree.op_type, tree.folder, children, tree.param, tree.inputs, tree.outputs, tree.called)


def _tree_of_folders(files: Files) -> OpNode:
    """The operators as the folders show them: ``1_Layer/0_LinearOperation``."""
    top = OpNode("", "", "")
    nodes = {"": top}

    def order(folder: str) -> list[tuple[int, str]]:
        return [(int(number), rest) for number, _, rest in (part.partition("_") for part in folder.split("/"))]

    for folder in sorted(files, key=order):
        parent, _, last = folder.rpartition("/")
        node = nodes[folder] = OpNode(folder, last.partition("_")[2], folder)
        nodes[parent if parent in nodes else ""].children.append(node)
    return top


METADATA, FOLDER = "metadata.json", "golden_tensor"
_FORM = '{"data_id": {"token_id": ["golden tensor", "my tensor"]}}'


@dataclass(frozen=True, slots=True)
class ManualPair:
    """One tensor saved by hand: its file under the folder of the metadata, and its counterpart as the user wrote it."""

    token: str
    data_id: str
    golden: str
    target: str


def find_manual(path: Path) -> Path | None:
    """The metadata file at a path: itself, or the one in its folder; None where it is another kind of dump."""
    if path.name == METADATA:
        return path if path.is_file() else None
    if not path.is_dir() or (path / TREE).is_file():
        return None
    files = [file for file in (path / METADATA, path / FOLDER / METADATA) if file.is_file()]
    files = files or sorted(path.glob(f"*/{FOLDER}/{METADATA}"))
    if len(files) > 1:
        names = ", ".join(str(file.parent.relative_to(path)) for file in files[:4])
        raise BadInput(f"holds tensors of several processes: {names}", where=path, hint="name one of them")
    return files[0] if files else None


def read_manual(path: Path) -> list[ManualPair]:
    """The pairs in order of their tokens, within one in the order of saving."""
    document = read_json(path)
    saved = document.items() if isinstance(document, dict) else ()
    pairs = [pair for data_id, tokens in saved for pair in _pairs_of(path, data_id, tokens)]
    if not pairs:
        raise BadInput("names no pairs of tensors", where=path, hint=f"expected {_FORM}")
    return sorted(pairs, key=lambda pair: int(pair.token))


def _pairs_of(path: Path, data_id: str, tokens: Any) -> list[ManualPair]:
    pairs = []
    for token, files in tokens.items() if isinstance(tokens, dict) else [("", None)]:
        if not is_round(token) or not isinstance(files, list) or [type(file) for file in files] != [str, str]:
            raise BadInput("names no pair of tensors", where=f"{path}: {data_id}", hint=f"expected {_FORM}")
        # Absolute paths are wrong once a dump has been moved; the place beside the metadata does not change.
        golden = files[0].replace("\\", "/").rpartition("/")[2]
        pairs.append(ManualPair(token, data_id, f"{token}/{golden}", files[1]))
    return pairs
