"""Either dump may be the golden one: whatever pairs one way pairs the other way too, on cards, graphs and integers."""

from __future__ import annotations

import copy
import csv
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from llm_command import Said
from llm_dumps import Op, Sizes, Values, atb_layer, atb_model, decoder_values, write_atb, write_atb_model, write_torch

from support import slow
from twinprobe._compare.llm.job import LlmComparison, LlmRequest, compare_dumps

Run = Callable[..., Said]
SIZES = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=12)


def both_ways(one: Path, other: Path) -> tuple[LlmComparison, LlmComparison]:
    """Compare, swap and compare; the pairs must be mirrored."""
    there, back = compare_dumps(LlmRequest(one, other)), compare_dumps(LlmRequest(other, one))
    pairs = [
        {(mine, golden) for mine, golden in result.table.select(*columns).rows() if mine and golden}
        for result, columns in (
            (there, ("my_data_path", "golden_data_path")),
            (back, ("golden_data_path", "my_data_path")),
        )
    ]
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) > 20
    return there, back


def check_compared_rows_pass(*results: LlmComparison) -> None:
    for result in results:
        table = result.table
        compared = table.filter(table["my_data_path"].is_not_null() & table["golden_data_path"].is_not_null())
        wrong = compared.filter(compared["Result"] != "pass")
        assert wrong.height == 0, wrong.select("my_data_path", "golden_data_path", "cmp_fail_reason", "Reason").rows()


@pytest.mark.parametrize("fused", [False, True])
def test_torch_and_engine(tmp_path: Path, fused: bool) -> None:
    values = decoder_values(SIZES)
    torch_dump = write_torch(tmp_path / "t" / "7_npu0", {0: values}, 2)
    engine = write_atb_model(tmp_path / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer(fused=fused)))
    check_compared_rows_pass(*both_ways(engine, torch_dump))


def shards_of(values: Values, cards: int, card: int) -> Values:
    """What one card holds: projections cut by columns, the rest whole."""
    cut = ("q", "k", "v", "gate", "up", "act", "product", "context", "logits")
    return {
        name: np.split(value, cards, axis=-1)[card] if name.rpartition(".")[2] in cut else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("cards", [2, 4])
def test_shards_of_several_cards_against_one_engine_or_torch(tmp_path: Path, cards: int) -> None:
    values = decoder_values(SIZES)
    torch_dump = write_torch(tmp_path / "t" / "7_npu0", {0: values}, 2)
    whole = write_atb_model(tmp_path / "one" / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    parallel = tmp_path / "many" / "ait_dump"
    for card in range(cards):
        write_atb_model(parallel, f"{card}_{80 + card}", {0: shards_of(values, cards, card)}, atb_model(2, atb_layer()))
    for other in (torch_dump, whole):
        results = both_ways(parallel, other)
        check_compared_rows_pass(*results)
        assert any(f"{cards} cards joined" in (rule or "") for rule in results[0].table["Matched By"])


def quantised(layer: Op) -> Op:
    """The same layer with every projection on integers: the operator before it hands over a quantised input."""
    layer = copy.deepcopy(layer)

    def change(op: Op) -> None:
        if op.type == "LinearOperation":
            op.type = "LinearQuantOperation"
        for child in op.children:
            change(child)

    change(layer)
    return layer


def test_a_quantised_engine_and_a_float_one(tmp_path: Path) -> None:
    values = decoder_values(SIZES)
    plain = write_atb_model(tmp_path / "f" / "ait_dump", "0_8", {0: values}, atb_model(2, atb_layer()))
    integers = write_atb_model(tmp_path / "q" / "ait_dump", "0_9", {0: values}, atb_model(2, quantised(atb_layer())))
    scale = 0.04
    for layer in (0, 1):
        norm = integers / "tensors/0_9/0" / f"{layer + 1}_CommonLayer" / "0_RmsNormOperation"
        real = values[f"{layer}.norm1"]
        write_atb(norm / "after" / "outtensor0.bin", np.clip(np.round(real / scale), -128, 127).astype(np.int8))
        (norm / "op_param.json").write_text(f'{{"quantParam": {{"inputScale": {scale}, "inputOffset": 0}}}}')
    results = both_ways(integers, plain)
    table = results[0].table
    rows = table.filter(table["my_data_path"].str.contains("LinearQuantOperation/after"))
    assert rows.height == 2 * 5  # q, k and v are one projection, then o, gate, up and down
    assert set(rows["Result"]) == {"pass"}
    for result in results:
        norms = result.table.filter(result.table["my_data_path"].str.contains("1_CommonLayer/0_RmsNormOperation/after"))
        assert "dequantised" in norms["Matched By"][0]
        assert norms["cosine_similarity"][0] > 0.999


@pytest.mark.parametrize("other", ["torch", "engine"])
def test_prefill_and_decoder_graphs(tmp_path: Path, other: str) -> None:
    values = {token: decoder_values(SIZES, seed=token) for token in range(4)}
    operators = atb_model(2, atb_layer())

    def engine(root: Path) -> Path:
        write_atb_model(root, "0_8", {0: decoder_values(SIZES, 99), 1: values[0]}, operators, name="Prefill")
        later = {round_number: values[round_number] for round_number in (1, 2, 3)}
        return write_atb_model(root, "0_8", later, operators, first=len(operators), name="Decoder")

    one = engine(tmp_path / "a" / "ait_dump")
    two = write_torch(tmp_path / "t" / "7_npu0", values, 2) if other == "torch" else engine(tmp_path / "b" / "ait_dump")
    results = both_ways(one, two)
    check_compared_rows_pass(*results)
    for result in results:
        assert {"0", "1", "2", "3"} <= set(result.table["token_id"])


# -- a bad file on the golden side ------------------------------------------------------------------------------------


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def no_tensor(path: Path) -> None:
    path.write_bytes(b"\x80\x02cos\nsystem\nX\x04\x00\x00\x00true\x85R.")


def link_to_the_outside(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


def link_to_nothing(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing.pth")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [cut_off, no_tensor, link_to_the_outside, link_to_nothing, pipe])
@pytest.mark.parametrize("workers", [1, *slow(2)])
def test_one_bad_golden_file_is_one_row_with_a_reason(
    llm: Run, tmp_path: Path, spoil: Callable[[Path], None], workers: int
) -> None:
    values = {token: decoder_values(SIZES, seed=token) for token in range(2)}
    golden = write_torch(tmp_path / "t" / "7_npu0", values, 2)
    mine = write_torch(tmp_path / "u" / "8_npu0", values, 2)
    spoil(golden / "1" / "root.model.layers.1.mlp" / "output.pth")
    said = llm("compare", "-gp", golden, "-mp", mine, "-o", tmp_path / "o", "--workers", workers)
    assert said.code == 0, said.err
    (report,) = (tmp_path / "o").glob("*.csv")
    with report.open(newline="") as file:
        bad = [row for row in csv.DictReader(file) if row["Result"] != "pass"]
    assert [row["token_id"] for row in bad] == ["1"]
    assert bad[0]["cmp_fail_reason"]
    assert "root.model.layers.1.mlp/output.pth" in bad[0]["golden_data_path"]
