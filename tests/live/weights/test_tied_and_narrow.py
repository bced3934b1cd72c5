"""Shared tensors, narrow dtypes, and models of many shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from twinprobe._live.weights.copying import copy_aligned
from twinprobe.errors import BadInput
from weights_bench import scramble, weights

PAIRS = [("table", "table"), ("head", "head")]


class Tied(nn.Module):
    def __init__(self, *, tied: bool) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        if tied:
            self.head.weight = self.table.weight


def test_tied_weights_stay_tied() -> None:
    target, source = Tied(tied=True), Tied(tied=True)
    report = copy_aligned(target, source, PAIRS)
    assert target.head.weight is target.table.weight
    assert torch.equal(target.head.weight, source.head.weight)
    assert report.notices == []


def test_a_tied_target_refuses_two_different_values() -> None:
    target = Tied(tied=True)
    before = weights(target)
    with pytest.raises(BadInput, match="one tensor shared by several layers") as caught:
        copy_aligned(target, Tied(tied=False), PAIRS)
    assert "table.weight [5, 3], head.weight [5, 3]" in str(caught.value)
    assert np.array_equal(before["table.weight"], weights(target)["table.weight"])


def test_a_tied_target_takes_two_equal_values() -> None:
    target, source = Tied(tied=True), Tied(tied=False)
    with torch.no_grad():
        source.head.weight.copy_(source.table.weight)
    copy_aligned(target, source, PAIRS)
    assert torch.equal(target.table.weight, source.head.weight)


def test_a_target_that_is_not_tied_is_told_so() -> None:
    target, source = Tied(tied=False), Tied(tied=True)
    report = copy_aligned(target, source, PAIRS)
    assert torch.equal(target.head.weight, source.head.weight)
    assert any("share one tensor in the source" in notice for notice in report.notices)


@pytest.mark.parametrize("narrow", [torch.bfloat16, torch.float16])
def test_narrow_weights_are_copied_to_the_bit(narrow: torch.dtype) -> None:
    target, source = nn.Linear(3, 5).to(narrow), nn.Linear(3, 5).to(narrow)
    report = copy_aligned(target, source, [("", "")])
    assert target.weight.dtype is narrow
    assert torch.equal(target.weight, source.weight)
    assert report.notices == []
    wide = nn.Linear(3, 5)
    copy_aligned(wide, source, [("", "")])
    assert torch.equal(wide.weight, source.weight.float())


def test_rounding_is_told() -> None:
    report = copy_aligned(nn.Linear(3, 5).bfloat16(), nn.Linear(3, 5), [("", "")])
    assert report.notices == ["2 weights were rounded from float32 to bfloat16"]


def test_gradients_and_modes_are_left_alone() -> None:
    target = nn.Linear(3, 5).eval()
    target(torch.ones(1, 3)).sum().backward()
    gradient = target.weight.grad.clone()
    copy_aligned(target, nn.Linear(3, 5), [("", "")])
    assert torch.equal(target.weight.grad, gradient)
    assert target.weight.requires_grad
    assert not target.training


@settings(deadline=None, max_examples=25)
@given(widths=st.lists(st.integers(1, 6), min_size=2, max_size=6), seed=st.integers(0, 99), bias=st.booleans())
def test_after_a_copy_all_weights_are_equal(widths: list[int], seed: int, bias: bool) -> None:
    def chain() -> nn.Sequential:
        linears = (nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(widths))
        return nn.Sequential(*linears, nn.LayerNorm(widths[-1]))

    target, source = chain(), chain()
    scramble(source, seed)
    report = copy_aligned(target, source, [(str(index), str(index)) for index in range(len(widths))])
    here, there = weights(target), weights(source)
    assert all(np.array_equal(here[name], there[name]) for name in there)
    assert sorted(report.copied) == sorted((name, name) for name in there)
    assert report.kept == []
