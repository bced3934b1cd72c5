"""Checkpoints and arrays, written by the tools that people use, are opened as runs; no pickle of theirs runs."""

from __future__ import annotations

import argparse
import collections
import inspect
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import twinprobe
from twinprobe._runs.tensors.tensor_files import open_named
from twinprobe.errors import BadInput, NothingToCompare, TwinProbeError

TENSORS = {
    "layer.weight": torch.arange(12, dtype=torch.float32).reshape(3, 4) / 7,
    "layer.bias": torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16),
    "steps": torch.tensor(7),
    "turned": torch.arange(6, dtype=torch.float64).reshape(2, 3).t(),
    "nothing": torch.zeros(0, 4),
}


def save_distributed(state: dict[str, Any], folder: Path) -> None:
    if "checkpoint_id" in inspect.signature(dcp.save).parameters:
        dcp.save(state, checkpoint_id=folder)
    else:  # torch 2.2
        dcp.save(state, dcp.FileSystemWriter(folder), no_dist=True)


def held(path: Path | dict[str, Any]) -> dict[str, np.ndarray]:
    """Every tensor of what twinprobe opens, as numbers."""
    run = twinprobe.open(path)
    found = {}
    for name, file in zip(run.table["name"].to_list(), run.table["file"].to_list(), strict=True):
        tensor = open_named(run.tensor_folder, file)
        data = tensor.data
        if tensor.dtype == "bfloat16":
            data = (data.astype(np.uint32) << 16).view(np.float32)
        found[name] = data.reshape(tensor.shape)
    return found


def expect(found: dict[str, np.ndarray], prefix: str = "", wanted: dict[str, torch.Tensor] = TENSORS) -> None:
    for name, tensor in wanted.items():
        assert found[prefix + name].shape == tuple(tensor.shape)
        np.testing.assert_array_equal(found[prefix + name], tensor.double().numpy())


@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "before torch 1.6"])
def test_what_torch_saves_with_everything_around_it(tmp_path: Path, as_zip: bool) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    path = tmp_path / "epoch.pt"
    around = {
        "epoch": 3, "arguments": argparse.Namespace(lr=0.1, path=Path("x")), "seen": {1, 2},
        "counts": collections.defaultdict(int, a=1), "array": np.arange(6.0).reshape(2, 3), "huge": 1 << 200,
    }  # fmt: skip
    whole = {"model": TENSORS, "optimizer": optimizer.state_dict(), **around}
    torch.save(whole, path, _use_new_zipfile_serialization=as_zip)
    found = held(path)
    expect(found, "model.")
    np.testing.assert_array_equal(found["array"], around["array"])
    state = optimizer.state_dict()["state"]
    np.testing.assert_array_equal(found["optimizer.state.0.exp_avg"], state[0]["exp_avg"].numpy())


def test_safetensors_single_and_sharded(tmp_path: Path) -> None:
    plain = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    save_file(plain, tmp_path / "model.safetensors")
    expect(held(tmp_path / "model.safetensors"))
    names = list(plain)
    folder = tmp_path / "sharded"
    folder.mkdir()
    listed = {}
    for at, part in enumerate((names[:2], names[2:]), start=1):
        file = f"model-0000{at}-of-00002.safetensors"
        save_file({name: plain[name] for name in part}, folder / file)
        listed |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": listed}))
    expect(held(folder))
    assert twinprobe.compare(folder, tmp_path / "model.safetensors")


def test_a_model_that_transformers_saved_in_shards(tmp_path: Path) -> None:
    import transformers

    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50
    )
    model = transformers.BertModel(config)
    model.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    assert twinprobe.compare(tmp_path / "pytorch_model.bin", tmp_path / "shards").agrees


def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    save_distributed({"model": TENSORS, "steps": 3}, tmp_path / "dcp")
    expect(held(tmp_path / "dcp"), "model.")


@pytest.mark.slow
def test_a_distributed_checkpoint_whose_tensors_lie_in_parts(tmp_path: Path) -> None:
    whole = torch.arange(24.0).reshape(6, 4)
    program = (
        "import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp\n"
        "try:\n    from torch.distributed.tensor import Shard, distribute_tensor\n"
        "except ImportError:  # before torch 2.5\n    from torch.distributed._tensor import Shard, distribute_tensor\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "def main(rank, where):\n"
        "    dist.init_process_group('gloo', init_method=f'file://{where}/meet', rank=rank, world_size=2)\n"
        "    mesh = init_device_mesh('cpu', (2,))\n"
        "    whole = torch.arange(24.0).reshape(6, 4)\n"
        "    dcp.save({'w': distribute_tensor(whole, mesh, [Shard(0)])}, checkpoint_id=f'{where}/dcp')\n"
        "    dist.destroy_process_group()\n"
        "    os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down\n"
        "if __name__ == '__main__':\n"
        "    torch.multiprocessing.spawn(main, args=(sys.argv[1],), nprocs=2)\n"
    )
    script = tmp_path / "save.py"
    script.write_text(program)
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, capture_output=True)
    assert len(list((tmp_path / "dcp").glob("*.distcp"))) == 2
    np.testing.assert_array_equal(held(tmp_path / "dcp")["w"], whole.numpy())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz(tmp_path: Path, save: Any) -> None:
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.asfortranarray(np.arange(6).reshape(2, 3)), "c": np.float16(2)}
    save(tmp_path / "x.npz", **arrays)
    found = held(tmp_path / "x.npz")
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_folder_of_arrays_is_read_in_the_order_of_its_numbers(tmp_path: Path) -> None:
    for at in (10, 2, 1):
        np.save(tmp_path / f"layer_{at}.npy", np.full(3, at))
    torch.save(torch.ones(2), tmp_path / "layer_11.pt")
    save_file({"data": torch.zeros(2)}, tmp_path / "layer_12.safetensors")
    run = twinprobe.open(tmp_path)
    assert run.ops == ["layer_1", "layer_2", "layer_10", "layer_11", "layer_12.data"]
    assert run.table["mean"].to_list() == [1.0, 2.0, 10.0, 1.0, 0.0]


def test_what_sglang_dumps(tmp_path: Path) -> None:
    # The layout of sglang/srt/debug_utils/dumper.py: the server itself needs a GPU.
    sides = {}
    for side, scale in (("a", 1.0), ("b", 1.5)):
        sides[side] = tmp_path / side
        sides[side].mkdir()
        for at, (step, name) in enumerate((step, name) for step in (1, 2) for name in ("embed", "mlp")):
            value = torch.ones(2, 3) * (scale if name == "mlp" and step == 2 else 1.0)
            file = f"forward_pass_id={step}___rank=0___name={name}___dump_index={at + 9}.pt"
            torch.save({"value": value, "meta": {"rank": 0}}, sides[side] / file)
    assert twinprobe.open(sides["a"]).ops == [
        "forward_pass_id1.embed", "forward_pass_id1.mlp", "forward_pass_id2.embed", "forward_pass_id2.mlp",
    ]  # fmt: skip
    first = twinprobe.compare(sides["b"], sides["a"]).first
    assert first is not None
    assert first.op == "forward_pass_id2.mlp"
    assert twinprobe.compare(sides["a"], sides["a"])


def test_dictionaries_of_arrays() -> None:
    expect(held(TENSORS))
    golden = {"x": np.ones(3), "y": torch.arange(4.0)}
    assert twinprobe.compare(golden, golden)
    first = twinprobe.compare({"x": np.ones(3), "y": torch.arange(4.0) * 2}, golden).first
    assert first is not None
    assert first.op == "y"
    with pytest.raises(BadInput, match="'x' is not an array of numbers"):
        twinprobe.open({"x": "text"})
    with pytest.raises(NothingToCompare):
        twinprobe.open({})


class Hostile:
    """Would leave a file behind if its pickle ran."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (self.path, "w"))


def test_no_pickle_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    state = {"w": torch.ones(2), "x": Hostile(mark)}
    torch.save(state, tmp_path / "a.pt")
    torch.save(state, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps({"w": np.ones(2), "x": Hostile(mark)}, protocol=4))
    folder = tmp_path / "dcp"
    save_distributed({"w": torch.ones(2)}, folder)
    (folder / ".metadata").write_bytes(pickle.dumps([Hostile(mark)]))
    for path in (tmp_path / "a.pt", tmp_path / "old.pth", tmp_path / "a.pdparams"):
        assert list(held(path)) == ["w"]
    with pytest.raises(NothingToCompare):
        twinprobe.open(folder)
    assert not mark.exists()


def _safe(header: Any, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


HOSTILE = {
    "header.safetensors": (1 << 60).to_bytes(8, "little") + b"{}",
    "outside.safetensors": _safe({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}),
    "overlap.safetensors": _safe({
        name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in ("a", "b")
    }, bytes(8)),
    "shape.safetensors": _safe({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, bytes(4)),
    "kind.safetensors": _safe({"w": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "text.safetensors": _safe(["no"]),
    "cut.pdparams": pickle.dumps({"w": np.ones(3)}, protocol=4)[:-20],
    "empty.pt": b"",
    "zip.pt": b"PK\x03\x04" + bytes(100),
    "message.ckpt": b"\x0a\xff\xff\xff\xff\x0f\x0a",
    "other.bin": b"hello, I am no checkpoint",
    "text.npz": b"PK\x05\x06" + bytes(18),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(HOSTILE[name])
    with pytest.raises(TwinProbeError) as refused:
        twinprobe.open(path)
    assert name in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_pickle_of_endless_containers_is_refused(tmp_path: Path) -> None:
    shared: Any = [1]
    for _ in range(40):
        shared = [shared, shared]  # 2 to the power of 40 paths lead to the end
    (tmp_path / "bomb.pdparams").write_bytes(pickle.dumps({"w": shared}, protocol=4))
    with pytest.raises(TwinProbeError, match="more, or deeper, containers"):
        twinprobe.open(tmp_path / "bomb.pdparams")


def test_an_index_leads_to_no_file_outside(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "secret.safetensors")
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../secret.safetensors"}}))
    with pytest.raises(TwinProbeError, match=r"leaves its folder"):
        twinprobe.open(folder)
