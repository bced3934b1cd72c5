"""Dumps that attack whoever replays a call: names, texts, shapes, sizes and files that lie."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinprobe
from support import forward, tensor, value, write_dump
from twinprobe.errors import BadInput


def dump(folder: Path, name: str, inputs: list[Any], *, out: list[int] | None = None, **kwargs: Any) -> Path:
    """A recorded call with one tensor input, whose result is said to be such a tensor too."""
    store = folder / "dump_tensor_data"
    store.mkdir(parents=True)
    np.save(store / "x.npy", np.ones((2, 3), np.float32))
    result = tensor(data_name="x.npy", shape=out or [2, 3])
    return write_dump(folder, {name: forward(inputs, [result], **kwargs)}, task="tensor")


X = tensor(data_name="x.npy")


@pytest.mark.parametrize(
    "name",
    [
        "Torch.load.0.forward",
        "Torch.save.0.forward",
        "Torch.hub.load.0.forward",
        "Torch.compile.0.forward",
        "Torch.from_file.0.forward",
        "Torch.ops.aten.add.0.forward",
        "Torch._C.Tensor.0.forward",
        "Torch.os.system.0.forward",
        "Tensor.__class__.0.forward",
        "Tensor.__reduce_ex__.0.forward",
        "Tensor.register_hook.0.forward",
        "Tensor.set_.0.forward",
        "Tensor.as_strided.0.forward",
        "Functional.__builtins__.0.forward",
        "Functional.handle_torch_function.0.forward",
        "os.system.0.forward",
        "builtins.eval.0.forward",
    ],
)
def test_a_name_outside_the_list_is_refused(name: str, tmp_path: Path) -> None:
    path = dump(tmp_path, name, [X, value("touch owned")])
    found = twinprobe.replay(path, call=name)
    assert "is not in the list of functions that may be called" in found.reasons["target"]
    with pytest.raises(BadInput):
        twinprobe.reproduce(path, call=name, output_path=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_class_from_a_dump_is_not_imported(tmp_path: Path) -> None:
    path = dump(tmp_path, "Module.layer.os.forward.0", [X])
    assert (
        "not a module that its parameters alone can rebuild" in twinprobe.replay(path, call="layer").reasons["target"]
    )


@pytest.mark.parametrize(
    "kwargs",
    [
        {"dim=__import__('os').system('touch owned'), dim": value(1)},
        {"dim": value("__import__('os').system('touch owned')")},
        {"dtype": {"type": "torch.dtype", "value": "torch.hub.load"}},
        {"dtype": {"type": "torch.dtype", "value": "__import__('os').system('touch owned')"}},
    ],
)
def test_text_of_a_dump_becomes_no_code(
    kwargs: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = dump(tmp_path / "run", "Functional.softmax.0.forward", [X], **kwargs)
    assert not twinprobe.replay(path, call="Functional.softmax.0.forward").values
    with pytest.raises(BadInput):
        twinprobe.reproduce(path, call="Functional.softmax.0.forward", output_path=tmp_path / "out")
    assert not (tmp_path / "owned").exists()


def test_a_hostile_text_argument_stays_a_literal_in_the_script(tmp_path: Path) -> None:
    """``approximate`` is a text that the function itself would refuse; ``equation`` one that it reads."""
    hostile = 'ij->ij"); import os; os.system("touch owned") #'
    path = dump(tmp_path / "run", "Torch.einsum.0.forward", [value(hostile), X])
    assert not twinprobe.replay(path, call="Torch.einsum.0.forward").values
    settings = {"version": "1`<script>alert(1)</script>", "device": 'cpu"; import os #'}
    good = dump(tmp_path / "good", "Functional.relu.0.forward", [X])
    document = json.loads(good.read_text())
    good.write_text(json.dumps({"settings": settings, **document}))
    twinprobe.reproduce(good, call="Functional.relu.0.forward", output_path=tmp_path / "out")
    assert "import os" not in (tmp_path / "out/reproduce.py").read_text()
    assert "<script>" not in (tmp_path / "out/README.md").read_text()


@pytest.mark.parametrize(
    ("name", "inputs", "kwargs"),
    [
        ("Tensor.repeat.0.forward", [X, value(1 << 20), value(1 << 20)], {}),
        ("Tensor.expand.0.forward", [X, [value(1 << 40), value(2), value(3)]], {}),
        ("Functional.pad.0.forward", [X, [value(0), value(1 << 40)]], {}),
        ("Functional.one_hot.0.forward", [X], {"num_classes": value(1 << 40)}),
        ("Functional.interpolate.0.forward", [X], {"size": value(1 << 40)}),
        ("Torch.repeat_interleave.0.forward", [X, value(1 << 40)], {}),
        ("Torch.bincount.0.forward", [X], {"minlength": value(1 << 40)}),
        ("Torch.full_like.0.forward", [tensor(data_name="x.npy", shape=[1 << 30, 1 << 10]), value(1.0)], {}),
    ],
)
@pytest.mark.parametrize("system_bounds", [True, False])
def test_memory_is_bounded_before_it_is_taken(
    system_bounds: bool,
    name: str,
    inputs: list[Any],
    kwargs: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the system, or where it cannot do that, by the shapes that a call would give."""
    import resource

    if not system_bounds:
        monkeypatch.setattr("twinprobe._replay.functions._memory_held", lambda: None)

    path = dump(tmp_path, name, inputs, **kwargs)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = twinprobe.replay(path, call=name, room=64 << 20)
    assert not found.values
    assert found.reasons["target"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 << 10  # KiB
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_a_shape_that_lies_about_its_file_is_noticed(tmp_path: Path) -> None:
    path = dump(tmp_path, "Functional.relu.0.forward", [tensor(data_name="x.npy", shape=[3, 2])])
    assert "the dump says [3, 2]" in twinprobe.replay(path, call="Functional.relu.0.forward").reasons["target"]


@pytest.mark.parametrize("file", ["../../outside.npy", "/etc/passwd", "link.npy", "..\\outside.npy"])
def test_tensors_outside_of_the_dump_are_not_read(file: str, tmp_path: Path) -> None:
    np.save(tmp_path / "outside.npy", np.ones((2, 3), np.float32))
    path = dump(tmp_path / "run", "Functional.relu.0.forward", [tensor(data_name=file)])
    (tmp_path / "run/dump_tensor_data/link.npy").symlink_to(tmp_path / "outside.npy")
    found = twinprobe.replay(path, call="Functional.relu.0.forward")
    assert not found.values
    assert found.reasons["target"]


class _Attack:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch owned",)


@pytest.mark.parametrize("suffix", [".pt", ".npy"])
def test_pickled_code_does_not_run(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = dump(tmp_path / "run", "Functional.relu.0.forward", [tensor(data_name=f"bad{suffix}")])
    blob = pickle.dumps(_Attack())
    if suffix == ".npy":
        head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
        blob = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + blob
    (tmp_path / f"run/dump_tensor_data/bad{suffix}").write_bytes(blob)
    found = twinprobe.replay(path, call="Functional.relu.0.forward")
    assert not found.values
    assert not (tmp_path / "owned").exists()


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    deep: Any = X
    for _ in range(200):
        deep = [deep]
    path = dump(tmp_path, "Torch.cat.0.forward", [deep])
    found = twinprobe.replay(path, call="Torch.cat.0.forward")
    assert found.reasons == {"target": "its arguments are nested deeper than 40 levels"}


def test_a_comparison_goes_on_past_calls_that_attack(tmp_path: Path) -> None:
    sides = []
    for side, factor in (("target", 2.0), ("golden", 1.0)):
        path = dump(tmp_path / side, "Torch.load.0.forward", [X, value("touch owned")])
        np.save(path.parent / "dump_tensor_data/y.npy", np.full((2, 3), factor, np.float32))
        document = json.loads(path.read_text())
        result = tensor(data_name="y.npy", norm=factor * 6**0.5, high=factor, low=factor, mean=factor)
        document["data"]["Torch.load.0.forward"]["output"] = [result]
        path.write_text(json.dumps(document))
        sides.append(path)
    found = twinprobe.compare(*sides, replay=True)
    assert found.first is not None  # judged without the evidence
    assert found.first.op == "Torch.load.0.forward"
    assert "is not in the list of functions that may be called" in found.summary
