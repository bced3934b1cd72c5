"""Which argument of one API is which of the other: by the user's index lists, or by the public signatures."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from twinprobe.align.mapping.api_names import Signature, signature
from twinprobe.align.side import Head
from twinprobe.runs.names import BACKWARD

INPUT, OUTPUT = ".input.", ".output."


class ArgumentMap(Protocol):
    """Gives both sides' row suffixes a common spelling; None for a row that shall have no partner."""

    strict: bool

    def target_key(self, suffix: str, direction: str) -> str | None:
        """The common spelling of a target row."""

    def golden_key(self, suffix: str, direction: str) -> str | None:
        """The common spelling of a golden row."""


@dataclass
class IndexMap:
    """A user's lists: the target's index (or keyword) -> the golden run's. Whatever is not listed stays alone.

    The gradients of a backward call belong to the forward call's arguments, so the lists change places there.
    """

    inputs: dict[str, str] | None
    outputs: dict[str, str] | None
    others: dict[str, dict[str, str]] = field(default_factory=dict)
    strict = True

    def target_key(self, suffix: str, direction: str) -> str | None:
        """The golden run's own spelling."""
        section, listed = self._list_for(suffix, direction)
        if listed is None:
            return suffix
        first, dot, rest = suffix[len(section) :].partition(".")
        mapped = listed.get(first)
        return None if mapped is None else f"{section}{mapped}{dot}{rest}"

    def golden_key(self, suffix: str, direction: str) -> str | None:
        """The suffix itself."""
        section, listed = self._list_for(suffix, direction)
        if listed is None:
            return suffix
        first = suffix[len(section) :].partition(".")[0]
        return suffix if first in listed.values() else None

    def _list_for(self, suffix: str, direction: str) -> tuple[str, dict[str, str] | None]:
        inputs, outputs = (self.inputs, self.outputs) if direction != BACKWARD else (self.outputs, self.inputs)
        if suffix.startswith(INPUT):
            return INPUT, inputs
        if suffix.startswith(OUTPUT):
            return OUTPUT, outputs
        for section, listed in self.others.items():
            if suffix.startswith(section):
                return section, listed
        return "", None


class SignatureMap:
    """Both signatures in PyTorch's argument names; only forward inputs are spelled out."""

    def __init__(self, target: Signature, golden: Signature) -> None:
        self._target = target
        self._golden = golden
        places = {name: place for place, name in enumerate(golden.names)}
        # Only where the order differs may equal numbers mean different things.
        self.strict = any(places.get(name, place) != place for place, name in enumerate(target.names))

    def target_key(self, suffix: str, direction: str) -> str | None:
        """The argument's PyTorch name in place of its index."""
        return self._target.spell(suffix) if direction != BACKWARD else suffix

    def golden_key(self, suffix: str, direction: str) -> str | None:
        """The argument's PyTorch name in place of its index."""
        return self._golden.spell(suffix) if direction != BACKWARD else suffix


def signature_map(target: Head, golden: Head, target_is_ms: bool, golden_is_ms: bool) -> SignatureMap | None:
    """How the arguments of two APIs correspond by their signatures; None where one is not known."""
    return _signature_map(
        (target.prefix, target.body, target.cls), (golden.prefix, golden.body, golden.cls), target_is_ms, golden_is_ms
    )


@lru_cache(maxsize=4096)
def _signature_map(
    target: tuple[str, str, str], golden: tuple[str, str, str], target_is_ms: bool, golden_is_ms: bool
) -> SignatureMap | None:
    one, other = signature(*target, is_mindspore=target_is_ms), signature(*golden, is_mindspore=golden_is_ms)
    return SignatureMap(one, other) if one and other else None
