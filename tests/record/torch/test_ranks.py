"""Several ranks: one folder each, collectives under their public names, training unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_programs import start_ranks

from support import slow

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="torch.distributed is not built in")


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not hasattr(pytest.importorskip("torch.distributed.tensor"), "DTensor"):
        pytest.skip("this torch has no public DTensor")
    folder = tmp_path_factory.mktemp("programs")
    start_ranks("more_collectives+dtensor+collectives", folder)
    return folder / "dump"


@pytest.fixture(scope="module")
def exchange(programs: Path) -> Path:
    return programs / "collectives"


def data_of(dump: Path, rank: int, step: int = 0) -> dict[str, Any]:
    text = (dump / f"step{step}" / f"rank{rank}" / "dump.json").read_text(encoding="utf-8")
    return json.loads(text)["data"]  # type: ignore[no-any-return]


def test_each_rank_has_a_folder_of_its_own(exchange: Path) -> None:
    assert sorted(one.name for one in exchange.iterdir()) == ["step0"]
    assert sorted(one.name for one in (exchange / "step0").iterdir()) == ["rank0", "rank1"]


@pytest.mark.parametrize("rank", [0, 1])
def test_collectives_look_as_in_known_dumps(exchange: Path, reference: Path, rank: int) -> None:
    ours, theirs = data_of(exchange, rank), data_of(reference / "msprobe/dumps/dist_a", rank)
    known = [name for name in theirs if name.startswith("Distributed")]
    assert [name for name in ours if name.startswith("Distributed")][: len(known)] == known
    for name in known:
        if "batch" not in name:
            assert shape_of(ours[name]) == shape_of(theirs[name]), name


def shape_of(value: Any) -> Any:
    """The structure of an entry: types, keys and nulls, without numbers."""
    if isinstance(value, list):
        return [shape_of(item) for item in value]
    if isinstance(value, dict):
        if value.get("type") == "torch.Tensor":
            return sorted({*value} - {"NaN_count", "Inf_count"})
        return {key: shape_of(item) for key, item in value.items()} if "type" not in value else value
    return value


def test_what_a_collective_gave_is_recorded(exchange: Path) -> None:
    zero, one = data_of(exchange, 0), data_of(exchange, 1)
    name = "Distributed.all_reduce.0.forward"
    summed = [data[name]["input_args"][0]["Mean"] for data in (zero, one)]
    assert zero[name]["output"][0]["Mean"] == pytest.approx(sum(summed), rel=1e-5)
    assert zero[name]["output"] == one[name]["output"]
    name = "Distributed.all_gather_into_tensor.0.forward"
    assert zero[name]["input_args"][0] is None
    assert zero[name]["output"][0]["shape"] == [6, 2]
    assert zero[name]["output"][0]["Norm"] > 0


def test_point_to_point_operations_name_their_peer(exchange: Path) -> None:
    (operations,) = data_of(exchange, 1)["Distributed.batch_isend_irecv.0.forward"]["input_args"]
    assert [(one["op"], one["peer"], one["group_id"]) for one in operations] == [
        ("isend", 0, "77849d8c"),
        ("irecv", 0, "77849d8c"),
    ]
    assert operations[0]["tensor"]["shape"] == [3, 2]


def test_what_is_still_on_its_way_is_recorded_without_values(exchange: Path) -> None:
    output = data_of(exchange, 0)["Distributed.all_reduce.2.forward"]["output"][0]
    assert output["shape"] == [2]
    assert output["Max"] is None


def test_rarer_collectives_and_early_imports_are_recorded_once(programs: Path) -> None:
    zero, one = (data_of(programs / "more_collectives", rank) for rank in (0, 1))

    def called(data: dict[str, Any]) -> list[str]:
        return [name.split(".")[1] for name in data if name.startswith("Distributed")]

    rest = ["reduce", "gather", "scatter", "all_to_all_single", "reduce_scatter_tensor"]
    # An older PyTorch does not tell anybody of a function that was imported before the recorder came.
    early = ["all_reduce"] if hasattr(torch.distributed.distributed_c10d, "has_torch_function") else []
    assert called(zero) == [*early, "isend", *rest]
    assert called(one) == [*early, "irecv", *rest]
    if early:
        reduced = zero["Distributed.all_reduce.0.forward"]
        assert (reduced["input_args"][0]["Max"], reduced["output"][0]["Max"]) == (1.0, 3.0)
    assert [part["Max"] for part in zero["Distributed.gather.0.forward"]["output"][1]] == [0.0, 1.0]
    scattered = one["Distributed.scatter.0.forward"]
    assert (scattered["input_args"][0], scattered["output"][0]["Max"]) == (None, 1.0)
    assert one["Distributed.all_to_all_single.0.forward"]["output"][0]["shape"] == [4]


@pytest.fixture(scope="module")
def plain_training(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return [one.stdout for one in start_ranks("ddp", tmp_path_factory.mktemp("plain"))]


@pytest.mark.parametrize("level", slow("L0", "mix"))
def test_data_parallel_training_is_bit_identical(tmp_path: Path, plain_training: list[str], level: str) -> None:
    recorded = [one.stdout for one in start_ranks("ddp", tmp_path / "recorded", "record", level)]
    assert plain_training == recorded
    assert recorded[0].startswith("digest ")
    data = data_of(tmp_path / "recorded" / "dump", 1)
    assert {"Module.module.0.Linear.forward.2", "Module.module.2.Linear.backward.2"} <= {*data}


RUNS = [
    f"{level}:{kept}"
    for level in ("L0", "L1", "mix")
    for kept in ("statistics:statistics", "tensor:statistics", "statistics:md5")
]


FEW = ["L0:statistics:statistics", "L1:statistics:md5", "mix:tensor:statistics"]


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        ("fsdp2", FEW),
        *(
            pytest.param(kind, RUNS, marks=pytest.mark.slow)
            for kind in ("fsdp2", "fsdp2_mixed", "fsdp1", "ddp", "tensor_parallel")
        ),
    ],
)
def test_split_training_is_bit_identical_at_every_level(tmp_path: Path, kind: str, runs: list[str]) -> None:
    if kind.startswith("fsdp2") and not hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    for rank, done in enumerate(start_ranks("split", tmp_path, kind, *runs)):
        assert "error while" not in done.stderr
        digests = dict(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("digest "))
        assert [*digests] == ["plain", *runs]
        assert {*digests.values()} == {digests["plain"]}
        for run in runs:
            data = data_of(tmp_path / "dump" / run.replace(":", "_"), rank, step=2)
            assert any(".backward" in name for name in data)
            assert "remark" not in json.dumps(data)
    torch.manual_seed(3)
    weight = torch.nn.Linear(4, 8).weight
    if kind == "fsdp2":  # the whole parameter, as the module used it
        seen = data_of(tmp_path / "dump" / "mix_tensor_statistics", 1)["Module.0.0.Linear.forward.0"]["parameters"][
            "weight"
        ]
        assert (seen["shape"], seen["Max"], seen["Min"]) == ([8, 4], weight.max().item(), weight.min().item())
        (file,) = (tmp_path / "dump" / "mix_tensor_statistics" / "step0" / "rank1").rglob(seen["data_name"])
        assert torch.equal(torch.load(file), weight)


def test_a_sharded_tensor_shows_its_layout_and_its_own_part(programs: Path) -> None:
    data = data_of(programs / "dtensor", 1)
    sharded = data["Module.0.Identity.forward.0"]["input_args"][0]
    assert sharded["type"] == "torch.distributed.tensor.DTensor"
    assert (sharded["device_mesh"], sharded["placements"]) == ([0, 1], [{"Shard": {"dim": 0}}])
    assert (sharded["Max"], sharded["Min"]) == (7.0, 4.0)
    whole = data["Module.0.Identity.forward.1"]["input_args"][0]
    assert whole["placements"] == [{"Replicate": {}}]
    assert whole["Min"] == 0.0
    (file,) = (programs / "dtensor" / "step0" / "rank1").rglob(sharded["data_name"])
    assert torch.load(file).tolist() == [[4.0, 5.0], [6.0, 7.0]]


SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(1, 2) + dist.get_rank()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down
"""


def test_torchrun_with_an_unchanged_script_makes_one_folder_per_rank(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    config = {"dump_path": str(tmp_path / "dump"), "level": "mix", "rank": [1]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "start.py").write_text(
        "import sys\nfrom twinprobe._record.run_script import run_script\nsys.exit(run_script(sys.argv[1:]))\n"
    )
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        "start.py",
        "train.py",
    ]
    variables = os.environ | {"TWINPROBE_CONFIG": str(tmp_path / "config.json"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = sorted(str(one.relative_to(tmp_path / "dump")) for one in (tmp_path / "dump").glob("*/*"))
    assert found == ["step0/rank1", "step1/rank1"]
    assert "Module.module.0.Linear.backward.0" in data_of(tmp_path / "dump", 1, 1)
