"""Which device of one dump is compared with which of the other, and which of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from twinprobe.errors import NothingToCompare
from twinprobe.runs.llm.dump import WARMUP, LlmDump, Token
from twinprobe.runs.llm.layout import Device, Layout


@dataclass(frozen=True, slots=True)
class DevicePair:
    """Two devices, and the folders of all cards where those of one side have to be joined."""

    my: Device
    golden: Device
    my_cards: tuple[str, ...] = ()
    golden_cards: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return self.my.name


def pair_all(my: LlmDump, golden: LlmDump) -> tuple[list[tuple[DevicePair, Token, Token]], list[str], list[str]]:
    """All tokens to compare, device by device; notes; and what was asked for but only one side has."""
    devices, notes = pair_devices(my.layout, golden.layout)
    pairs: list[tuple[DevicePair, Token, Token]] = []
    lost: list[str] = []
    nothing: NothingToCompare | None = None
    for devices_pair in devices:
        try:
            tokens, told, left = pair_tokens(my, golden, devices_pair)
        except NothingToCompare as error:
            nothing = error
            lost.append(f"{devices_pair.label}: {error}")
            continue
        pairs += [(devices_pair, *both) for both in tokens]
        notes += [note for note in told if note not in notes]
        lost += [one for one in left if one not in lost]
    if not pairs and nothing is not None:
        raise nothing
    return pairs, notes, lost


def pair_devices(my: Layout, golden: Layout) -> tuple[list[DevicePair], list[str]]:
    """As many devices on both sides: one by one. Otherwise the first of each, with the cards of a side joined."""
    notes: list[str] = []
    cards = [_one_per_number(layout, notes) for layout in (my, golden)]
    chosen = [[layout.device] if layout.device else found for layout, found in zip((my, golden), cards, strict=True)]
    same = len(cards[0]) == len(cards[1])
    folders = [() if same or len(found) == 1 else tuple(one.folder for one in found) for found in cards]
    if len(chosen[0]) != len(chosen[1]):
        if same:  # one side names a device, the other does not: its counterpart has the same place
            return [_counterpart(my, golden, cards)], notes
        chosen = [devices[:1] for devices in chosen]
    pairs = [
        DevicePair(mine, theirs, folders[0], folders[1]) for mine, theirs in zip(chosen[0], chosen[1], strict=True)
    ]
    for side, devices in zip(("my", "the golden"), folders, strict=True):
        if devices:
            notes.append(f"the tensors of {side} dump's {len(devices)} cards are joined where only all of them fit")
    return pairs, notes


def _counterpart(my: Layout, golden: Layout, cards: list[list[Device]]) -> DevicePair:
    side = 0 if my.device is not None else 1
    device = my.device or golden.device
    assert device is not None
    at = next((at for at, one in enumerate(cards[side]) if one.number == device.number), 0)
    other = cards[1 - side][at]
    return DevicePair(device, other) if side == 0 else DevicePair(other, device)


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
    my: LlmDump, golden: LlmDump, pair: DevicePair
) -> tuple[list[tuple[Token, Token]], list[str], list[str]]:
    """Tokens of equal number (where both paths name one token, those two); notes; and what only one side has."""
    mine, theirs = my.tokens(pair.my), golden.tokens(pair.golden)
    by_label = {token.label: token for token in theirs}
    common = [(token, by_label[token.label]) for token in mine if token.label in by_label]
    if common:
        return common, [], _left_out(mine, theirs)
    named = my.layout.token is not None and golden.layout.token is not None
    if named and mine and theirs:
        note = f"token {mine[0].label} of my dump is compared with token {theirs[0].label} of the golden one"
        return [(mine[0], theirs[0])], [note], []
    raise NothingToCompare(
        f"no token in common: my dump has {_listed(mine)}, the golden one {_listed(theirs)}",
        where=my.layout.path,
        hint="name one token's folder on each side to compare them whatever their numbers are",
    )


def _left_out(mine: Sequence[Token], theirs: Sequence[Token]) -> list[str]:
    lost = []
    labels = {token.label for token in mine} & {token.label for token in theirs}
    for who, tokens in (("my", mine), ("the golden", theirs)):
        rest = [token.label for token in tokens if token.label not in labels and token.label != WARMUP]
        if rest:
            lost.append(f"only {who} dump has the tokens {', '.join(rest[:8])}{' ...' if len(rest) > 8 else ''}")
    return lost


def _listed(tokens: Sequence[Token]) -> str:
    labels = [token.label for token in tokens]
    return ", ".join(labels[:8]) + (" ..." if len(labels) > 8 else "") if labels else "none"
