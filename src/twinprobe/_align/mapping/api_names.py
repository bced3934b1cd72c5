"""When two API names mean the same: the prefix rules, the built-in table, operators and methods of one function."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import NamedTuple, Protocol

from twinprobe._align.calls import MINDSPORE, Callee
from twinprobe._runs.names import BACKWARD

_PADDLE = "paddle"
MINT_PREFIXES = {"Mint": "Torch", "MintFunctional": "Functional", "MintDistributed": "Distributed"}
# The homes of one function in PyTorch and Paddle: torch.add, Tensor.add and the operator are one family.
_FOLDED = frozenset({"Torch", "Tensor", "Functional", "VF", "Paddle"})
_OPERATORS = {
    "add": "add", "iadd": "add", "radd": "add", "sub": "sub", "isub": "sub", "rsub": "rsub",
    "mul": "mul", "imul": "mul", "rmul": "mul", "truediv": "div", "itruediv": "div", "rtruediv": "rdiv",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "pow", "matmul": "matmul", "neg": "neg", "abs": "abs",
    "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "invert": "bitwise_not",
    "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
}  # fmt: skip
_SYNONYMS = {
    "multiply": "mul", "divide": "div", "true_divide": "div", "subtract": "sub", "negative": "neg", "absolute": "abs",
    "concat": "cat", "concatenate": "cat", "clip": "clamp", "not_equal": "ne", "greater": "gt", "greater_equal": "ge",
    "less": "lt", "less_equal": "le", "swapaxes": "transpose", "swapdims": "transpose", "moveaxis": "movedim",
    "bmm": "matmul", "mm": "matmul",
}  # fmt: skip

# Functions that PyTorch builds from others: a hook on their result sees the gradients of the last part only.
COMPOSITE = frozenset({
    "bilinear", "cross_entropy", "einsum", "linear", "matmul", "multi_head_attention_forward",
    "scaled_dot_product_attention", "tensordot",
})  # fmt: skip


class Signature(NamedTuple):
    """Positional arguments in PyTorch's names, keywords that are spelled differently, and the argument of the rest."""

    names: tuple[str, ...]
    keywords: dict[str, str]
    rest: int = -1

    def spell(self, suffix: str) -> str:
        """``.input.1`` as ``.input.dim``; other suffixes stay as they are."""
        if not suffix.startswith(".input."):
            return suffix
        first, dot, tail = suffix[7:].partition(".")
        if not first.isdecimal() or len(first) > 6:
            return f".input.{self.keywords.get(first, first)}{dot}{tail}"
        place = int(first)
        if 0 <= self.rest <= place and not (place == self.rest and dot):
            return f".input.{self.names[self.rest]}.{place - self.rest}{dot}{tail}"
        return f".input.{self.names[place]}{dot}{tail}" if place < len(self.names) else suffix


class _Tables(NamedTuple):
    """What api_table.txt holds."""

    torch: dict[str, Signature]
    renamed: dict[str, str]
    mindspore: dict[str, Signature]
    paddle: dict[str, Signature]


def torch_name(callee: Callee, *, is_mindspore: bool) -> str:
    """The PyTorch API a call means; a name that no rule knows stays as it is."""
    if not is_mindspore:
        return callee.name
    prefix = MINT_PREFIXES.get(callee.prefix)
    if prefix:
        return f"{prefix}.{callee.body}"
    if callee.prefix == "Primitive":
        return _tables().renamed.get(f"Primitive.{callee.cls}", callee.name)
    return _tables().renamed.get(callee.name, callee.name)


def family(name: str) -> str:
    """What all spellings of one function share: torch.add, Tensor.add, Tensor.__add__ and the in-place add_."""
    prefix, _, bare = name.partition(".")
    return bare_family(bare) if prefix in _FOLDED and bare else name


def bare_family(bare: str) -> str:
    """The family of a function's name without prefix."""
    if bare.startswith("__") and bare.endswith("__"):
        return _OPERATORS.get(bare[2:-2], bare)
    bare = bare.removesuffix("_") or bare
    return _SYNONYMS.get(bare, bare)


def family_written(bare: str, *, is_mindspore: bool) -> str:
    """The family of a name as a user writes it in a mapping file, without prefix."""
    if is_mindspore:
        for prefix in ("Functional", "Tensor", "Primitive"):
            if f"{prefix}.{bare}" in _tables().renamed:
                return family(_tables().renamed[f"{prefix}.{bare}"])
    return bare_family(bare)


def signature(prefix: str, body: str, cls: str, *, framework: str) -> Signature | None:
    """The positional order of an API's arguments; None where the table does not say."""
    tables, is_mindspore = _tables(), framework == MINDSPORE
    if framework == _PADDLE and f"{prefix}.{body}" in tables.paddle:
        return tables.paddle[f"{prefix}.{body}"]
    name = f"Primitive.{cls}" if prefix == "Primitive" else f"{prefix}.{body}"
    if is_mindspore and prefix not in MINT_PREFIXES:
        if name in tables.mindspore:
            return tables.mindspore[name]
        name = tables.renamed.get(name, "")
        return tables.torch.get(name)
    name = f"{MINT_PREFIXES.get(prefix, prefix)}.{body}" if is_mindspore else name
    if name in tables.torch:
        return tables.torch[name]
    return tables.torch.get(f"Torch.{body}") if prefix == "Tensor" else None


@lru_cache(maxsize=1)
def _tables() -> _Tables:
    tables = _Tables({}, {}, {}, {})
    text = (resources.files("twinprobe._align.mapping") / "api_table.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        pair, _, rest = line.partition(":")
        mindspore, is_pair, torch = pair.partition(" > ")
        if not is_pair:
            name, *arguments = line.removeprefix("paddle ").split()
            (tables.paddle if line.startswith("paddle ") else tables.torch)[name] = _signature(arguments)
        elif "." in mindspore:
            tables.renamed[mindspore] = torch
            if rest:
                tables.mindspore[mindspore] = _signature(rest.split())
        else:
            tables.renamed.update({f"{mindspore}.{name}": f"{torch}.{name}" for name in rest.split()})
    return tables


def _signature(arguments: list[str]) -> Signature:
    names, keywords, rest = [], {}, -1
    for place, argument in enumerate(arguments):
        mine, _, theirs = argument.lstrip("*").partition("=")
        if argument.startswith("*"):
            rest = place
        names.append(theirs or mine)
        if theirs:
            keywords[mine] = theirs
    return Signature(tuple(names), keywords, rest)


# Which argument of one API is which of the other: by the user's index lists, or by the public signatures.

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
    """A user's lists: the target's index (or keyword) -> the golden run's. Whatever is not listed stays unmatched.

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


def signature_map(target: Callee, golden: Callee, frameworks: tuple[str, str]) -> SignatureMap | None:
    """How the arguments of two APIs correspond by their signatures; None where one is not known."""
    return _signature_map(
        (target.prefix, target.body, target.cls), (golden.prefix, golden.body, golden.cls), *frameworks
    )


@lru_cache(maxsize=4096)
def _signature_map(target: tuple[str, str, str], golden: tuple[str, str, str], *frameworks: str) -> SignatureMap | None:
    one, other = signature(*target, framework=frameworks[0]), signature(*golden, framework=frameworks[1])
    return SignatureMap(one, other) if one and other else None
