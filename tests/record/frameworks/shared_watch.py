"""level="watch" in any framework: nothing changes, each step is there, and runs are compared with PyTorch's too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watch_programs import train, train_with_two_optimizers

import twinprobe
from cross import DATA
from twinprobe._record.watch.eager import EagerWatcher
from twinprobe._runs.watch import STREAM, Watched, read_watch
from twinprobe.errors import BadInput


@pytest.fixture(scope="module")
def healthy(kit: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[np.ndarray]]:
    folder = tmp_path_factory.mktemp("watch") / "run"
    return folder, train(kit.make_recorder.name, folder)


def watched(folder: Path) -> Watched:
    return read_watch(folder / "rank0" / STREAM)


def test_training_is_the_same_to_the_last_bit(kit: Any, healthy: tuple[Path, list[np.ndarray]]) -> None:
    call = kit.base.__call__
    for one, other in zip(train(kit.make_recorder.name, None), healthy[1], strict=True):
        assert np.array_equal(one, other)
    assert kit.base.__call__ is call
    assert "twinprobe" not in call.__code__.co_filename


def test_each_step_holds_what_pytorch_s_does(healthy: tuple[Path, list[np.ndarray]]) -> None:
    """Digests of the data are equal, all other numbers up to rounding."""
    found, torch = watched(healthy[0]), watched(DATA / "watch_torch")
    assert found.steps.tolist() == torch.steps.tolist()
    words = {"embedding_table": "weight", "gamma": "weight", "beta": "bias"}
    for name in found.names:
        if name.startswith(("random.", "setting.")) or name.endswith(".residue"):
            continue
        there = ".".join(words.get(part, part) for part in name.split("."))
        assert there in torch.names, name
        one, other = found.values[:, found.names.index(name)], torch.values[:, torch.names.index(there)]
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6), name
    kinds = {name.partition(".")[0] for name in found.names}
    assert kinds >= {"loss", "grad_norm", "output", "parameter", "gradient", "input", "group", "random", "setting"}
    assert sum(name.startswith("gradient.") and name.endswith(".norm") for name in found.names) == 9
    digest = found.names.index("input.0.digest")
    assert found.values[:, digest].tolist() == torch.values[:, torch.names.index("input.0.digest")].tolist()


def test_two_frameworks_agree_and_another_learning_rate_is_found(
    kit: Any, healthy: tuple[Path, list[np.ndarray]], tmp_path: Path
) -> None:
    assert twinprobe.compare(healthy[0], DATA / "watch_torch").steps.parting.step is None
    train(kit.make_recorder.name, tmp_path / "changed", change=3)
    for golden in (healthy[0], DATA / "watch_torch"):
        parting = twinprobe.compare(tmp_path / "changed", golden).steps.parting
        assert (parting.step, parting.cause) == (3, "learning rate"), parting.sentence
        assert "learning rate 0.4 against 0.1" in parting.sentence


def test_every_and_a_list_choose_what_is_written(kit: Any, tmp_path: Path) -> None:
    train(kit.make_recorder.name, tmp_path / "run", every=2, list=["head"])
    found = watched(tmp_path / "run")
    assert found.steps.tolist() == [0, 2, 4]
    assert {name.split(".")[1] for name in found.names if name.startswith("output.")} == {"head"}
    with pytest.raises(BadInput, match="list holds 'haed'"):
        train(kit.make_recorder.name, tmp_path / "none", list=["haed"])


def test_what_a_device_measures_is_what_the_host_does(kit: Any) -> None:
    """The kernels that measure on a device, run here on the host's."""
    tensor = kit.tensor(np.linspace(-3, 2, 24).reshape(4, 6))
    found = EagerWatcher.on_device(tensor)
    expected = (np.linalg.norm(kit.array(tensor)), 3.0, kit.array(tensor).mean())
    assert [float(kit.array(one).reshape(-1)[0]) for one in found] == pytest.approx(expected, rel=1e-5)


def test_several_optimizers_make_one_step_and_each_has_its_settings(kit: Any, tmp_path: Path) -> None:
    """Steps are those of PyTorch, and the second optimizer's rate is named where it changes."""
    name = kit.make_recorder.name
    train_with_two_optimizers(name, tmp_path / "golden")
    train_with_two_optimizers(name, tmp_path / "changed", change=3)
    train_with_two_optimizers("torch", tmp_path / "torch")
    found = watched(tmp_path / "golden")
    assert found.steps.tolist() == [0, 1, 2, 3, 4]
    rates = watched(tmp_path / "changed")
    assert rates.values[:, rates.names.index("group.1.lr")] == pytest.approx([0.1, 0.1, 0.1, 0.4, 0.1])
    assert sum(one.startswith("gradient.") and one.endswith(".norm") for one in found.names) == 6
    parting = twinprobe.compare(tmp_path / "golden", tmp_path / "torch").steps.parting
    assert parting.step is None, parting.sentence
    for golden in ("golden", "torch"):
        parting = twinprobe.compare(tmp_path / "changed", tmp_path / golden).steps.parting
        assert (parting.step, parting.cause) == (3, "learning rate"), parting.sentence


def test_running_statistics_are_watched(kit: Any, tmp_path: Path) -> None:
    """Another momentum shows in them alone, and is found against either framework."""
    name = kit.make_recorder.name
    train_with_two_optimizers(name, tmp_path / "golden")
    train_with_two_optimizers(name, tmp_path / "changed", kept=0.7)
    train_with_two_optimizers("torch", tmp_path / "torch")
    for golden in ("golden", "torch"):
        parting = twinprobe.compare(tmp_path / "changed", tmp_path / golden).steps.parting
        assert (parting.step, parting.cause) == (0, "buffers"), parting.sentence
