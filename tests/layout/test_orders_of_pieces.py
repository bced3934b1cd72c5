"""Tensors of ranks whose elements lie in another order than those of one process: put in order, or blamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support import tensor, write_dump
from twinprobe._cli import main

Arrays = dict[str, dict[str, np.ndarray]]
BATCH, LENGTH, WIDTH = 2, 8, 6
EMBEDDING, LINEAR = "Module.embedding.Embedding.forward.0", "Module.qkv.Linear.forward.0"
MATMUL, NORM = "Torch.matmul.0.forward", "Module.norm.LayerNorm.forward.0"


def dump(folder: Path, calls: Arrays, *, kept: bool = True, dtype: str = "") -> None:
    """A dump with true statistics and, if ``kept``, the tensors: inputs, parameters and outputs of each call."""
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    data: dict[str, Any] = {}
    for op, arrays in calls.items():
        entry: dict[str, Any] = {"input_args": [], "input_kwargs": {}, "parameters": {}, "output": []}
        for place, array in arrays.items():
            file = f"{op}.{place}.npy"
            if kept:
                np.save(store / file, array)
            leaf = tensor(
                high=float(array.max()), low=float(array.min()), mean=float(array.mean()),
                norm=float(np.linalg.norm(array)), shape=list(array.shape),
                dtype=f"torch.{dtype if dtype and array.dtype == np.float32 else array.dtype}",
                **({"data_name": file} if kept else {}),
            )  # fmt: skip
            section, _, key = place.partition(".")
            if section == "parameters":
                entry["parameters"][key] = leaf
            else:
                entry["input_args" if section == "input" else "output"].append(leaf)
        data[op] = entry
    write_dump(folder, data, task="tensor" if kept else "statistics", level="mix", parents=dict.fromkeys(calls))


def compared(target: Path, golden: Path, out: Path, capsys: pytest.CaptureFixture[str], layout: str) -> dict[str, Any]:
    words = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--csv", "--json", "--layout", layout]
    assert main(words) == 0
    (found,) = json.loads(capsys.readouterr().out)["ranks"]
    return found  # type: ignore[no-any-return]


def projection(weight: np.ndarray, x: np.ndarray) -> Arrays:
    return {LINEAR: {"input.0": x, "parameters.weight": weight, "output.0": x @ weight.T}}


@pytest.mark.parametrize("parts", [(6, 6, 6), (12, 4, 4), (8, 8)])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_fused_projection_is_put_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: tuple[int, ...], wrong: bool
) -> None:
    random = np.random.default_rng(3)
    x = random.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
    pieces = [random.standard_normal((size, WIDTH)).astype(np.float32) for size in parts]
    dump(tmp_path / "g" / "step0" / "proc1", projection(np.concatenate(pieces), x))
    for rank in range(2):
        own = [np.split(piece, 2)[1 - rank if wrong else rank] for piece in pieces]
        dump(tmp_path / "t" / "step0" / f"rank{rank}", projection(np.concatenate(own), x))
    found = compared(tmp_path / "t", tmp_path / "g", tmp_path / "out", capsys, "tp=2")
    told = [note for note in found["notes"] if "fused projections" in note]
    if wrong:  # shards of the wrong ranks are no order of a fused projection
        assert found["first"]["op"] == LINEAR
        assert not told
    else:
        assert found["verdicts"] == {"pass": 3, "warning": 0, "error": 0}
        assert told == ["target: 2 values of fused projections, cut in their parts on each rank: put in order"]


@pytest.mark.parametrize("kept", [True, False])
def test_the_rank_of_a_wrong_shard_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], kept: bool) -> None:
    random = np.random.default_rng(5)
    x = random.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
    weight = random.standard_normal((12, WIDTH)).astype(np.float32)
    dump(tmp_path / "g" / "step0" / "proc1", projection(weight, x), kept=kept)
    for rank in range(3):
        own = np.split(weight, 3)[rank] * (2.0 if rank == 1 else 1.0)
        dump(tmp_path / "t" / "step0" / f"rank{rank}", projection(own, x), kept=kept)
    found = compared(tmp_path / "t", tmp_path / "g", tmp_path / "out", capsys, "tp=3")
    assert found["first"]["op"] == LINEAR
    unseen = "" if kept else ", perhaps not alone"  # statistics show what is too large, not what is right
    assert found["notes"][:2] == [f"{LINEAR}.{part}: rank 1's shard differs{unseen}"
                                  for part in ("parameters.weight", "output.0")]  # fmt: skip


def coarse(array: np.ndarray, up: bool) -> np.ndarray:
    """Numbers with as many digits as bfloat16 has, rounded up or down."""
    return ((array.view(np.uint32) & 0xFFFF0000) + np.uint32(0x10000 * up)).view(np.float32)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_context_parallel_ranks_gather_is_put_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    random = np.random.default_rng(4)
    words = random.integers(0, 9, (BATCH, LENGTH))
    table = random.standard_normal((9, WIDTH)).astype(np.float32)
    places = [np.concatenate([np.arange(at, at + 2), np.arange(6 - at, 8 - at)]) for at in (0, 2)]
    gathered = np.concatenate(places)

    def calls(own: np.ndarray, order: np.ndarray, *, up: bool = False) -> Arrays:
        queries, keys = table[words[:, own]], table[words[:, order]]
        scores = queries @ keys.transpose(0, 2, 1)
        if dtype == "bfloat16":
            scores = coarse(scores, up)
        return {
            EMBEDDING: {"input.0": words[:, own], "parameters.weight": table, "output.0": queries},
            MATMUL: {"input.0": queries, "input.1": keys.transpose(0, 2, 1), "output.0": scores},
            NORM: {"input.0": keys.reshape(-1, WIDTH), "output.0": keys.reshape(-1, WIDTH) * 2},
        }

    dump(tmp_path / "g" / "step0" / "proc1", calls(np.arange(LENGTH), np.arange(LENGTH), up=True), dtype=dtype)
    for rank in range(2):
        dump(tmp_path / "t" / "step0" / f"rank{rank}", calls(places[rank], gathered), dtype=dtype)
    found = compared(tmp_path / "t", tmp_path / "g", tmp_path / "out", capsys, "cp=2")
    assert found["verdicts"] == {"pass": 8, "warning": 0, "error": 0}
    assert "target: 4 values gathered by context parallel ranks: put in order" in found["notes"]
