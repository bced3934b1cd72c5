"""The built-in table names real functions of PyTorch with their real arguments."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import Any

import pytest
import torch

from support import needs
from twinprobe._align.calls import Callee
from twinprobe._align.mapping.api_names import SignatureMap, _tables, family, signature, torch_name

# Overloads whose documentation does not spell out the arguments.
UNDOCUMENTED = {"Torch.index_fill", "Torch.masked_fill"}


def homes() -> dict[str, Any]:
    return {
        "Torch": torch, "Functional": torch.nn.functional, "Tensor": torch.Tensor, "Distributed": torch.distributed,
    }  # fmt: skip


def test_every_pytorch_name_exists() -> None:
    known = homes()
    names = [name.partition(".") for name in _tables().renamed.values()]
    assert [f"{home}.{name}" for home, _, name in names if home in known and not hasattr(known[home], name)] == []


@needs("torch", "2.4", "functions have these arguments")
def test_every_argument_is_documented() -> None:
    known = homes()
    wrong = []
    for name, written in _tables().torch.items():
        home, _, bare = name.partition(".")
        if home not in known:
            continue
        function = getattr(known[home], bare)
        text = function.__doc__ or ""
        with suppress(ValueError):
            text += str(inspect.signature(function))
        wrong += [(name, one) for one in written.names if one not in text and one != "self"]
    assert [pair for pair in wrong if pair[0] not in UNDOCUMENTED] == []


def test_the_table_is_large_and_each_api_occurs_once_per_side() -> None:
    table = _tables().renamed
    assert len(table) > 600
    assert {name.partition(".")[0] for name in table} == {"Functional", "Tensor", "Distributed", "Primitive"}


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("Mint.add", "Torch.add"),
        ("MintFunctional.gelu", "Functional.gelu"),
        ("MintDistributed.all_reduce", "Distributed.all_reduce"),
        ("Functional.dense", "Functional.linear"),
        ("Functional.transpose", "Torch.permute"),
        ("Functional.never_heard_of", "Functional.never_heard_of"),
    ],
)
def test_names_are_translated(name: str, means: str) -> None:
    prefix, _, body = name.partition(".")
    assert torch_name(Callee(name, prefix, body, "", body, False), is_mindspore=True) == means


def test_spellings_of_one_function_are_one_family() -> None:
    assert (
        len({family(name) for name in ("Torch.add", "Tensor.add", "Tensor.__add__", "Tensor.add_", "Tensor.__iadd__")})
        == 1
    )
    assert family("Torch.add") != family("Torch.addmm")
    assert family("Distributed.all_reduce") == "Distributed.all_reduce"


@pytest.mark.parametrize(
    ("mine", "theirs", "suffix", "other"),
    [
        (("Functional", "index_add"), ("Torch", "index_add"), ".input.1", ".input.2"),
        (("Functional", "index_add"), ("Torch", "index_add"), ".input.3", ".input.1"),
        (("Functional", "conv2d"), ("Functional", "conv2d"), ".input.5", ".input.4"),
        (("Functional", "cross_entropy"), ("Functional", "cross_entropy"), ".input.4", ".input.reduction"),
        (("Functional", "mean"), ("Torch", "mean"), ".input.keep_dims", ".input.keepdim"),
    ],
)
def test_arguments_that_differ_in_order_correspond(
    mine: tuple[str, str], theirs: tuple[str, str], suffix: str, other: str
) -> None:
    one = signature(*mine, "", framework="mindspore")
    two = signature(*theirs, "", framework="pytorch")
    assert one is not None
    assert two is not None
    arguments = SignatureMap(one, two)
    assert arguments.target_key(suffix, "forward") == arguments.golden_key(other, "forward")
