"""Which rank of one run set belongs to which of the other; the same of kernels, and of an inference dump's tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from twinprobe._align.links import NONE, Pairs, from_partners
from twinprobe._runs.kernel_dump import KernelRow
from twinprobe._runs.llm.dump import WARMUP, Device, Layout, LlmDump, Token
from twinprobe._runs.run import RunFolder, run_folders
from twinprobe.errors import BadInput, NothingToCompare


@dataclass(frozen=True, slots=True)
class FolderPair:
    """The same step and rank on both sides."""

    target: RunFolder
    golden: RunFolder


def pair_folders(
    target: Path, golden: Path, *, ranks: set[int] | None = None, steps: set[int] | None = None, shift: int = 0
) -> tuple[list[FolderPair], list[str], list[str]]:
    """Pair steps and ranks by their numbers: the pairs, notes, and what was asked for but is not on both sides.

    ``shift``: so much the golden run counts its steps ahead of the target.
    """
    sides = [_wanted(run_folders(root), ranks, steps) for root in (target, golden)]
    by_step = [_group(sides[0]), {(mode, step - shift): found for (mode, step), found in _group(sides[1]).items()}]
    lost = _missing("step", target, golden, by_step[0].keys(), by_step[1].keys(), shift)
    for what, asked in (("rank", ranks), ("step", steps)):
        absent = set(asked or ()) - {getattr(folder.key, what) for side in sides for folder in side}
        lost += [f"neither {target} nor {golden} has {what}{number}" for number in sorted(absent)]
    pairs: list[FolderPair] = []
    notes: list[str] = []
    for step in sorted(by_step[0].keys() & by_step[1].keys()):
        paired, remarks, alone = _pair_ranks(by_step[0][step], by_step[1][step], target, golden)
        pairs += paired
        notes += remarks
        lost += alone
    if not pairs and len(by_step[0]) == len(by_step[1]) == 1 and not steps:
        # Two step folders named on the command line may well be different steps.
        (left,), (right,) = by_step[0].values(), by_step[1].values()
        if left[0].key.step < 0 and right[0].key.step < 0:
            pairs, notes, lost = _pair_ranks(left, right, target, golden)
    if not pairs:
        if not (sides[0] or sides[1]) and lost:
            raise BadInput(lost[0], hint=f"{target} has {_list(run_folders(target))}")
        raise BadInput(
            f"no step and rank in common with {golden}: {_list(sides[0])} here, {_list(sides[1])} there", where=target
        )
    return pairs, notes, lost


def _wanted(side: list[RunFolder], ranks: set[int] | None, steps: set[int] | None) -> list[RunFolder]:
    return [
        folder
        for folder in side
        if (ranks is None or folder.key.rank in ranks) and (steps is None or folder.key.step in steps)
    ]


def _group(side: list[RunFolder]) -> dict[tuple[str, int], list[RunFolder]]:
    keyed = groupby(side, key=lambda folder: (folder.key.graph_mode, folder.key.step))
    return {key: list(group) for key, group in keyed}


def _pair_ranks(
    left: list[RunFolder], right: list[RunFolder], target: Path, golden: Path
) -> tuple[list[FolderPair], list[str], list[str]]:
    if len(left) == len(right) == 1:
        return [FolderPair(left[0], right[0])], [], []
    if left[0].by_process and right[0].by_process:
        # Process numbers mean nothing from run to run; their order is all there is.
        pairs = [FolderPair(a, b) for a, b in zip(left, right, strict=False)]
        rest = [folder.label for folder in left[len(right) :] + right[len(left) :]]
        notes = [f"processes are paired in order of their ids: {target} and {golden}"]
        return pairs, notes, [f"{label} has no counterpart" for label in rest]
    numbers = {folder.key.rank: folder for folder in right}
    pairs = [FolderPair(folder, numbers[folder.key.rank]) for folder in left if folder.key.rank in numbers]
    what = (left[0].key.subfolder / "rank").as_posix()
    return pairs, [], _missing(what, target, golden, {folder.key.rank for folder in left}, numbers.keys())


def _missing(what: str, target: Path, golden: Path, left: object, right: object, shift: int = 0) -> list[str]:
    ours, theirs = set(left), set(right)  # type: ignore[call-overload]
    notes = []
    for root, only, ahead in ((target, ours - theirs, 0), (golden, theirs - ours, shift)):
        if only:
            names = ", ".join(_name(what, key, ahead) for key in sorted(only))
            notes.append(f"only {root} has {names}: left out")
    return notes


def _name(what: str, key: object, ahead: int) -> str:
    number = key[1] + ahead if isinstance(key, tuple) else key
    prefix = f"{key[0]}/" if isinstance(key, tuple) and key[0] else ""
    return f"{prefix}{what}{number}"


def _list(side: list[RunFolder]) -> str:
    names = sorted({f"{folder.key.subfolder / folder.label}" for folder in side})
    return ", ".join(names[:6]) + (" ..." if len(names) > 6 else "") if names else "nothing"


# Kernels of a static graph belong together by their names; repeated runs of a kernel by their order in time.

Key = Callable[[KernelRow], Hashable]

# From strict to loose. Graph and task numbers are given out by the framework and may differ between its versions.
RULES: tuple[tuple[str, Key], ...] = (
    ("kernel", lambda row: (row.graph, row.name.op, row.name.task, row.name.io, row.name.slot)),
    ("kernel of another graph", lambda row: (row.name.op, row.name.task, row.name.io, row.name.slot)),
    ("kernel of another task", lambda row: (row.name.op, row.name.io, row.name.slot)),
)


def match_kernels(target: Sequence[KernelRow], golden: Sequence[KernelRow]) -> Pairs:
    """Pair the rows of two dumps; both must be in the order they were recorded."""
    partners = [NONE] * len(target)
    rules = [""] * len(target)
    free = list(range(len(golden)))
    for rule, key in RULES:
        open_rows = [at for at, partner in enumerate(partners) if partner == NONE]
        if not open_rows or not free:
            break
        waiting: defaultdict[Hashable, list[int]] = defaultdict(list)
        for at in reversed(free):
            waiting[key(golden[at])].append(at)
        for at in open_rows:
            found = waiting.get(key(target[at]))
            if found:
                partners[at], rules[at] = found.pop(), rule
        used = set(partners)
        free = [at for at in free if at not in used]
    return from_partners(partners, len(golden), rules)


# Inference dumps: devices by their numbers, tokens by theirs.


@dataclass(frozen=True, slots=True)
class DevicePair:
    """Two devices, and the folders of all cards where those of one side have to be joined."""

    target: Device
    golden: Device
    target_cards: tuple[str, ...] = ()
    golden_cards: tuple[str, ...] = ()


def pair_all(target: LlmDump, golden: LlmDump) -> tuple[list[tuple[DevicePair, Token, Token]], list[str], list[str]]:
    """All tokens to compare, device by device; notes; and what was asked for but only one side has."""
    devices, notes = pair_devices(target.layout, golden.layout)
    pairs: list[tuple[DevicePair, Token, Token]] = []
    lost: list[str] = []
    nothing: NothingToCompare | None = None
    for devices_pair in devices:
        try:
            tokens, remarks, left = pair_tokens(target, golden, devices_pair)
        except NothingToCompare as error:
            nothing = error
            lost.append(f"{devices_pair.target.name}: {error}")
            continue
        pairs += [(devices_pair, *both) for both in tokens]
        notes += [note for note in remarks if note not in notes]
        lost += [loss for loss in left if loss not in lost]
    if not pairs and nothing is not None:
        raise nothing
    return pairs, notes, lost


def pair_devices(target: Layout, golden: Layout) -> tuple[list[DevicePair], list[str]]:
    """As many devices on both sides: one by one. Otherwise the first of each, with the cards of a side joined."""
    notes: list[str] = []
    cards = [_one_per_number(layout, notes) for layout in (target, golden)]
    chosen = [
        [layout.device] if layout.device else found for layout, found in zip((target, golden), cards, strict=True)
    ]
    same = len(cards[0]) == len(cards[1])
    folders = [() if same or len(found) == 1 else tuple(card.folder for card in found) for found in cards]
    if len(chosen[0]) != len(chosen[1]):
        if same:  # one side names a device, the other does not: its counterpart has the same place
            return [_counterpart(target, golden, cards)], notes
        chosen = [devices[:1] for devices in chosen]
    pairs = [
        DevicePair(device, partner, folders[0], folders[1])
        for device, partner in zip(chosen[0], chosen[1], strict=True)
    ]
    for side, devices in zip(("my", "the golden"), folders, strict=True):
        if devices:
            notes.append(f"the tensors of {side} dump's {len(devices)} cards are joined where only all of them fit")
    return pairs, notes


def _counterpart(target: Layout, golden: Layout, cards: list[list[Device]]) -> DevicePair:
    side = 0 if target.device is not None else 1
    named = target.device or golden.device
    assert named is not None
    index = next((index for index, card in enumerate(cards[side]) if card.number == named.number), 0)
    other = cards[1 - side][index]
    return DevicePair(named, other) if side == 0 else DevicePair(other, named)


def _one_per_number(layout: Layout, notes: list[str]) -> list[Device]:
    """A folder may hold several runs: one process per device counts, the named one or the first."""
    found: dict[int, Device] = {}
    for device in layout.devices:
        if layout.device is not None and device.number == layout.device.number:
            found[device.number] = layout.device
        elif device.number not in found:
            found[device.number] = device
    left = [device.name for device in layout.devices if found[device.number] is not device]
    if left and layout.device is None:
        notes.append(f"{layout.root}: several processes used one device; left out: {', '.join(left[:6])}")
    return [found[number] for number in sorted(found)]


def pair_tokens(
    target: LlmDump, golden: LlmDump, pair: DevicePair
) -> tuple[list[tuple[Token, Token]], list[str], list[str]]:
    """Tokens of equal number (where both paths name one token, those two); notes; and what only one side has."""
    target_tokens, golden_tokens = target.tokens(pair.target), golden.tokens(pair.golden)
    by_label = {token.label: token for token in golden_tokens}
    common = [(token, by_label[token.label]) for token in target_tokens if token.label in by_label]
    if common:
        labels = {token.label for token, _ in common}
        lost = []
        for who, tokens in (("my", target_tokens), ("the golden", golden_tokens)):
            rest = [token for token in tokens if token.label not in labels and token.label != WARMUP]
            if rest:
                lost.append(f"only {who} dump has the tokens {_listed(rest)}")
        return common, [], lost
    named = target.layout.token is not None and golden.layout.token is not None
    if named and target_tokens and golden_tokens:
        token, partner = target_tokens[0], golden_tokens[0]
        note = f"token {token.label} of my dump is compared with token {partner.label} of the golden one"
        return [(token, partner)], [note], []
    raise NothingToCompare(
        f"no token in common: my dump has {_listed(target_tokens)}, the golden one {_listed(golden_tokens)}",
        where=target.layout.path,
        hint="name one token's folder on each side to compare them whatever their numbers are",
    )


def _listed(tokens: Sequence[Token]) -> str:
    labels = [token.label for token in tokens]
    return ", ".join(labels[:8]) + (" ..." if len(labels) > 8 else "") if labels else "none"
