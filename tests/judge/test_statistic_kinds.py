"""What arguments, statistics and sketches tell of the kind of a difference: each rule planted, and not triggered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twinprobe._judge.deviation import (
    GRADIENT,
    INPUT,
    OUTPUT,
    PARAMETER,
    Kind,
    Row,
    Side,
    Suspect,
)
from twinprobe._judge.kinds.by_statistics import statistic_kinds

Array = NDArray[Any]
SIGNS = np.random.default_rng(0).choice([-1.0, 1.0], (64, 4096))


def tensor(seed: int = 0, shape: tuple[int, ...] = (64, 64)) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def side(values: Array, *, sketched: bool = False, dtype: str = "torch.float32") -> Side:
    wide = values.astype(np.float64)
    return Side(
        dtype, values.shape, float(wide.max()), float(wide.min()), float(wide.mean()), float(np.linalg.norm(wide)),
        sketch=SIGNS[:, : wide.size] @ wide.reshape(-1) if sketched else None, l1=float(np.abs(wide).sum()),
        zeros=int((wide == 0).sum()), not_finite=int((~np.isfinite(wide)).sum()),
    )  # fmt: skip


def row(name: str, role: str, target: Array, golden: Array, *, sketched: bool = False, **more: Any) -> Row:
    return Row(name, role, side(target, sketched=sketched), side(golden, sketched=sketched), **more)


def value(name: str, target: str | None, golden: str | None) -> Row:
    return Row(name, INPUT, *(None if text is None else Side(value=text) for text in (target, golden)))


def kinds(*rows: Row, name: str = "Functional.linear.3.forward", **more: Any) -> list[Kind]:
    found = statistic_kinds(Suspect(name, rows, **more))
    assert [one.confidence for one in found] == sorted((one.confidence for one in found), reverse=True)
    return found


def names(*rows: Row, **more: Any) -> list[str]:
    return [kind.name for kind in kinds(*rows, **more)]


SAME = row("input.0", INPUT, tensor(), tensor())
OTHER = row("output.0", OUTPUT, tensor(1), tensor(2))


def test_another_argument_is_named_with_both_values() -> None:
    found = kinds(SAME, value("scale", "0.2298097038856", "0.1767766952966"), OTHER)
    assert (found[0].name, found[0].sentence) == ("argument", "scale: 0.2298 against 0.1768")
    assert kinds(value("approximate", "none", "tanh"))[0].sentence == "approximate: none against tanh"
    assert kinds(value("p", "0.1", None))[0].sentence == "p: 0.1 against not given"
    many = [value(f"a{number}", "1", "2") for number in range(5)]
    assert kinds(*many)[0].sentence.endswith("a2: 1 against 2 and 2 more")


def test_equal_arguments_written_otherwise_are_no_other_argument() -> None:
    assert names(value("eps", "1e-05", "0.00001"), value("p", "nan", "nan"), value("x", "1", "1.0"), SAME) == []


def test_a_parameter_of_another_layer_is_named() -> None:
    parameters = [(f"Module.layers.{number}.Linear.forward.0.weight", side(tensor(number))) for number in range(8)]
    differing = row("weight", PARAMETER, tensor(5), tensor(4))
    (found,) = kinds(SAME, differing, parameters=parameters)
    assert (found.name, found.sentence) == ("parameter", "weight is golden's Module.layers.5.Linear.forward.0.weight")
    long = [("Module.up.Linear.forward.0.weight", side(tensor(3, (32, 64)))), *parameters]
    (found,) = kinds(Row("weight", PARAMETER, side(tensor(3, (32, 64)).T), side(tensor(4, (64, 32)))), parameters=long)
    assert found.sentence == "weight is the transpose of golden's Module.up.Linear.forward.0.weight"


def test_parameters_that_only_look_alike_are_not_taken_for_each_other() -> None:
    def half(seed: int) -> Side:
        return side(tensor(seed).astype(np.float16).astype(np.float32), dtype="torch.bfloat16")

    parameters = [(f"Module.layers.{number}.Linear.forward.0.weight", half(number)) for number in range(200)]
    (found,) = kinds(Row("weight", PARAMETER, half(5000), half(4)), parameters=parameters)
    assert found.sentence.startswith("weight differs: ")


def test_a_parameter_that_was_not_loaded_is_told() -> None:
    (found,) = kinds(row("weight", PARAMETER, np.ones((64,), np.float32), tensor(1, (64,))))
    assert found.sentence == "weight is 1 everywhere, as if it had not been loaded"
    (found,) = kinds(row("weight", PARAMETER, tensor(1) * 2, tensor(1)))
    assert found.sentence.startswith("weight differs: norm ")


def test_a_parameter_in_another_order_is_told_by_its_sketch() -> None:
    (found,) = kinds(row("weight", PARAMETER, tensor().T.copy(), tensor(), sketched=True))
    assert found.sentence == "weight holds golden's values in another order"


def test_equal_parameters_are_none() -> None:
    assert names(row("weight", PARAMETER, tensor(), tensor()), SAME) == []
    rounded = row("weight", PARAMETER, tensor() * np.float32(1 + 1e-7), tensor())
    assert names(rounded, SAME) == []


def test_calls_of_one_run_only() -> None:
    extra = kinds(presence="target", name="Tensor.clamp.0.forward")[0]
    assert (extra.name, extra.sentence) == ("extra", "only target calls clamp here")
    missing = kinds(presence="golden", name="Tensor.__add__.5.forward")[0]
    assert (missing.name, missing.sentence) == ("missing", "only golden calls __add__ here")
    other = kinds(presence="target", name="Functional.gelu.0.forward", unpaired=["Functional.silu.0.forward"])[0]
    assert (other.name, other.sentence) == ("function", "gelu is called where golden calls silu")
    moved = kinds(presence="golden", name="Functional.silu.1.forward", unpaired=["Functional.silu.0.forward"])[0]
    assert moved.name == "order"
    assert names(SAME) == []


def test_nan_begins_where_what_goes_in_is_finite() -> None:
    broken = tensor()
    broken[3, 4] = np.nan
    (found, *_) = kinds(SAME, Row("output.0", OUTPUT, side(broken), side(tensor())))
    assert found.name == "nan"
    assert "begins here" in found.sentence
    (found, *_) = kinds(
        Row("input.0", INPUT, side(broken), side(tensor())), Row("output.0", OUTPUT, side(broken), side(tensor()))
    )
    assert "begins" not in found.sentence
    mask = np.where(np.tri(64), tensor(), -np.inf)
    assert names(Row("output.0", OUTPUT, side(mask), side(mask))) == []


def test_a_random_call_is_told_only_where_its_inputs_agree() -> None:
    dropped = [tensor() * (np.random.default_rng(seed).random((64, 64)) > 0.1) / 0.9 for seed in (1, 2)]
    output = row("output.0", OUTPUT, *dropped)
    found = kinds(SAME, output, name="Functional.dropout.0.forward")[0]
    assert found.name == "random"
    assert "elements are zero against" in found.sentence
    assert "random" not in names(SAME, output, name="Functional.linear.0.forward")
    assert "random" not in names(
        row("input.0", INPUT, tensor(1), tensor(2)), output, name="Functional.dropout.0.forward"
    )
    assert "random" not in names(SAME, row("output.0", OUTPUT, tensor(), tensor()), name="Functional.dropout.0.forward")


def test_memory_that_nobody_wrote() -> None:
    assert names(OTHER, name="Torch.empty_like.0.forward")[0] == "uninitialised"
    assert "uninitialised" not in names(OTHER, name="Torch.zeros_like.0.forward")


def test_another_batch_is_told_only_where_it_comes_from_outside() -> None:
    ids = np.random.default_rng(1).integers(0, 900, (4, 16))
    other = row("input_ids", INPUT, ids + 1, ids)
    found = kinds(other, OTHER, from_outside=True)[0]
    assert found.name == "input"
    assert found.sentence.startswith("input_ids comes from outside and differs: ")
    assert "input" not in names(other, OTHER)
    turned = row("input_ids", INPUT, ids[::-1].copy(), ids, sketched=True)
    assert "in another order" in kinds(turned, from_outside=True)[0].sentence


def test_another_dtype_is_told_where_it_explains_the_difference() -> None:
    coarse = tensor().astype(np.float16)
    output = Row("output.0", OUTPUT, side(coarse, dtype="torch.float16"), side(tensor()))
    assert kinds(output)[0].sentence == "output.0 is float16 in target and float32 in golden"
    far = Row("output.0", OUTPUT, side(tensor(5).astype(np.float16), dtype="torch.float16"), side(tensor()))
    assert "dtype" not in names(far)


@pytest.mark.parametrize("sketched", [False, True])
@pytest.mark.parametrize("role", [OUTPUT, GRADIENT, INPUT])
def test_a_factor_is_found_and_named(sketched: bool, role: str) -> None:
    counts = {"world size": 6}
    for factor, words in (
        (2.0, "target = 2 x"),
        (1 / 8, "1/8"),
        (1.3, "1.3 x"),
        (64**-0.25, "1/sqrt(8)"),
        (6.0, "world size (6)"),
    ):
        changed = row("output.0", role, tensor() * np.float32(factor), tensor(), sketched=sketched)
        found = kinds(changed, counts=counts)[0]
        assert found.name == "factor"
        assert words in found.sentence
        assert found.evidence["factor"] == pytest.approx(factor, rel=1e-4)
    found = kinds(row("output.0", role, -tensor(), tensor(), sketched=sketched))[0]
    assert (found.name, found.sentence) == ("sign", "output.0: target = -golden")


def test_one_number_is_in_proportion_only_where_the_factor_means_something() -> None:
    one, two, odd = (np.full((), number, np.float32) for number in (3.3, 6.6, 5.9))
    assert names(row("output.0", OUTPUT, two, one)) == ["factor"]
    assert names(row("output.0", OUTPUT, odd, one)) == []


def test_an_offset_is_found() -> None:
    found = kinds(row("output.0", OUTPUT, tensor() + np.float32(0.5), tensor()))[0]
    assert (found.name, found.sentence) == ("offset", "output.0: target = golden + 0.5")
    one_end = tensor()
    one_end[0, 0] = one_end.max() + 1
    assert "offset" not in names(row("output.0", OUTPUT, one_end, tensor()))


def test_the_same_values_in_another_order() -> None:
    turned = row("output.0", OUTPUT, np.roll(tensor(), 1, 0), tensor(), sketched=True)
    assert names(turned) == ["permutation"]
    assert names(replace(turned, target=replace(turned.target, sketch=None))) == []
    long = tensor(0, (32, 64))
    assert names(Row("output.0", OUTPUT, side(long.T), side(long))) == ["transposition"]
    assert names(row("output.0", OUTPUT, tensor(), tensor(), sketched=True)) == []


def test_a_part_is_found_by_the_blocks_of_a_sketch() -> None:
    def blocks(values: Array) -> Side:
        pieces = values.astype(np.float64).reshape(16, -1)
        return replace(side(values), sketch=np.concatenate([SIGNS[:4, : pieces.shape[1]] @ piece for piece in pieces]))

    target = tensor()
    target[:8] *= 0.5
    found = statistic_kinds(Suspect("x", [Row("output.0", OUTPUT, blocks(target), blocks(tensor()))]))
    assert [kind.name for kind in found] == ["part"]
    assert found[0].sentence.endswith("number 1, 2")
    noise = (tensor() * (1 + 0.1 * tensor(3))).astype(np.float32)
    assert statistic_kinds(Suspect("x", [Row("output.0", OUTPUT, blocks(noise), blocks(tensor()))])) == []
    noise[:8] = tensor()[:8]
    assert statistic_kinds(Suspect("x", [Row("output.0", OUTPUT, blocks(noise), blocks(tensor()))])) == []


def test_a_bound_is_found() -> None:
    found = kinds(row("output.0", OUTPUT, np.clip(tensor(), -0.3, 0.3), tensor()))[0]
    assert (found.name, found.sentence) == ("saturation", "output.0 is cut off at 0.3 and -0.3")
    assert "saturation" not in names(row("output.0", OUTPUT, tensor() * np.float32(0.7), tensor()))


def test_an_update_is_measured_by_sketches() -> None:
    before, step = tensor(), 0.01 * tensor(3)
    rows = [
        row("input.0", INPUT, before, before, sketched=True),
        row("output.0", OUTPUT, before + 1.05 * step, before + step, sketched=True),
    ]
    found = kinds(*rows, name="Tensor.add_.0.forward", place="optimizer")[0]
    assert (found.name, found.sentence) == ("update", "output.0: the optimiser's update is 1.05 x golden's")
    assert "update" not in names(*rows, name="Tensor.add_.0.forward")
    same = row("output.0", OUTPUT, before, before, sketched=True)
    assert names(rows[0], same, name="Tensor.add_.0.forward", place="optimizer") == []


def test_a_summand_is_found_by_sketches() -> None:
    residual, branch = tensor(1), tensor(2)
    lacking = row("output.0", OUTPUT, branch, residual + branch, sketched=True)
    given_ = row("input.0", INPUT, residual, residual, sketched=True)
    found = kinds(given_, lacking)[0]
    assert (found.name, found.sentence) == ("missing", "output.0: target = golden - input.0")
    found = kinds(lacking, tensors=[("Module.block.forward.0.input.0", side(residual, sketched=True))])[0]
    assert found.name == "missing"
    twice = row("output.0", OUTPUT, residual + 2 * branch, residual + branch, sketched=True)
    found = kinds(twice, tensors=[("branch", side(branch, sketched=True))])[0]
    assert (found.name, found.sentence) == ("extra", "output.0: target = golden + branch")
    assert names(lacking, tensors=[("other", side(tensor(9), sketched=True))]) == []


def test_statistics_of_16_bits_prove_no_order_and_no_other_parameter() -> None:
    """A uniform distribution ends at the same numbers in every layer, and three digits of its norm are the same."""

    def drawn(seed: int) -> Array:
        values = np.random.default_rng(seed).uniform(-0.125, 0.125, (64, 64)).astype(np.float32)
        values[0, :2] = 0.125, -0.125
        return values

    sides = [side(drawn(seed), sketched=True, dtype="torch.bfloat16") for seed in (1, 2)]
    assert kinds(Row("output.0", OUTPUT, *sides)) == []
    layer = [("Module.b.Linear.forward.0.parameters.weight", side(drawn(3), sketched=True))]
    found = kinds(Row("weight", PARAMETER, *sides), parameters=layer)
    assert found[0].sentence.startswith("weight differs: ")
    layer = [("Module.b.Linear.forward.0.parameters.weight", side(drawn(1), sketched=True))]
    found = kinds(Row("weight", PARAMETER, *sides), parameters=layer)
    assert found[0].sentence == "weight is golden's Module.b.Linear.forward.0.parameters.weight"


@pytest.mark.parametrize("from_outside", [True, False])
def test_a_value_that_belongs_elsewhere_is_named(from_outside: bool) -> None:
    """The shift of a normalisation where its scale should be, a residual taken after the norm in place of before."""
    scale, shift = tensor(1), tensor(2)
    read = row("input.0", INPUT, shift, scale, sketched=True)
    nearby = [("Tensor.__mul__.3.forward.input.1", side(tensor(9), sketched=True)),
              ("Tensor.__add__.4.forward.input.1", side(shift, sketched=True))]  # fmt: skip
    found = kinds(read, tensors=nearby, from_outside=from_outside)[0]
    assert (found.name, found.sentence) == (
        "input",
        "input.0 holds what golden has in Tensor.__add__.4.forward.input.1",
    )
    assert "holds what" not in " ".join(
        kind.sentence for kind in kinds(read, tensors=nearby[:1], from_outside=from_outside)
    )


@given(st.integers(0, 10_000), st.sampled_from([(), (3,), (8, 8), (64, 64)]), st.booleans())
@settings(max_examples=100)
def test_noise_and_unrelated_tensors_have_no_kind(seed: int, shape: tuple[int, ...], sketched: bool) -> None:
    golden = tensor(seed, shape) if shape else np.float32(1.7) + np.zeros((), np.float32)
    noise = np.random.default_rng(seed + 1).standard_normal(shape)
    target = (golden * (1 + 1e-7 * noise)).astype(np.float32)
    assert names(SAME, row("output.0", OUTPUT, target, golden, sketched=sketched, expected=1e-7)) == []
    if len(shape) == 2:
        unrelated = tensor(seed + 20_000, shape)
        assert names(SAME, row("output.0", OUTPUT, unrelated, golden, sketched=sketched)) == []


def test_what_noise_explains_is_no_factor() -> None:
    changed = row("output.0", OUTPUT, tensor() * np.float32(1.01), tensor(), sketched=True)
    assert names(changed) == ["factor"]
    assert names(replace(changed, expected=0.01)) == []


def test_the_cause_goes_before_the_shape() -> None:
    changed = row("output.0", OUTPUT, tensor() * 2, tensor(), sketched=True)
    assert names(SAME, value("alpha", "2", "1"), changed) == ["argument", "factor"]


@given(st.lists(st.sampled_from([0.0, -1.0, 2.5, 1e308, 1e-320, np.nan, np.inf, -np.inf]), min_size=8, max_size=8))
@settings(max_examples=100)
@pytest.mark.filterwarnings("error")
def test_whatever_numbers_a_dump_holds_are_taken(numbers: list[float]) -> None:
    target, golden = (Side("torch.float32", (4, 4), *numbers[at : at + 4]) for at in (0, 4))
    rows = [Row("a", role, target, golden) for role in (INPUT, PARAMETER, OUTPUT)]
    for kind in statistic_kinds(Suspect("Tensor.add_.0.forward", rows, parameters=[("b", golden)], place="optimizer")):
        assert 0 < kind.confidence <= 1


@given(st.lists(st.sampled_from(["max", "min", "mean", "norm", "sketch", "l1"]), max_size=6))
@settings(max_examples=40)
def test_statistics_that_were_not_recorded_are_no_reason_to_fail(absent: list[str]) -> None:
    target, golden = (replace(side(tensor(seed), sketched=True), **dict.fromkeys(absent)) for seed in (1, 2))
    rows = [Row("output.0", role, target, golden) for role in (INPUT, PARAMETER, OUTPUT)]
    statistic_kinds(Suspect("Functional.dropout.0.forward", rows, place="optimizer", from_outside=True))
    statistic_kinds(Suspect("x", [Row("a", OUTPUT, None, golden), Row("b", PARAMETER, target, None)], "target"))
