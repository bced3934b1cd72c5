"""level="watch": what is in the stream, that nothing changes, that a kill costs little and the file stays small."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import twinprobe
from twinprobe._measure.engine import PLAIN
from twinprobe._record.watch import torch_statistics
from twinprobe._runs.watch import STREAM, Watched, read_watch
from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger
from warm_python import run_warm


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(8, 16), nn.Linear(16, 8), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.relu(self.up(x))))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList([Residual(), Residual()])
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make() -> tuple[Network, Any, torch.Tensor]:
    torch.manual_seed(0)
    network = Network()
    tokens = torch.randint(0, 20, (12, 4, 6), generator=torch.Generator().manual_seed(1))
    return network, torch.optim.AdamW(network.parameters(), lr=0.01), tokens


def loss_of(network: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(network(tokens).flatten(0, 1), tokens.flatten())


def trained(folder: Path | None, steps: int = 6, **options: Any) -> Network:
    network, optimizer, tokens = make()
    watching: Any = contextlib.nullcontext()
    if folder is not None:
        watching = twinprobe.record(network, folder, level="watch", **options)
    with watching:
        for step in range(steps):
            loss_of(network, tokens[step % len(tokens)]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return network


def watched(folder: Path) -> Watched:
    return read_watch(folder / "rank0" / STREAM)


def column(found: Watched, name: str) -> Any:
    return found.values[:, found.names.index(name)]


def test_training_is_the_same_to_the_last_bit(tmp_path: Path) -> None:
    alone, observed = trained(None), trained(tmp_path / "run")
    for one, other in zip(alone.parameters(), observed.parameters(), strict=True):
        assert torch.equal(one, other)
    assert not observed.blocks[0]._forward_hooks
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_each_step_holds_loss_settings_norms_and_statistics(tmp_path: Path) -> None:
    network, optimizer, tokens = make()
    seen: dict[str, list[float]] = {"loss": [], "gradient": [], "parameter": [], "total": []}
    with twinprobe.record(network, tmp_path / "run", level="watch"):
        for step in range(3):
            loss = loss_of(network, tokens[step])
            loss.backward()
            seen["loss"].append(loss.item())
            seen["gradient"].append(network.head.weight.grad.norm().item())
            seen["parameter"].append(network.head.weight.abs().max().item())
            seen["total"].append(torch.cat([one.grad.flatten() for one in network.parameters()]).norm().item())
            optimizer.step()
            optimizer.zero_grad()
    found = watched(tmp_path / "run")
    assert found.steps.tolist() == [0, 1, 2]
    assert found.known.all()
    assert column(found, "loss") == pytest.approx(seen["loss"])
    assert column(found, "gradient.head.weight.norm") == pytest.approx(seen["gradient"])
    assert column(found, "parameter.head.weight.max") == pytest.approx(seen["parameter"])
    assert column(found, "grad_norm") == pytest.approx(seen["total"])
    assert column(found, "group.0.lr") == pytest.approx([0.01] * 3)
    blocks = {name.split(".")[2] for name in found.names if name.startswith("output.blocks.")}
    assert blocks == {"0", "1"}
    assert not any(name.startswith("output.head") for name in found.names)
    assert len(set(column(found, "input.0.digest").tolist())) == 3  # three batches


def test_any_reader_of_arrow_can_open_the_stream(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=3)
    frame = pl.read_ipc_stream(tmp_path / "run" / "rank0" / STREAM)
    assert frame.columns == ["step", "names", "values"]
    names = frame["names"].drop_nulls()[-1].to_list()
    steps = frame.filter(pl.col("step") >= 0)
    assert steps["step"].to_list() == [0, 1, 2]
    assert all(len(row) == len(names) for row in steps["values"])


def test_a_step_is_an_optimizer_step_whatever_else_is_called(tmp_path: Path) -> None:
    """Gradients accumulate over two batches, and an evaluation lies between the steps."""
    network, optimizer, tokens = make()
    losses = []
    with twinprobe.record(network, tmp_path / "run", level="watch"):
        for step in range(3):
            for batch in (2 * step, 2 * step + 1):
                loss = loss_of(network, tokens[batch])
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                loss_of(network, tokens[0])
        loss_of(network, tokens[0])  # which no update follows
    found = watched(tmp_path / "run")
    assert found.steps.tolist() == [0, 1, 2]
    assert column(found, "loss") == pytest.approx(np.array(losses).reshape(3, 2).mean(axis=1))


@pytest.mark.parametrize("how", ["forward", "step", "by hand"])
def test_without_an_optimizer_a_step_is_a_step_call_or_a_forward(how: str, tmp_path: Path) -> None:
    network, _, tokens = make()
    with twinprobe.record(network, tmp_path / "run", level="watch") as recording:
        for step in range(3):
            if how == "forward":
                with torch.no_grad():
                    network(tokens[step])
                continue
            for batch in range(2 if how == "step" else 1):
                loss_of(network, tokens[step + batch]).backward()
            if how == "step":
                recording.step()
                continue
            with torch.no_grad():
                for one in network.parameters():
                    one.sub_(0.01 * one.grad)
                    one.grad = None
    assert watched(tmp_path / "run").steps.tolist() == [0, 1, 2]


def test_the_debugger_is_configured_by_config_json(tmp_path: Path) -> None:
    """The optimizer steps after stop(), as many scripts have it; the loss is the user's own."""
    config = {"task": "statistics", "dump_path": str(tmp_path / "run"), "level": "watch", "every": 2,
              "statistics": {"list": ["blocks.1.down", "head"]}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    network, optimizer, tokens = make()
    debugger = PrecisionDebugger(config_path=tmp_path / "config.json")
    for step in range(5):
        debugger.start(model=network)
        loss_of(network, tokens[step]).backward()
        debugger.log(loss=torch.tensor(float(step)), accuracy=0.5)
        debugger.stop()
        optimizer.step()
        optimizer.zero_grad()
        debugger.step()
    debugger.close()
    found = watched(tmp_path / "run")
    assert found.steps.tolist() == [0, 2, 4]
    assert column(found, "loss").tolist() == [0.0, 2.0, 4.0]
    assert column(found, "accuracy").tolist() == [0.5] * 3
    outputs = {name.removeprefix("output.").rpartition(".")[0] for name in found.names if name.startswith("output.")}
    assert outputs == {"blocks.1.down", "head"}


def test_the_stream_keeps_the_last_steps_only(tmp_path: Path) -> None:
    network, optimizer, tokens = make()
    sizes = []
    with twinprobe.record(network, tmp_path / "run", level="watch", keep=50) as recording:
        for step in range(400):
            loss_of(network, tokens[step % 12]).backward()
            if step == 200:
                recording.log(late=1.0)  # a series that the first steps do not have
            optimizer.step()
            optimizer.zero_grad()
            if (tmp_path / "run/rank0" / STREAM).exists():
                sizes.append((tmp_path / "run/rank0" / STREAM).stat().st_size)
    found = watched(tmp_path / "run")
    assert found.steps[-1] == 399
    assert 50 <= len(found.steps) <= 50 + 64 + 64
    assert np.array_equal(found.steps, np.arange(found.steps[0], 400))
    assert found.known[:, found.names.index("loss")].all()
    assert max(sizes[200:]) <= 1.6 * max(sizes[:200])  # a busy machine writes more batches, each with a header


KILLED = """
import os, signal, sys, time
sys.path[:0] = {paths!r}
from test_watch import *
network, optimizer, tokens = make()
with twinprobe.record(network, {folder!r}, level="watch"):
    for step in range(100_000):
        loss_of(network, tokens[step % 12]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step == 200:
            os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_leaves_in_haste_loses_nothing(tmp_path: Path) -> None:
    """os._exit() skips what Python does at its end; a child of a fork that calls it leaves the stream alone."""
    ending = (
        "            if not os.fork():\n                os._exit(0)\n            os.wait()\n            os._exit(7)\n"
    )
    program = KILLED.format(paths=sys.path, folder=str(tmp_path / "run"))
    program = program.replace("            os.kill(os.getpid(), signal.SIGKILL)\n", ending)
    done = run_warm(program, folder=Path(__file__).parent)
    assert done.returncode == 7, done.stderr
    found = watched(tmp_path / "run")
    assert (found.steps.tolist(), found.notes) == (list(range(201)), [])


def test_a_killed_run_can_be_read_up_to_its_last_whole_batch(tmp_path: Path) -> None:
    program = KILLED.format(paths=sys.path, folder=str(tmp_path / "run"))
    done = run_warm(program, folder=Path(__file__).parent)
    assert done.returncode == -signal.SIGKILL
    found = watched(tmp_path / "run")
    assert len(found.steps) >= 128
    assert "killed" in found.notes[0]
    whole = (tmp_path / "run/rank0" / STREAM).read_bytes()
    for cut in (1, 1000, len(whole) // 3):  # the write itself was cut off
        (tmp_path / STREAM).write_bytes(whole[:-cut])
        assert 0 < len(read_watch(tmp_path / STREAM).steps) < len(found.steps)
    trained(tmp_path / "other")
    assert twinprobe.compare(tmp_path / "run", tmp_path / "other").agrees


@pytest.mark.parametrize("content", [b"", b"nothing of the kind", b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(64)])
def test_what_is_no_stream_is_bad_input(content: bytes, tmp_path: Path) -> None:
    (tmp_path / STREAM).write_bytes(content)
    with pytest.raises(BadInput):
        read_watch(tmp_path / STREAM)


class Logger:
    def __init__(self) -> None:
        self.told: list[tuple[int, dict[str, float]]] = []

    def log(self, values: dict[str, float], step: int) -> None:
        self.told.append((step, values))


def test_loggers_hear_of_loss_learning_rate_and_norms(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = Logger()
    trained(tmp_path / "run", steps=3, sinks=["tensorboard", logger])
    assert [step for step, _ in logger.told] == [0, 1, 2]
    values = logger.told[0][1]
    assert {"loss", "grad_norm", "group.0.lr", "output.blocks.0.norm"} <= values.keys()
    assert not any(name.startswith("parameter.") for name in values)
    events = EventAccumulator(str(tmp_path / "run/tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2]
    assert events.Scalars("loss")[0].value == pytest.approx(values["loss"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "key 'every' is 0"),
        ({"sinks": [3]}, "not a logger"),
        ({"list": ["blocks.7"]}, "'blocks.7', which is not a module"),
    ],
)
def test_a_bad_setting_is_refused_before_the_training(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=words):
        trained(tmp_path / "run", **options)
    loss_of(make()[0], make()[2][0]).backward()  # and nothing is left behind


def test_keys_of_watching_belong_to_its_level(tmp_path: Path) -> None:
    network, _, _ = make()
    with (
        pytest.raises(BadInput, match="'keep' belongs to level watch"),
        twinprobe.record(network, tmp_path / "run", level="L1", keep=3),
    ):
        pass


def test_an_earlier_recording_is_not_overwritten(tmp_path: Path) -> None:
    trained(tmp_path / "run", steps=1)
    with pytest.raises(BadInput, match="earlier recording"):
        trained(tmp_path / "run", steps=1)


def test_checkpointed_and_compiled_blocks_are_counted_once(tmp_path: Path) -> None:
    """Recomputing runs a block again during backward; a compiled block is seen from outside."""
    from torch.utils.checkpoint import checkpoint

    if not hasattr(torch.compiler, "is_compiling"):
        pytest.skip("this torch cannot recompute a compiled block, recorded or not")

    class Recomputing(Network):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return self.head(x)

    network, _, tokens = make()
    again = Recomputing()
    again.load_state_dict(network.state_dict())
    again.blocks[1] = torch.compile(again.blocks[1], backend="eager")
    network.eval()
    again.eval()
    for name, model in (("plain", network), ("again", again)):
        with twinprobe.record(model, tmp_path / name, level="watch") as recording:
            loss_of(model, tokens[0]).backward()
            recording.step()
    plain, other = watched(tmp_path / "plain"), watched(tmp_path / "again")
    for block in (0, 1):
        series = f"output.blocks.{block}.norm"
        assert column(other, series) == pytest.approx(column(plain, series))


@pytest.mark.slow
def test_memory_stays_the_same_over_ten_thousand_steps(tmp_path: Path) -> None:
    import psutil

    network, optimizer, tokens = make()
    process = psutil.Process()
    used = []
    with twinprobe.record(network, tmp_path / "run", level="watch", keep=500):
        for step in range(10_000):
            loss_of(network, tokens[step % 12]).backward()
            optimizer.step()
            optimizer.zero_grad()
            if step in (2000, 9999):
                used.append(process.memory_info().rss)
    assert used[1] - used[0] < 16 << 20


def test_the_settings_of_every_optimizer_of_the_model_are_there(tmp_path: Path) -> None:
    """Matrices with an optimizer of their own: another rate of the second one is named as the cause."""

    def train(folder: Path, changed: int | None) -> None:
        network, _, tokens = make()
        optimizers = [
            torch.optim.SGD([one for one in network.parameters() if one.dim() > 1], lr=0.1),
            torch.optim.AdamW([one for one in network.parameters() if one.dim() < 2], lr=0.02),
        ]
        with twinprobe.record(network, folder, level="watch"):
            for step in range(6):
                optimizers[1].param_groups[0]["lr"] = 0.05 if step == changed else 0.02
                loss_of(network, tokens[step]).backward()
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()

    train(tmp_path / "golden", None)
    train(tmp_path / "target", 3)
    assert column(watched(tmp_path / "golden"), "group.1.lr") == pytest.approx([0.02] * 6)
    parting = twinprobe.compare(tmp_path / "target", tmp_path / "golden").steps.parting
    assert (parting.step, parting.cause) == (3, "learning rate"), parting.sentence


def test_the_kept_run_that_other_frameworks_are_compared_with_is_what_pytorch_gives(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))
    from watch_programs import train

    train("torch", tmp_path)
    steps = twinprobe.compare(tmp_path, Path(__file__).parents[2] / "data" / "cross" / "watch_torch").steps
    (trend,) = steps.trends
    # Other versions round in other ways.
    assert trend.difference[trend.differs].max(initial=0.0) < 1e-6, steps.parting.sentence


@pytest.mark.parametrize("compiled", [True, False])
def test_host_tensors_of_every_kind_have_the_statistics_of_their_elements(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of the compiled loop, views, NaN and 16 bits; without numba PyTorch's own operations give the same."""
    if not compiled:
        monkeypatch.setattr(torch_statistics, "engine_for", lambda _size: PLAIN)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(300, 500, generator=generator)
    wrong = values[0].clone()
    wrong[7] = torch.nan
    endless = values[1].clone()
    endless[3] = -torch.inf
    tensors = [values, values.t(), values[:, 1:3], values.bfloat16(), values.double(), wrong, endless, values[0, :1]]
    host = torch_statistics.HostPass()
    for _ in range(2):  # the second time the places of the results are known
        with torch.inference_mode():
            host.measure([((3 * at, 3 * at + 1, 3 * at + 2), one) for at, one in enumerate(tensors[:4])])
        host.measure([((3 * at, 3 * at + 1), one) for at, one in enumerate(tensors) if at > 3])
        series, found = host.collect()
        by_place = dict(zip(series, found.tolist(), strict=True))
        for at, one in enumerate(tensors):
            exact = one.double().numpy()
            expected = [np.sqrt(np.square(exact).sum()), np.abs(exact).max(), *([exact.mean()] if at < 4 else [])]
            measured = [by_place.pop(3 * at + number) for number in range(len(expected))]
            assert measured == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)
        assert not by_place
