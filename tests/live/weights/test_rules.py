"""Each kind of layer computes the same as its like after its weights were copied."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from twinprobe import auto_diff, copy_weights
from twinprobe.errors import BadInput
from weights_bench import Case, arrays, copy_whole, scramble


class MyLinear(nn.Linear):
    """A subclass follows the rule of its base."""


CASES = [
    Case("linear", lambda: nn.Linear(3, 5), lambda: MyLinear(3, 5)),
    Case("grouped conv", lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: nn.Conv2d(4, 6, 3, groups=2), ((2, 4, 9, 9),)),
    Case("conv back", lambda: nn.ConvTranspose1d(4, 6, 3), lambda: nn.ConvTranspose1d(4, 6, 3), ((2, 4, 9),)),
    Case("embedding", lambda: nn.Embedding(7, 3), lambda: nn.Embedding(7, 3), ((2, 5),), 7),
    Case("batch norm", lambda: nn.BatchNorm1d(3), lambda: nn.SyncBatchNorm(3)),
    Case("layer norm", lambda: nn.LayerNorm((4, 3)), lambda: nn.LayerNorm((4, 3)), ((2, 4, 3),)),
    Case("group norm", lambda: nn.GroupNorm(2, 4), lambda: nn.GroupNorm(2, 4), ((2, 4, 5),)),
    Case("bilinear", lambda: nn.Bilinear(3, 4, 5), lambda: nn.Bilinear(3, 4, 5), ((2, 3), (2, 4))),
    Case("prelu", lambda: nn.PReLU(3), lambda: nn.PReLU(3)),
    Case(
        "packed attention to separate",
        lambda: nn.MultiheadAttention(8, 2, kdim=8, vdim=8, batch_first=True),
        lambda: apart(nn.MultiheadAttention(8, 2, batch_first=True)),
        ((2, 5, 8),) * 3,
    ),
    Case(
        "attention with key and value biases",
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True),
        lambda: nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True),
        ((2, 5, 8),) * 3,
    ),
    Case(
        "lstm", lambda: nn.LSTM(3, 4, 2, bidirectional=True), lambda: nn.LSTM(3, 4, 2, bidirectional=True), ((5, 2, 3),)
    ),
    Case("projected lstm", lambda: nn.LSTM(3, 4, proj_size=2), lambda: nn.LSTM(3, 4, proj_size=2), ((5, 2, 3),)),
    Case("one lstm layer and a cell", lambda: nn.GRU(3, 4), lambda: OneStep(nn.GRUCell(3, 4)), ((1, 2, 3),)),
]
if hasattr(nn, "RMSNorm"):  # from torch 2.4 on
    CASES.append(Case("rms norm", lambda: nn.RMSNorm(3), lambda: nn.RMSNorm(3)))


class OneStep(nn.Module):
    """A wrapper that adds nothing of its own."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cell(x[0])[None]


def apart(attention: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """The same attention with q, k and v in arrays of their own."""
    width = attention.embed_dim
    for index, name in enumerate("qkv"):
        part = attention.in_proj_weight[index * width : (index + 1) * width]
        setattr(attention, f"{name}_proj_weight", nn.Parameter(part.detach().clone()))
    attention.in_proj_weight = None
    attention._qkv_same_embed_dim = False
    return attention


def output(module: nn.Module, case: Case) -> np.ndarray:
    with torch.no_grad():
        found = module.eval()(*map(torch.as_tensor, arrays(case)))
    return (found[0] if isinstance(found, tuple) else found).numpy()


@pytest.mark.parametrize("back", [False, True], ids=["", "back"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_both_compute_the_same_after_the_copy(case: Case, back: bool) -> None:
    target, source = (case.one(), case.other()) if back else (case.other(), case.one())
    scramble(target, 1)
    scramble(source, 2)
    expected = output(source, case)
    assert not np.allclose(output(target, case), expected, rtol=1e-3)
    copy_whole(target, source)
    np.testing.assert_allclose(output(target, case), expected, rtol=1e-6, atol=1e-6)
    scramble(target, 9)
    np.testing.assert_array_equal(output(source, case), expected)  # nothing is shared


def test_attention_of_four_linear_layers_takes_packed_weights() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.dense = (nn.Linear(8, 8) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = (one(x).view(2, 5, 2, 4).transpose(1, 2) for one in (self.query, self.key, self.value))
            mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8)
            return self.dense(mixed)

    packed, own = nn.MultiheadAttention(8, 2, batch_first=True), Own()
    scramble(packed)
    report = copy_whole(own, packed)
    assert ("query.weight", "in_proj_weight") in report.copied
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(own(x), packed(x, x, x)[0], rtol=1e-5, atol=1e-6)
    again = copy.deepcopy(packed)
    scramble(again, 3)
    copy_whole(again, own)
    assert torch.equal(again.in_proj_weight, packed.in_proj_weight)


def test_gpt2_keeps_its_matrices_turned() -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    turned, plain = conv1d(5, 3), nn.Linear(3, 5)
    scramble(turned)
    copy_whole(plain, turned)
    x = torch.randn(2, 3)
    torch.testing.assert_close(plain(x), turned(x))


def test_running_statistics_and_their_counter_are_copied() -> None:
    target, source = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    source.train()(torch.randn(8, 3))
    copy_whole(target, source)
    assert torch.equal(target.running_var, source.running_var)
    assert int(target.num_batches_tracked) == 1


def test_statistics_that_one_side_does_not_keep_are_told() -> None:
    report = copy_whole(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False))
    assert any("running variance" in notice for notice in report.notices)


class Point(nn.Conv2d):
    """A linear layer as a convolution of one point."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[..., None, None])[..., 0, 0]


class InOut(nn.Module):
    """A linear layer of the user's own, whose weight is stored the other way round."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


@pytest.mark.parametrize("own", [lambda: Point(3, 5, 1), lambda: InOut(3, 5)])
@pytest.mark.parametrize("to_linear", [True, False])
def test_other_forms_of_a_linear_layer(own: Callable[[], nn.Module], to_linear: bool) -> None:
    pair = own(), nn.Linear(3, 5)
    target, source = reversed(pair) if to_linear else pair
    x = torch.randn(4, 3)
    copy_weights(target, source)
    assert torch.allclose(target(x), source(x), atol=1e-6)


def test_a_convolution_of_more_points_is_no_linear_layer() -> None:
    with pytest.raises(BadInput, match="hold different weights"):
        copy_weights(nn.Conv1d(3, 5, 3), nn.Linear(9, 5))


class MultiHeadAttention(nn.Module):
    """Of the user's own, in spite of its name: what is inside is paired and copied as in any module."""

    def __init__(self, order: str) -> None:
        super().__init__()
        for name in order:
            setattr(self, f"{name}_layer", nn.Linear(4, {"a": 6, "b": 2}[name]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.a_layer(x), self.b_layer(x)], -1)


def test_a_class_of_the_users_own_may_be_called_as_a_special_layer() -> None:
    target, source = nn.Sequential(MultiHeadAttention("ab")), nn.Sequential(MultiHeadAttention("ba"))
    copy_weights(target, source)
    assert torch.equal(target[0].a_layer.weight, source[0].a_layer.weight)


def test_an_attention_of_ones_own_inside_a_model_gets_the_weights_of_a_built_in_one() -> None:
    """Nobody says that the two belong together; nothing else in a model of projections alone is taken for one."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(8, 8) for _ in range(4))

    target, source = nn.Module(), nn.Module()
    target.attn, target.head = Own(), nn.Linear(8, 2)
    source.attn, source.head = nn.MultiheadAttention(8, 2), nn.Linear(8, 2)
    copy_weights(target, source)
    assert torch.equal(target.attn.k_proj.weight, source.attn.in_proj_weight[8:16])
    assert torch.equal(target.attn.out_proj.weight, source.attn.out_proj.weight)


class Tables(nn.Module):
    """Tables of one size, looked up in another order than they are defined."""

    def __init__(self, names: tuple[str, ...], bag: str, turned: bool) -> None:
        super().__init__()
        self.names, self.bag, self.turned = names, bag, turned
        for name in (*names, bag):
            self.add_module(name, nn.Embedding(20, 4))
        self.add_module(f"{bag}_out", nn.Linear(4, 2))

    def forward(self, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        calls = [(name, ids[:, at]) for at, name in enumerate(self.names)] + [(self.bag, seen)]
        found = {name: getattr(self, name)(indices) for name, indices in (calls[::-1] if self.turned else calls)}
        joined = found[self.bag].mean(1) + sum(found[name] * (at + 1) for at, name in enumerate(self.names))
        return getattr(self, f"{self.bag}_out")(joined)


def test_tables_that_look_up_the_same_indices_belong_together() -> None:
    torch.manual_seed(0)
    base, raw = Tables(("user", "item"), "history", turned=False), Tables(("first", "second"), "past", turned=True)
    ids, seen = torch.randint(0, 20, (6, 2)), torch.randint(0, 20, (6, 5))
    assert auto_diff(base, raw, ((ids, seen), (ids, seen)), quiet=True)
    for own, other in (("first", "user"), ("second", "item"), ("past", "history")):
        assert torch.equal(getattr(raw, own).weight, getattr(base, other).weight)
