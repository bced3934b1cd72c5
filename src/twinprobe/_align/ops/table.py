"""Which operator types of an inference engine mean the same as which module classes: the built-in table and the user's.

A key or value may name a tensor after its first underscore: ``CommonLayer_outtensor0`` is the first output of a
CommonLayer, ``GLMBlock_output_0`` the file ``output_0`` of a GLMBlock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from twinprobe._runs.whole_files import whole_file
from twinprobe.errors import BadInput

FILE = "op_mapping_file.json"
BUILT_IN: dict[str, tuple[str, ...]] = {
    "LayerNormOperation": ("LayerNorm",),
    "LinearOperation": ("Linear",),
    "CommonLayer_outtensor0": ("GLMBlock_output_0", "BloomBlock_output_0"),
    "MlpGateLayerV2": ("BloomMLP", "MLP"),
    "RmsNormOperation": ("RMSNorm",),
    "SelfAttentionOperation": ("CoreAttention",),
}
_NAME = re.compile(r"[A-Za-z0-9_]+")
_TENSOR = re.compile(r"(?:in|out)tensor\d+\w*|(?:input|output)(?:_\w+)?")
_MOST_BYTES = 1 << 20

# What an operator or a module does, by pieces of its type's name; the first that fits counts.
_KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("collective", ("allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "send", "recv")),
    ("split", ("split", "chunk", "slice")),
    ("rotary", ("rope", "rotary")),
    ("norm", ("norm",)),
    ("embedding", ("embed", "gather")),
    ("attention", ("attention", "attn", "pagedatt")),
    ("head", ("lmhead", "lm_head")),
    ("mlp", ("mlp", "feedforward", "ffn")),
    ("gate", ("topk", "router", "gating")),
    ("linear", ("linear", "matmul", "conv1d", "dense", "w_pack", "gemm", "proj")),
    ("activation", ("activation", "silu", "gelu", "relu", "swish", "swiglu", "sigmoid", "tanh")),
    ("dropout", ("dropout", "identity")),
    ("elementwise", ("elewise", "add", "mul")),
)
# Types that differ in how they compute and not in what.
_FOLDED = {
    "LinearQuantOperation": "LinearOperation",
    "LinearDequantOnly": "LinearNoQuant",
    "LinearRowParallelNoAdd": "LinearRowParallelAndAdd",
}


def kind_of(op_type: str) -> str:
    """What an operator does: linear, norm, attention ...; the type itself where no piece of it is known."""
    text = op_type.lower().replace("operation", "")
    return next((kind for kind, pieces in _KINDS if any(piece in text for piece in pieces)), text)


def folded(op_type: str) -> str:
    """The type without the way of its quantisation."""
    return _FOLDED.get(op_type, op_type)


@dataclass(frozen=True, slots=True)
class Named:
    """A type and, where the table names one, the stem of a tensor file."""

    type: str
    tensor: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the table: an engine's operator and the module classes that it stands for."""

    operator: Named
    modules: tuple[Named, ...]
    by_user: bool

    def names(self, named: Named, op_type: str) -> bool:
        """Whether a name of this row means a type; rows of the user match parts of types as well."""
        return named.type == op_type or (self.by_user and bool(named.type) and named.type in op_type)


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """The built-in rows, updated by the user's."""

    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()

    def entry(self, operator: str, module: str) -> Entry | None:
        """The row that says that these two belong together."""
        for entry in self.entries:
            if entry.names(entry.operator, operator) and any(entry.names(named, module) for named in entry.modules):
                return entry
        return None


def read_table(path: Path | None) -> OperatorTable:
    """The built-in table, updated by key with the user's: a file, or a folder that may hold op_mapping_file.json."""
    if path is None:
        return _table({}, ())
    if path.is_dir():
        if not (path / FILE).is_file():
            return _table({}, (f"{path} holds no {FILE}: the built-in operator table is used",))
        path = path / FILE
    if not path.exists():
        raise BadInput("does not exist", where=path, hint=f"give a folder that holds {FILE}, or the file itself")
    return _table(_checked(path, _document(path)), ())


def _table(own: Mapping[str, tuple[str, ...]], notes: tuple[str, ...]) -> OperatorTable:
    merged = {**BUILT_IN, **own}
    entries = [
        Entry(_named(key), tuple(_named(value) for value in values), key in own) for key, values in merged.items()
    ]
    # The user's rows come first: they may say more about a type that the built-in ones know.
    return OperatorTable(tuple(sorted(entries, key=lambda entry: not entry.by_user)), notes)


def _named(text: str) -> Named:
    kind, _, tensor = text.partition("_")
    return Named(kind, tensor) if _TENSOR.fullmatch(tensor) else Named(text)


def _document(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadInput("is too large for an operator mapping", where=path)
        return msgspec.json.decode(whole_file(path))
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"is not valid JSON: {error}", where=path) from None


def _checked(path: Path, document: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(document, dict):
        what = f"the operator mapping must be an object, not {type(document).__name__}"
        raise BadInput(what, where=path, hint='for example {"LinearOperation": ["Linear"]}')
    table = {}
    for key, value in document.items():
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not values or not all(isinstance(item, str) for item in values):
            raise BadInput("must be a text or a list of texts", where=f"{path}: {key!r}")
        for name in (key, *values):
            if not _NAME.fullmatch(name):
                raise BadInput(f"{name!r} is not a type: only letters, digits and _", where=f"{path}: {key!r}")
        table[key] = tuple(values)
    return table
