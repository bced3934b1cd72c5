"""Which tokens and devices are compared: one graph or two, one card or several, every generation of folders."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from llm_dumps import Op, Sizes, Values, atb_layer, atb_model, decoder_values, write_atb, write_atb_model, write_torch

from twinprobe._compare.llm.job import LlmComparison, LlmRequest, compare_dumps
from twinprobe._runs.llm.dump import open_llm_dump
from twinprobe._scale.engine import EngineOptions
from twinprobe.errors import NothingToCompare, TwinProbeError

SIZES = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)


def many(count: int, sizes: Sizes = SIZES) -> dict[int, Values]:
    return {token: decoder_values(sizes, seed=token) for token in range(count)}


def passes(result: LlmComparison) -> bool:
    compared = result.table.filter(
        result.table["my_data_path"].is_not_null() & result.table["golden_data_path"].is_not_null()
    )
    return set(compared["Result"]) == {"pass"} and compared.height > 0


def tokens(result: LlmComparison) -> list[str]:
    return result.table["token_id"].unique(maintain_order=True).to_list()


def test_one_graph_has_a_token_per_round(tmp_path: Path) -> None:
    values = many(3)
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", values, atb_model(2, atb_layer()))
    result = compare_dumps(LlmRequest(mine, golden))
    assert tokens(result) == ["0", "1", "2"]
    assert passes(result)
    one = compare_dumps(LlmRequest(mine / "tensors" / "0_8" / "2", golden))
    assert tokens(one) == ["2"]


def test_prefill_and_decoder_are_told_apart(tmp_path: Path) -> None:
    """Round 0 warms up; round 1 holds the prompt in the first graph and the next token in the second."""
    values = many(4)
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    root, operators = tmp_path / "ait_dump", atb_model(2, atb_layer())
    noise = decoder_values(SIZES, seed=99)
    write_atb_model(root, "0_8", {0: noise, 1: values[0]}, operators, name="Prefill")
    write_atb_model(
        root, "0_8", {1: values[1], 2: values[2], 3: values[3]}, operators, first=len(operators), name="Dec"
    )
    result = compare_dumps(LlmRequest(root, golden))
    assert tokens(result) == ["0", "1", "2", "3"]
    assert passes(result)
    assert {token.label for token in open_llm_dump(root).tokens(open_llm_dump(root).layout.devices[0])} == {
        "warmup", "0", "1", "2", "3",
    }  # fmt: skip


def test_with_round_0_alone_the_two_graphs_are_the_first_two_tokens(tmp_path: Path) -> None:
    values = many(2)
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    root, operators = tmp_path / "ait_dump", atb_model(2, atb_layer())
    write_atb_model(root, "0_8", {0: values[0]}, operators, name="Prefill")
    write_atb_model(root, "0_8", {0: values[1]}, operators, first=len(operators), name="Dec")
    result = compare_dumps(LlmRequest(root, golden))
    assert tokens(result) == ["0", "1"]
    assert passes(result)


def test_two_named_tokens_are_compared_whatever_their_numbers(tmp_path: Path) -> None:
    values = many(1)
    golden = write_torch(tmp_path / "t" / "7_npu0", {5: values[0]}, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", values, atb_model(2, atb_layer()))
    result = compare_dumps(LlmRequest(mine / "tensors" / "0_8" / "0", golden / "5"))
    assert passes(result)
    assert any("token 0" in note and "token 5" in note for note in result.summary.notes)


def test_tokens_without_a_common_one_are_both_listed(tmp_path: Path) -> None:
    values = decoder_values(SIZES)
    golden = write_torch(tmp_path / "t" / "7_npu0", {5: values, 6: values}, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values, 1: values}, atb_model(2, atb_layer()))
    with pytest.raises(NothingToCompare, match=r"my dump has 0, 1, the golden one 5, 6"):
        compare_dumps(LlmRequest(mine, golden))


def sharded(values: Values, cards: int, card: int) -> Values:
    """What one card of several holds: projections cut by columns, the rest whole."""
    result = dict(values)
    for name, value in values.items():
        kind = name.rpartition(".")[2]
        if kind in ("q", "k", "v", "gate", "up", "act", "product", "context", "logits"):
            result[name] = np.split(value, cards, axis=-1)[card]
    return result


def with_partial_sums(values: Values, cards: int) -> list[Values]:
    """For every card its own summand of the attention's and the feed-forward's result."""
    rng = np.random.default_rng(7)
    held = [sharded(values, cards, card) for card in range(cards)]
    for name, value in values.items():
        kind = name.rpartition(".")[2]
        if kind in ("o", "down"):
            parts = [rng.standard_normal(value.shape).astype(np.float16) for _ in range(cards - 1)]
            last = value.astype(np.float32) - sum(part.astype(np.float32) for part in parts)
            for card, part in enumerate([*parts, last]):
                held[card][f"{name}_part"] = part.astype(np.float32)
    return held


def parallel_layer() -> Op:
    """A layer whose last projections are summed over the cards."""
    layer = atb_layer()
    for composite, name in ((layer.children[1], "o"), (layer.children[4], "down")):
        last = composite.children.pop()
        row = Op("LinearRowParallel", last.takes, (name,), [
            Op("LinearOperation", last.takes, (f"{name}_part",)), Op("AllReduceOperation", (f"{name}_part",), (name,)),
        ])  # fmt: skip
        composite.children.append(row)
    return layer


@pytest.mark.parametrize("named", [False, True])
def test_shards_of_several_cards_are_joined_and_summands_summed(tmp_path: Path, named: bool) -> None:
    cards = 2
    values = decoder_values(SIZES)
    golden = write_torch(tmp_path / "t" / "7_npu0", {0: values}, 2)
    root = tmp_path / "ait_dump"
    for card, held in enumerate(with_partial_sums(values, cards)):
        write_atb_model(root, f"{card}_{80 + card}", {0: held}, atb_model(2, parallel_layer()))
    result = compare_dumps(LlmRequest(root / "tensors" / "0_80" / "0" if named else root, golden))
    assert passes(result), result.table.filter(result.table["Result"] != "pass").select("my_data_path", "Reason").rows()
    remarks = " ".join(result.table["Matched By"].drop_nulls().unique().to_list())
    assert "2 cards joined" in remarks
    assert "2 cards summed" in remarks
    logits = result.table.filter(result.table["my_data_path"].str.contains("LmHead/after"))
    assert set(logits["Result"]) == {"pass"}


def test_as_many_cards_on_both_sides_are_compared_one_by_one(tmp_path: Path) -> None:
    for side in ("a", "b"):
        for card in range(3):
            held = decoder_values(SIZES, seed=card)
            write_atb_model(tmp_path / side / "ait_dump", f"{card}_{80 + card}", {0: held}, atb_model(2, atb_layer()))
    result = compare_dumps(LlmRequest(tmp_path / "a", tmp_path / "b" / "ait_dump"))
    assert result.table["Device"].unique(maintain_order=True).to_list() == ["0_80", "1_81", "2_82"]
    assert set(result.table["Reason"]) == {"identical"}


def test_all_generations_of_folders_are_recognised(tmp_path: Path) -> None:
    values = decoder_values(SIZES)
    ait = write_torch(tmp_path / "ait" / "7_npu0", {0: values}, 2)
    msit = tmp_path / "msit" / "msit_dump_20240101_000000" / "torch_tensors" / "npu0_7"
    shutil.copytree(ait, msit)
    cuda = tmp_path / "other" / "7_cuda1"
    shutil.copytree(ait, cuda)
    engine = write_atb_model(tmp_path / "e" / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    newer = tmp_path / "n" / "msit_dump_20240101_000000"
    shutil.copytree(engine, newer)
    successor = tmp_path / "s" / "atb_dump_data"
    shutil.copytree(engine / "tensors", successor / "data")
    shutil.copytree(engine / "model" / "8", successor / "info" / "model" / "0_8")
    oldest = tmp_path / "o" / "atb_temp" / "tensors" / "8_0"
    shutil.copytree(engine / "tensors" / "0_8" / "0", oldest)
    counts = set()
    for golden in (ait, ait / "0", tmp_path / "ait", msit, msit.parent, tmp_path / "msit", cuda):
        counts.add(compare_dumps(LlmRequest(engine, golden)).summary.matched)
    for mine in (newer, newer.parent, successor, successor / "data" / "0_8" / "0", tmp_path / "o"):
        counts.add(compare_dumps(LlmRequest(mine, ait)).summary.matched)
    assert len(counts) == 1
    assert counts.pop() > 50


def test_integers_are_dequantised_by_the_operators_scale(tmp_path: Path) -> None:
    values = decoder_values(SIZES)
    golden = write_torch(tmp_path / "t" / "7_npu0", {0: values}, 2)
    root = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    scale, offset = 0.05, 3
    for layer in (1, 2):
        folder = root / "tensors" / "0_8" / "0" / f"{layer}_CommonLayer" / "0_RmsNormOperation"
        real = values[f"{layer - 1}.norm1"]
        quantised = np.clip(np.round(real / scale) + offset, -128, 127).astype(np.int8)
        write_atb(folder / "after" / "outtensor0.bin", quantised)
        if layer == 1:
            (folder / "op_param.json").write_text(
                json.dumps({"quantParam": {"inputScale": scale, "inputOffset": offset}})
            )
        else:
            write_atb(folder / "before" / "intensor1.bin", np.array([scale], np.float16))
            write_atb(folder / "before" / "intensor2.bin", np.array([offset], np.int8))
    table = compare_dumps(LlmRequest(root, golden)).table
    rows = table.filter(table["my_data_path"].str.contains("0_RmsNormOperation/after"))
    assert rows["Matched By"].to_list() == ["operator table (dequantised)"] * 2
    assert all(cosine > 0.999 for cosine in rows["cosine_similarity"])
    (root / "tensors/0_8/0/2_CommonLayer/0_RmsNormOperation/before/intensor1.bin").unlink()
    table = compare_dumps(LlmRequest(root, golden)).table
    row = table.filter(table["my_data_path"].str.contains("2_CommonLayer/0_RmsNormOperation/after"))
    assert "scale" in row["cmp_fail_reason"][0]
    assert row["Result"][0] == "warning"


class Bomb:
    """Whoever unpickles this is gone at once, as if the system had killed it."""

    def __reduce__(self) -> tuple[object, ...]:
        return (os._exit, (5,))


class Riddle:
    """No level of a report: using it raises an error that could not be sent between processes."""

    def __eq__(self, other: object) -> bool:
        class Local(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__(one + two)

        raise Local(1, 2)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("level", "words"), [pytest.param(Bomb(), "worker process died", marks=pytest.mark.slow), (Riddle(), "Local: 3")]
)
def test_a_worker_that_dies_or_fails_ends_the_command_with_a_message(tmp_path: Path, level: object, words: str) -> None:
    values = many(3)
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    mine = write_atb_model(tmp_path / "ait_dump", "0_8", values, atb_model(2, atb_layer()))
    with pytest.raises(TwinProbeError, match=words):
        compare_dumps(LlmRequest(mine, golden, level=level, engine=EngineOptions(workers=2)))  # type: ignore[arg-type]
