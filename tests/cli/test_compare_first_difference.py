"""twinprobe compare -da: the first differing call, over one rank or many."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support import forward, tensor, value, write_dump
from twinprobe._cli import main


def analyze(target: Path, golden: Path, out: Path, *more: str) -> int:
    return main(["compare", "-tp", str(target), "-gp", str(golden), "-o", str(out), "-da", *more])


def culprits(out: Path) -> dict[str, list[str]]:
    (path,) = out.rglob("diff_analyze_*.json")
    return {rank: [entry["op_name"] for entry in found] for rank, found in json.loads(path.read_text()).items()}


def group(*ranks: int) -> dict[str, Any]:
    return {"type": "torch.ProcessGroup", "group_ranks": list(ranks), "group_id": "0"}


def ring(folder: Path, off: dict[str, float]) -> None:
    """Two ranks: compute, all_reduce, compute, send 0 -> 1, compute. ``off`` names the calls that are off."""

    def t(norm: float) -> dict[str, Any]:
        return tensor(norm=norm)

    for rank in (0, 1):
        a = 2.0 + off.get(f"a{rank}", 0)
        reduced = 5.0 + off.get("a0", 0) + off.get("a1", 0) + off.get("reduce", 0)
        b = reduced + 1 + off.get(f"b{rank}", 0)
        data = {
            "Torch.a.0.forward": forward([t(1.0)], [t(a)]),
            "Distributed.all_reduce.0.forward": forward([t(a)], [t(reduced)], group=group(0, 1)),
            "Torch.b.0.forward": forward([t(reduced)], [t(b)]),
        }
        sent = reduced + 1 + off.get("b0", 0)
        if rank == 0:
            data["Distributed.send.0.forward"] = forward([t(b)], [t(b)], dst=value(1))
        else:
            data["Distributed.recv.0.forward"] = forward([None], [t(sent)], src=value(0))
            data["Torch.c.0.forward"] = forward([t(sent)], [t(sent + 1 + off.get("c1", 0))])
        write_dump(folder / f"rank{rank}", data)


@pytest.mark.parametrize(
    ("off", "expected"),
    [
        ({"a0": 0.2}, {"rank_0": ["Torch.a.0.forward"]}),
        ({"a1": 0.2}, {"rank_1": ["Torch.a.0.forward"]}),
        ({"a0": 0.2, "a1": 0.3}, {"rank_0": ["Torch.a.0.forward"], "rank_1": ["Torch.a.0.forward"]}),
        ({"b0": 0.2}, {"rank_0": ["Torch.b.0.forward"]}),
        ({"b0": 0.2, "c1": 0.5}, {"rank_0": ["Torch.b.0.forward"]}),
        ({"c1": 0.5}, {"rank_1": ["Torch.c.0.forward"]}),
        ({"a1": float("nan")}, {"rank_1": ["Torch.a.0.forward"]}),
        ({"a1": float("inf")}, {"rank_1": ["Torch.a.0.forward"]}),
        (
            {"reduce": 0.5},
            {"rank_0": ["Distributed.all_reduce.0.forward"], "rank_1": ["Distributed.all_reduce.0.forward"]},
        ),
    ],
)
def test_the_culprit_is_the_rank_where_it_began(tmp_path: Path, off: dict, expected: dict) -> None:
    ring(tmp_path / "t", off)
    ring(tmp_path / "g", {})
    assert analyze(tmp_path / "t", tmp_path / "g", tmp_path / "out") == 0
    assert culprits(tmp_path / "out") == expected


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring(tmp_path / "t", {"a1": 0.2})
    ring(tmp_path / "g", {})
    analyze(tmp_path / "t", tmp_path / "g", tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("Saving json file to disk: ") for line in lines) == 2
    told = "rank 1: the difference begins at Torch.a.0.forward; rank 0 differs as well; output.0: the output differs"
    assert any(line.startswith(told) for line in lines)
    assert lines[-2].startswith("The analyze result is saved in: ")
    assert lines[-1].endswith("compare ends successfully.")


def test_the_files_of_a_rank_have_the_known_fields(reference: Path, tmp_path: Path) -> None:
    dumps, results = reference / "msprobe/dumps", reference / "msprobe/results/dist_da"
    assert analyze(dumps / "dist_b/step0", dumps / "dist_a/step0", tmp_path) == 0
    for rank in (0, 1):
        (ours,) = tmp_path.glob(f"compare_result_rank{rank}_*.json")
        (theirs,) = results.glob(f"compare_result_rank{rank}_*.json")
        mine, known = json.loads(ours.read_text()), json.loads(theirs.read_text())
        assert list(mine) == list(known)
        for op, entry in known.items():
            for ours_item, item in zip(mine[op]["op_items"], entry["op_items"], strict=True):
                # A rank number in src or dst is text in their file and a number in ours.
                assert {key: str(ours_item[key]) for key in item} == {key: str(value) for key, value in item.items()}


def test_the_planted_fault_of_the_reference_is_found_on_its_rank(reference: Path, tmp_path: Path) -> None:
    dumps = reference / "msprobe/dumps"
    analyze(dumps / "dist_b/step0", dumps / "dist_a/step0", tmp_path)
    assert culprits(tmp_path) == {"rank_1": ["Tensor.__add__.0.forward"]}
    entry = json.loads(next(tmp_path.glob("diff_analyze_*.json")).read_text())["rank_1"][0]
    assert list(entry) == ["op_name", "data_info", "stack_info"]
    assert "h=h+eps" in entry["stack_info"][0]


@pytest.mark.parametrize("case", ["L1_stat", "L1_md5", "L1_tensor"])
def test_two_files_of_any_kind(reference: Path, tmp_path: Path, case: str) -> None:
    target, golden = (next((reference / f"msprobe/dumps/{case}_{side}/step0").glob("*/dump.json")) for side in "ba")
    assert analyze(target, golden, tmp_path) == 0
    assert culprits(tmp_path) == {"rank_0": ["Functional.linear.12.forward"]}
    assert len(list(tmp_path.glob("compare_result_2*.json"))) == 1


def test_equal_runs_have_no_culprit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ring(tmp_path / "t", {})
    assert analyze(tmp_path / "t", tmp_path / "t", tmp_path / "out") == 0
    assert "no call differs" in capsys.readouterr().out
    assert list((tmp_path / "out").glob("diff_analyze*")) == []


def test_point_to_point_batches_link_ranks_by_their_peers(tmp_path: Path) -> None:
    def p2p(op: str, peer: int, norm: float) -> dict[str, Any]:
        return {"class_type": "torch.distributed.P2POp", "tensor": tensor(norm=norm), "op": op, "peer": peer, "tag": 0}

    def run(folder: Path, off: float) -> None:
        made, other = 2.0 + off, 7.0
        for rank, (mine, got) in enumerate(((made, other), (other, made))):
            moves = [p2p("isend", 1 - rank, mine), p2p("irecv", 1 - rank, got)]
            data = {
                "Torch.a.0.forward": forward([tensor(norm=1.0)], [tensor(norm=mine)]),
                "Distributed.batch_isend_irecv.0.forward": forward([moves], [moves]),
                "Torch.b.0.forward": forward([tensor(norm=got), tensor(norm=0.5)], [tensor(norm=got * 2)]),
            }
            write_dump(folder / f"rank{rank}", data)

    run(tmp_path / "t", 0.5)
    run(tmp_path / "g", 0.0)
    analyze(tmp_path / "t", tmp_path / "g", tmp_path / "out")
    assert culprits(tmp_path / "out") == {"rank_0": ["Torch.a.0.forward"]}


def test_a_module_around_a_collective_is_not_blamed_on_the_rank_that_received(tmp_path: Path) -> None:
    def run(folder: Path, off: float) -> None:
        for rank in (0, 1):
            given = 2.0 + (off if rank == 1 else 0.0)
            summed = tensor(norm=5.0 + off)
            data = {
                "Torch.a.0.forward": forward([tensor(norm=1.0)], [tensor(norm=given)]),
                "Distributed.all_reduce.0.forward": forward([tensor(norm=given)], [summed], group=group(0, 1)),
                "Module.block.Block.forward.0": forward([tensor(norm=1.0)], [summed]),
            }
            parents = dict.fromkeys(list(data)[:2], "Module.block.Block.forward.0")
            write_dump(folder / f"rank{rank}", data, parents=parents | {"Module.block.Block.forward.0": None})

    run(tmp_path / "t", 0.5)
    run(tmp_path / "g", 0.0)
    analyze(tmp_path / "t", tmp_path / "g", tmp_path / "out")
    assert culprits(tmp_path / "out") == {"rank_1": ["Torch.a.0.forward"]}
