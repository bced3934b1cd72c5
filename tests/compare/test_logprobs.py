"""Log-probabilities of the same tokens from two engines: files of arrays in every form, recordings, and bad files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import twinprobe
from twinprobe._cli.main import main
from twinprobe.torch import record

Row = dict[str, Any]


def rows(*, moved: dict[tuple[int, int], float] | None = None, steps: int = 3) -> list[Row]:
    """Two sequences in each step; ``moved`` adds something to tokens of a sequence (counted over all steps)."""
    generator = np.random.default_rng(7)
    found = []
    for number in range(2 * steps):
        ids = generator.integers(0, 500, 6 + number % 2)
        logprobs = -generator.exponential(2.0, len(ids)) - 0.5
        for (sequence, token), by in (moved or {}).items():
            logprobs[token] += by if sequence == number else 0.0
        found.append({"input_ids": ids.tolist(), "logprobs": logprobs.tolist(), "step": number // 2})
    return found


def as_parquet(table: list[Row], path: Path) -> Path:
    pl.DataFrame(table).write_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_tokens(table: list[Row], path: Path) -> Path:
    """One row for each token."""
    flat = pl.DataFrame(table).with_row_index("sequence").explode("input_ids", "logprobs")
    flat.write_parquet(path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def as_json_lines(table: list[Row], path: Path) -> Path:
    path.with_suffix(".jsonl").write_text("\n".join(json.dumps(row) for row in table) + "\n\n")
    return path.with_suffix(".jsonl")


def as_npz(table: list[Row], path: Path) -> Path:
    """Padded to one length, with a mask."""
    width = max(len(row["input_ids"]) for row in table)
    ids, mask = np.zeros((2, len(table), width), np.int64)
    logprobs = np.zeros((len(table), width), np.float32)
    for number, row in enumerate(table):
        length = len(row["input_ids"])
        ids[number, :length], mask[number, :length] = row["input_ids"], 1
        logprobs[number, :length] = row["logprobs"]
    np.savez(path.with_suffix(".npz"), input_ids=ids, logprobs=logprobs, mask=mask, step=[row["step"] for row in table])
    return path.with_suffix(".npz")


FORMS: list[Callable[[list[Row], Path], Path]] = [as_parquet, as_tokens, as_json_lines, as_npz]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_gives_the_same_figures(form: Callable[[list[Row], Path], Path], tmp_path: Path) -> None:
    golden = form(rows(), tmp_path / "golden")
    target = form(rows(moved={(3, 2): -0.4, (5, 1): 0.2}), tmp_path / "target")
    found = twinprobe.compare_logprobs(target, golden, limit=0.1)
    total = found.table.row(-1, named=True)
    count = sum(len(row["input_ids"]) for row in rows())
    assert (total["sequences"], total["tokens"]) == (6, count)
    assert total["mean_difference"] == pytest.approx(-0.2 / count, rel=1e-5)
    assert total["mean_abs"] == pytest.approx(0.6 / count, rel=1e-5)
    assert total["max_abs"] == pytest.approx(0.4, rel=1e-5)
    assert total["share_beyond"] == pytest.approx(2 / count)
    expected = sum(math.expm1(by) - by for by in (-0.4, 0.2)) / count
    assert total["kl"] == pytest.approx(expected, rel=1e-4)
    assert found.table["step"].to_list() == ["0", "1", "2", "all"]
    assert found.table["share_beyond"].to_list()[0] == 0
    worst = found.sequences.row(0, named=True)
    assert (worst["step"], worst["sequence"], worst["worst_token"]) == (1, 3, 2)
    assert not found
    assert twinprobe.compare_logprobs(golden, golden)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_that_only_a_mask_of_the_answer_tells_of_is_cut_off(side: str, tmp_path: Path) -> None:
    """A trainer's batch: prompt and answer padded to one length, and a mask that counts the answer alone."""
    table = rows(moved={(3, 4): -0.4})
    answers = [[0, 0] + [1] * (len(row["input_ids"]) - 2) for row in table]
    width = max(map(len, answers)) + 2
    arrays = {"input_ids": np.zeros((6, width), np.int64), "logprobs": np.zeros((6, width)),
              "response_mask": np.zeros((6, width), np.int64)}  # fmt: skip
    for number, (row, answer) in enumerate(zip(table, answers, strict=True)):
        place = slice(width - len(answer), width) if side == "left" else slice(len(answer))
        for name, values in (("input_ids", row["input_ids"]), ("logprobs", row["logprobs"]), ("response_mask", answer)):
            arrays[name][number, place] = values
    np.savez(tmp_path / "target.npz", step=[row["step"] for row in table], **arrays)
    golden = [row | {"mask": answer} for row, answer in zip(rows(), answers, strict=True)]
    found = twinprobe.compare_logprobs(tmp_path / "target.npz", as_json_lines(golden, tmp_path / "golden"))
    assert not found.lost
    assert (found.table["sequences"][-1], found.table["tokens"][-1]) == (6, sum(map(sum, answers)))
    assert found.sequences["max_abs"].to_list() == pytest.approx([0.4, 0, 0, 0, 0, 0], abs=1e-6)
    assert found.sequences["sequence"][0] == 3


def test_the_command_writes_tables_and_a_page_and_sets_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = as_json_lines(rows(), tmp_path / "golden")
    target = as_parquet(rows(moved={(3, 2): -0.4}), tmp_path / "target")
    command = ["llm", "logprobs", str(target), str(golden), "-o", str(tmp_path / "out")]
    assert main(command) == 0
    assert main([*command, "--fail-on"]) == 1
    assert main([*command, "--fail-on", "0.1"]) == 0
    assert main([*command, "--limit", "0.5", "--fail-on"]) == 0
    said = capsys.readouterr().out
    assert "worst: token 2" in said
    assert "of sequence 3 in step 1" in said
    page = sorted((tmp_path / "out").glob("logprobs_*.html"))[0].read_text()
    assert page.count("<svg") > 4
    assert "http" not in page.replace("http-equiv", "")
    table = pl.read_csv(
        next(path for path in (tmp_path / "out").glob("logprobs_*.csv") if "sequences" not in path.name)
    )
    assert table["step"].to_list() == ["0", "1", "2", "all"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["worst"]["sequence"] == 3
    assert len(document["steps"]) == 3


def test_sequences_are_paired_by_their_ids_and_those_alone_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    golden = as_json_lines(rows(), tmp_path / "golden")
    target = as_json_lines(rows()[::-1], tmp_path / "target")
    assert twinprobe.compare_logprobs(target, golden)
    fewer = as_json_lines(rows()[2:], tmp_path / "fewer")
    command = ["llm", "logprobs", str(fewer), str(golden), "-o", str(tmp_path / "out")]
    assert main(command) == 2
    assert "2 sequences have no counterpart" in capsys.readouterr().err
    assert main([*command, "--allow-missing"]) == 0


def test_logprobs_without_the_first_token_and_unknown_ones(tmp_path: Path) -> None:
    """Nothing predicts the first token: engines leave it out, or write null."""
    golden = [{**row, "logprobs": row["logprobs"][1:]} for row in rows()]
    target = [{**row, "logprobs": [None, *row["logprobs"][1:]]} for row in rows()]
    paths = as_json_lines(target, tmp_path / "target"), as_json_lines(golden, tmp_path / "golden")
    found = twinprobe.compare_logprobs(*paths)
    assert found
    assert found.table["tokens"][-1] == sum(len(row["input_ids"]) - 1 for row in rows())


def test_a_probability_of_zero_on_one_side_is_beyond_any_limit(tmp_path: Path) -> None:
    table = rows()
    np.savez(tmp_path / "golden.npz", input_ids=[table[0]["input_ids"]], logprobs=[table[0]["logprobs"]])
    broken = np.array(table[0]["logprobs"])
    broken[3] = -np.inf
    np.savez(tmp_path / "target.npz", input_ids=[table[0]["input_ids"]], logprobs=[broken])
    found = twinprobe.compare_logprobs(tmp_path / "target.npz", tmp_path / "golden.npz", limit=100.0)
    assert found.sequences["worst_token"][0] == 3
    assert found.share == pytest.approx(1 / 6)
    assert math.isinf(found.table["max_abs"][-1])
    assert found.table["mean_abs"][-1] == 0


BAD: dict[str, tuple[str, bytes, str]] = {
    "no such name": (
        "x.jsonl",
        b'{"input_ids": [1, 2], "scores": [0, 0]}\n',
        "has no logprobs: it holds input_ids, scores",
    ),
    "no JSON": ("x.jsonl", b'{"input_ids": [1], "logprobs": [-1]}\n{oops\n', "line 2 is not a JSON object"),
    "a name missing later": (
        "x.jsonl",
        b'{"input_ids": [1], "logprobs": [-1]}\n{"input_ids": [2]}\n',
        "line 2 has no logprobs",
    ),
    "too few": ("x.jsonl", b'{"input_ids": [1, 2, 3], "logprobs": [-1]}\n', "sequence 0: 3 ids, 1 logprobs"),
    "texts": ("x.jsonl", b'{"input_ids": ["a", "b"], "logprobs": [-1, -2]}\n', "must be lists of numbers"),
    "probabilities": ("x.jsonl", b'{"input_ids": [1, 2], "logprobs": [-1, 0.9]}\n', "logprob of token 1 is 0.9"),
    "nested": ("x.jsonl", b'{"input_ids": [[1]], "logprobs": [[-1]]}\n', "must be flat lists"),
    "nothing": ("x.jsonl", b"\n", "holds no sequences"),
    "no Parquet": ("x.parquet", b"PAR1 and no more", "cannot be read as Parquet"),
    "no npz": ("x.npz", b"PK nothing", "cannot be read"),
    "another suffix": ("x.csv", b"input_ids,logprobs\n", "is neither dump.json nor debug.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_named_with_what_is_wrong(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, content, message = BAD[case]
    (tmp_path / name).write_bytes(content)
    golden = as_json_lines(rows(), tmp_path / "golden")
    if name == "x.csv":
        golden = tmp_path / name
    assert main(["llm", "logprobs", str(tmp_path / name), str(golden), "-o", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert name in said
    assert "Traceback" not in said


def test_a_file_that_is_not_there_and_a_limit_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = as_json_lines(rows(), tmp_path / "golden")
    command = ["llm", "logprobs", str(tmp_path / "nowhere.npz"), str(golden), "-o", str(tmp_path / "out")]
    assert main(command) == 2
    assert "nowhere.npz: does not exist" in capsys.readouterr().err
    assert main(["llm", "logprobs", str(golden), str(golden), "--limit", "-1"]) == 2
    assert "must be more than 0" in capsys.readouterr().err


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, list[list[int]]]:
    """A training forward pass, and a rollout with a cache whose second layer is wrong for the second sequence."""
    root = tmp_path_factory.mktemp("engines")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=64, initializer_range=0.2, **sizes)).eval()
    ids = torch.randint(0, 64, (2, 12))
    with torch.no_grad(), record(model, str(root / "train"), level="L0", task="tensor"):
        model(ids)
    with torch.no_grad(), record(model, str(root / "rollout"), level="L0", task="tensor"):
        cache = model(ids[:, :6], use_cache=True).past_key_values
        values = cache.layers[1].values if hasattr(cache, "layers") else cache.value_cache[1]  # transformers 4.51
        values[1, :, 2] += 1.0
        for token in range(6, 12):
            model(ids[:, token : token + 1], past_key_values=cache, use_cache=True)
    return root / "rollout", root / "train", ids.tolist()


def test_recordings_give_logprobs_and_the_layer_where_the_worst_sequence_begins(
    engines: tuple[Path, Path, list[list[int]]],
) -> None:
    rollout, train, ids = engines
    found = twinprobe.compare_logprobs(rollout, train, limit=1e-3)
    assert found.table["tokens"][-1] == 22  # nothing predicts the first token of a sequence
    worst = found.sequences.row(0, named=True)
    assert worst["sequence"] == 1
    assert worst["worst_token"] >= 7  # the first that is predicted with the wrong cache
    assert worst["worst_id"] == ids[1][worst["worst_token"]]
    other = found.sequences.row(1, named=True)
    assert other["max_abs"] < 1e-4
    assert "model.layers.1.self_attn" in found.origin
    assert "from token 6 on" in found.origin


def test_arrays_with_recordings_beside_them_name_the_layer(
    engines: tuple[Path, Path, list[list[int]]], tmp_path: Path
) -> None:
    rollout, train, ids = engines
    golden = [{"input_ids": row, "logprobs": [-2.0] * 12} for row in ids]
    target = [{"input_ids": row, "logprobs": [-2.0] * 11 + [-2.0 - number]} for number, row in enumerate(ids)]
    paths = as_json_lines(target, tmp_path / "target"), as_json_lines(golden, tmp_path / "golden")
    found = twinprobe.compare_logprobs(*paths, recordings=(rollout, train))
    assert found.sequences["sequence"][0] == 1
    assert "model.layers.1.self_attn" in found.origin


def test_recordings_without_the_worst_sequence_name_the_layer_of_the_worst_they_hold(
    engines: tuple[Path, Path, list[list[int]]], tmp_path: Path
) -> None:
    rollout, train, ids = engines
    table = [*ids, list(range(12))]
    golden = [{"input_ids": row, "logprobs": [-2.0] * 12} for row in table]
    target = [{"input_ids": row, "logprobs": [-2.0] * 11 + [-2.0 - number]} for number, row in enumerate(table)]
    paths = as_json_lines(target, tmp_path / "target"), as_json_lines(golden, tmp_path / "golden")
    found = twinprobe.compare_logprobs(*paths, recordings=(rollout, train))
    assert found.sequences["sequence"].to_list() == [2, 1, 0]
    assert found.origin.startswith("not in both recordings; the worst that is, row 2 of the table, begins at")
    assert "model.layers.1.self_attn" in found.origin
