"""Ranks that do not fit together: what is wrong is named, the rest is compared, and the command does not succeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import twinprobe
from support import forward, tensor, write_dump
from twinprobe._cli import main

LINEAR = "Module.up.Linear.forward.0"
NORM = "Module.norm.LayerNorm.forward.0"


def tensor_of(shape: list[int], high: float = 1.0, norm: float = 2.0) -> dict[str, Any]:
    return tensor(shape=shape, high=high, norm=norm, mean=0.0)


def single(folder: Path, steps: int = 1) -> Path:
    for step in range(steps):
        data = {
            LINEAR: {**forward([tensor_of([2, 4])], [tensor_of([2, 8], 2.0, 5.0)]),
                     "parameters": {"weight": tensor_of([8, 4], 3.0, 5.0)}},
            NORM: {**forward([tensor_of([2, 4])], [tensor_of([2, 4], 1.5)]), "parameters": {"weight": tensor_of([4])}},
        }  # fmt: skip
        write_dump(folder / f"step{step}" / "proc7", data, level="L0", parents={LINEAR: None, NORM: None})
    return folder


def ranks(folder: Path, count: int = 2, steps: int = 1, norm_weight: float = 1.0) -> Path:
    """Tensor parallel ranks of the single process: each has a part of the linear layer's outputs."""
    norms = {2: (3.0, 4.0), 4: (1.0, 8.0**0.5, 6.0**0.5, 10.0**0.5)}[count]
    for step in range(steps):
        for rank in range(count):
            high, norm = 2.0 / (rank + 1), norms[rank]
            weight = tensor_of([8 // count, 4], 3.0 if rank == count - 1 else 1.0, norm)
            copy = tensor_of([4], norm_weight if rank == count - 1 else 1.0)
            data = {
                LINEAR: {**forward([tensor_of([2, 4])], [tensor_of([2, 8 // count], high, norm)]),
                         "parameters": {"weight": weight}},
                NORM: {**forward([tensor_of([2, 4])], [tensor_of([2, 4], 1.5)]), "parameters": {"weight": copy}},
            }  # fmt: skip
            place = folder / f"step{step}" / f"rank{rank}"
            write_dump(place, data, level="L0", parents={LINEAR: None, NORM: None})
            (place / "layout.json").write_text(json.dumps({"rank": rank, "world_size": count}))
    return folder


def compare(target: Path, golden: Path, out: Path, *more: str) -> int:
    words = ["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "--csv", "--json", *more]
    return main(words)


def document_of(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    (found,) = json.loads(capsys.readouterr().out)["ranks"]
    return found  # type: ignore[no-any-return]


def test_shards_make_the_whole_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(ranks(tmp_path / "t"), single(tmp_path / "g"), tmp_path / "out") == 0
    found = document_of(capsys)
    assert found["verdicts"] == {"pass": 6, "warning": 0, "error": 0}
    assert any("layout tp=2 (found)" in note for note in found["notes"])


def test_a_replica_that_differs_is_named_with_its_rank(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(ranks(tmp_path / "t", norm_weight=1.25), single(tmp_path / "g"), tmp_path / "out") == 0
    notes = document_of(capsys)["notes"]
    assert f"{NORM}.parameters.weight: rank 1's replica differs from the others" in notes


def test_one_run_may_be_a_file_and_the_layout_may_be_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = ranks(tmp_path / "t") / "step0", single(tmp_path / "g") / "step0" / "proc7" / "dump.json"
    assert compare(target, golden, tmp_path / "out", "--layout", "tp=2") == 0
    found = document_of(capsys)
    assert found["verdicts"] == {"pass": 6, "warning": 0, "error": 0}
    assert any("layout tp=2 (as given)" in note for note in found["notes"])


def test_a_missing_rank_is_named_and_the_rest_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    for file in (target / "step0" / "rank1").iterdir():
        file.unlink()
    (target / "step0" / "rank1").rmdir()
    assert compare(target, golden, tmp_path / "out", "--layout", "tp=2") == 2
    out, error = capsys.readouterr()
    assert f"{target / 'step0'}: rank 1 is missing" in error
    (found,) = json.loads(out)["ranks"]
    assert found["verdicts"]["error"] == 0  # nothing is claimed of what is not there
    assert found["verdicts"]["pass"] >= 1
    assert compare(target, golden, tmp_path / "again", "--layout", "tp=2", "--allow-missing") == 0


def test_unequal_steps_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = ranks(tmp_path / "t", steps=2), single(tmp_path / "g")
    assert compare(target, golden, tmp_path / "out") == 2
    assert f"only {target} has step1: left out" in capsys.readouterr().err
    assert compare(target, golden, tmp_path / "again", "--allow-missing") == 0


@pytest.mark.parametrize(("layout", "told"), [("tp=x", "--layout has 'tp=x'"), ("pq=2", "'pq=2'")])
def test_a_layout_that_cannot_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, told: str
) -> None:
    assert compare(ranks(tmp_path / "t"), single(tmp_path / "g"), tmp_path / "out", "--layout", layout) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layouts", "told"),
    [(["tp=3"], "layout tp=3 makes 3 ranks, but there are 2"),
     (["tp=2,dp=2"], "layout tp=2,dp=2 makes 4 ranks, but there are 2"),
     (["tp=2", "tp=2"], "layout tp=2 makes 2 ranks, but there are 1")],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_named_and_the_ranks_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layouts: list[str], told: str
) -> None:
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    assert compare(target, golden, tmp_path / "out", "--layout", *layouts) == 2
    out, error = capsys.readouterr()
    assert told in error
    (found,) = json.loads(out)["ranks"]
    assert found["verdicts"] == {"pass": 6, "warning": 0, "error": 0}
    assert any("2 ranks, layout tp=2 (" in note for note in found["notes"])
    assert list((tmp_path / "out" / "step0").glob("compare_result_whole_*.csv"))
    assert compare(target, golden, tmp_path / "again", "--layout", *layouts, "--allow-missing") == 0


@pytest.mark.parametrize(
    ("layout", "assumed"),
    [("dp=3", "compared as tp=2 (found: parameters are cut otherwise in the other run)"), ("", "")],
)
def test_two_runs_of_shards_tell_how_they_are_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, assumed: str
) -> None:
    target, golden = ranks(tmp_path / "t"), ranks(tmp_path / "g", 4)
    more = ["--layout", layout] if layout else []
    assert compare(target, golden, tmp_path / "out", *more) == (2 if layout else 0)
    out, error = capsys.readouterr()
    assert assumed in error
    (found,) = json.loads(out)["ranks"]
    assert found["verdicts"] == {"pass": 6, "warning": 0, "error": 0}


@pytest.mark.parametrize(
    ("layout", "assumed", "passing"),
    [("cp=3", "layout cp=3 makes 3 ranks, but there are 2 (name the sizes so that they multiply to the ranks); "
              "compared as cp=2 (by the dimension that was given)", 2),
     ("cp=3,tp=2", "layout cp=3,tp=2 makes 6 ranks, but there are 2 (name the sizes so that they multiply to the "
                   "ranks); only what all ranks hold alike is compared", 1),
     ("", "how its 2 ranks are laid out is not recorded (say it: --layout tp=2); only what all ranks hold alike is "
          "compared", 1)],
)  # fmt: skip
def test_where_nothing_tells_a_layout_what_ranks_hold_alike_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, assumed: str, passing: int
) -> None:
    """Sequences of these lengths make no batch that both runs could have."""
    sides = []
    for folder, count, length in (("t", 2, 4), ("g", 4, 3)):
        shapes = [[2, length], [2, length, 4]]
        sides.append(data_parallel(tmp_path / folder, {f"rank{rank}": shapes for rank in range(count)}, unlike=True))
    more = ["--layout", layout, "cp=4"] if layout else []
    assert compare(*sides, tmp_path / "out", *more) == 2
    out, error = capsys.readouterr()
    assert f"{tmp_path / 't' / 'step0'}: {assumed}" in error
    (found,) = json.loads(out)["ranks"]
    assert found["verdicts"]["pass"] == passing
    assert list((tmp_path / "out" / "step0").glob("compare_result_whole_*.csv"))
    assert compare(*sides, tmp_path / "again", *more, "--allow-missing") == 0
    assert assumed in twinprobe.compare(*sides, layout=[layout, "cp=4"] if layout else None).failures[0]


def test_recorded_sizes_that_do_not_multiply_to_the_ranks_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = {f"rank{rank}": [[2, 8], [2, 8, 4]] for rank in range(2)}
    target = data_parallel(tmp_path / "t", shapes, {"tp": 3})
    golden = data_parallel(tmp_path / "g", {"proc7": [[4, 8], [4, 8, 4]]})
    assert compare(target, golden, tmp_path / "out") == 2
    assert "layout tp=3 makes 3 ranks, but there are 2" in capsys.readouterr().err
    assert compare(target, golden, tmp_path / "again", "--allow-missing") == 0


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"global_shape": [9, 9]}, "its global shape is [9, 9], but dump.json has [4, 4]"),
     ({"global_shape": [4, 4]}, "a piece of [4, 4] in [2, 1] parts cannot be [4, 4]"),
     ({"placements": [{"Shard": {"dim": 7}}]}, "it is split along dimension 7, which [4, 4] does not have"),
     ({"mesh": [4, 5], "local_shape": [2, 4]}, "rank 0 has a piece, but its mesh is [4, 5]")],
)  # fmt: skip
def test_placements_that_contradict_the_shapes_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: dict[str, Any], told: str
) -> None:
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    value = {"mesh": [0, 1], "placements": [{"Shard": {"dim": 0}}], "global_shape": [4, 4], "local_shape": [4, 4]}
    header = {"rank": 0, "world_size": 2, "values": {f"{LINEAR}.parameters.weight": value | wrong}}
    file = target / "step0" / "rank0" / "layout.json"
    file.write_text(json.dumps(header))
    assert compare(target, golden, tmp_path / "out") == 2
    assert f"{file}: {LINEAR}.parameters.weight: {told}" in capsys.readouterr().err
    assert compare(target, golden, tmp_path / "again", "--allow-missing") == 0


def test_a_layout_that_contradicts_the_parameters_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    assert compare(target, golden, tmp_path / "out", "--layout", "cp=2") == 2
    error = capsys.readouterr().err
    assert "layout cp=2: context parallel ranks hold whole parameters" in error
    assert f"{LINEAR}.parameters.weight is [4, 4] on rank 0, and [8, 4] in the other run" in error
    assert compare(target, golden, tmp_path / "again", "--layout", "cp=2", "--allow-missing") == 0


def data_parallel(
    folder: Path, shapes: dict[str, list[list[int]]], sizes: dict[str, int] | None = None, *, unlike: bool = False
) -> Path:
    """Words that go through an embedding, all of whose rows every rank has; ``unlike`` ones on each rank."""
    call = "Module.embedding.Embedding.forward.0"
    for name, (words, vectors) in shapes.items():
        norm = (16 / len(shapes)) ** 0.5
        inputs = tensor_of(words, 1.0 + int(name[-1]) % 2 * unlike, norm) | {"dtype": "torch.int64"}
        entry = forward([inputs], [tensor_of(vectors, 1.0, norm)]) | {"parameters": {"weight": tensor_of([16, 4])}}
        write_dump(folder / "step0" / name, {call: entry}, level="L0", parents={call: None})
        header = {"rank": int(name[-1]), "world_size": len(shapes), "sizes": sizes or {}}
        (folder / "step0" / name / "layout.json").write_text(json.dumps(header))
    return folder


@pytest.mark.parametrize(
    ("layout", "said"),
    [("cp=2", "context parallel ranks hold parts of sequences, but rank 0 was given [2, 8], and the other run [4, 8]"),
     ("tp=2", "tensor parallel ranks hold parts of parameters, but rank 0 has whole ones"),
     ("pp=2", "pipeline stages hold some layers, but rank 0 has all 1 parameters"),
     ("ep=2", "expert parallel ranks hold some of the experts, but no list of experts was recorded"),
     ("dp=2", "")],
)  # fmt: skip
def test_a_layout_that_contradicts_what_ranks_hold_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], layout: str, said: str
) -> None:
    golden = data_parallel(tmp_path / "g", {"proc7": [[4, 8], [4, 8, 4]]})
    target = data_parallel(tmp_path / "t", {f"rank{rank}": [[2, 8], [2, 8, 4]] for rank in range(2)})
    assert compare(target, golden, tmp_path / "out", "--layout", layout) == (2 if said else 0)
    assert said in capsys.readouterr().err
    assert compare(target, golden, tmp_path / "again", "--layout", layout, "--allow-missing") == 0


def test_a_layout_that_contradicts_the_recorded_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = {f"rank{rank}": [[2, 8], [2, 8, 4]] for rank in range(2)}
    target = data_parallel(tmp_path / "t", shapes, {"tp": 2})
    assert (
        compare(
            target, data_parallel(tmp_path / "g", {"proc7": [[4, 8], [4, 8, 4]]}), tmp_path / "out", "--layout", "dp=2"
        )
        == 2
    )
    assert "layout dp=2: the ranks recorded tp=2" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "{", '{"values": 5, "sizes": "x", "meshes": 3}', "nul"])
def test_a_broken_layout_file_does_no_harm(tmp_path: Path, text: str) -> None:
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    (target / "step0" / "rank0" / "layout.json").write_text(text)
    assert compare(target, golden, tmp_path / "out", "--layout", "tp=2", "--allow-missing") == 0


def test_a_rank_that_ended_early_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    file = target / "step0" / "rank1" / "dump.json"
    document = json.loads(file.read_text())
    del document["data"][NORM]
    file.write_text(json.dumps(document))
    assert compare(target, golden, tmp_path / "out") == 2
    assert f"rank 1 lacks 1 of the calls that other ranks made, {NORM} first" in capsys.readouterr().err


def test_where_ranks_put_together_part_over_their_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, golden = ranks(tmp_path / "t", steps=3), single(tmp_path / "g", steps=3)
    compare(target, golden, tmp_path / "agree")
    assert json.loads(capsys.readouterr().out)["findings"] == [
        "no call differs in any of the 3 steps that were compared"
    ]
    file = golden / "step2" / "proc7" / "dump.json"
    document = json.loads(file.read_text())
    document["data"][NORM]["output"][0] |= {"Max": 9.0, "Norm": 20.0}
    file.write_text(json.dumps(document))
    compare(target, golden, tmp_path / "differ")
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found.startswith(f"the runs agree up to step 1; step 2 differs: {NORM}: ")
    assert twinprobe.compare(target, golden).steps.parting.step == 2


@pytest.mark.parametrize("types", [("float32", "bfloat16"), ("bfloat16", "bfloat16")])
def test_a_rank_that_computes_in_another_type_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], types: tuple[str, str]
) -> None:
    """Autocast that one rank leaves out: its values agree, and are even closer."""
    target, golden = ranks(tmp_path / "t"), single(tmp_path / "g")
    files = [golden / "step0" / "proc7", *(target / "step0" / f"rank{rank}" for rank in range(2))]
    for folder, dtype in zip(files, ("bfloat16", *types), strict=True):
        document = json.loads((folder / "dump.json").read_text())
        document["data"][LINEAR]["output"][0]["dtype"] = f"torch.{dtype}"
        (folder / "dump.json").write_text(json.dumps(document))
    assert compare(target, golden, tmp_path / "out") == 0
    told = [note for note in document_of(capsys)["notes"] if "compute in different types" in note]
    said = f"{LINEAR}.output.0: float32 on rank 0, bfloat16 on others: they compute in different types"
    assert told == ([said] if types[0] == "float32" else [])


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"dp": 2}])
def test_as_many_ranks_in_another_recorded_layout_are_no_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sizes: dict[str, int]
) -> None:
    shapes = {f"rank{rank}": [[2, 8], [2, 8, 4]] for rank in range(2)}
    target, golden = data_parallel(tmp_path / "t", shapes), data_parallel(tmp_path / "g", shapes, sizes)
    compare(target, golden, tmp_path / "out")
    named = [one["rank"] for one in json.loads(capsys.readouterr().out)["ranks"]]
    assert named == (["step0/whole"] if "tp" in sizes else ["step0/rank0", "step0/rank1"])
