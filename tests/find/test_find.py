"""``twinprobe find``: two scripts that know nothing of TwinProbe; the step, the call and the line where they part."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import twinprobe
from twinprobe._cli import main
from twinprobe._runs.watch import STREAM, WatchStream

# A plain loop without an optimizer of PyTorch, which each of the six programs would need another second and a half to
# import (test_child.py and the slow tests have one). `b` has another kernel for silu, wrong in layer 1 from step 4 on,
# below everything that Python sees.
KERNEL = """
import sys
import torch

torch.manual_seed(0)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.into = torch.nn.Linear(8, 16)
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.SiLU()) for _ in range(3)
        )
        self.out = torch.nn.Linear(16, 4)

    def forward(self, x):
        x = self.into(x)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)

if "b" in sys.argv:
    calls = 0
    def silu(x):
        global calls
        calls += 1
        return x * torch.sigmoid(x) * (1.001 if calls > 12 and calls % 3 == 2 else 1.0)
    library = torch.library.Library("aten", "IMPL")
    library.impl("silu", silu, "CPU")

net = Net()
data = torch.Generator().manual_seed(1)
for step in range(7):
    x, y = torch.randn(4, 8, generator=data), torch.randint(0, 4, (4,), generator=data)
    loss = torch.nn.functional.cross_entropy(net(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
    print("loss", loss.item())
"""


def write(folder: Path, script: str, name: str = "train.py") -> str:
    """The command that runs this script, without arguments."""
    (folder / name).write_text(script, encoding="utf-8")
    return f"{sys.executable} {folder / name}"


def found_in(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "find.json").read_text(encoding="utf-8")))


def find(folder: Path, target: str, golden: str, *options: str) -> dict[str, Any]:
    assert main(["find", target, golden, "-o", str(folder / "out"), *options]) == 0
    return found_in(folder / "out")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """A whole search: its folder, what it printed, and the golden command."""
    folder = tmp_path_factory.mktemp("searched")
    golden = write(folder, KERNEL)
    command = [sys.executable, "-c", "import sys; from twinprobe._cli import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "find", f"{golden} b", golden, "-o", str(folder / "out")],
        capture_output=True, text=True, timeout=1800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout, golden


def test_step_call_and_line_of_another_kernel_are_found(searched: tuple[Path, str, str]) -> None:
    folder, printed, _ = searched
    found = found_in(folder / "out")
    assert (found["agrees"], found["step"]) == (False, 4)
    assert found["first"]["op"] == "Functional.silu.1.forward"
    assert "train.py, line 19" in found["first"]["stack_line"]
    assert found["first"]["module"] == "layers.1.1"
    assert list(found["stages"]) == ["watch", "step", "tensors", "replay"]
    assert "step 4" in printed
    assert "Functional.silu.1.forward" in printed
    assert "seed 1234 set for python, numpy; the program seeds torch" in printed


@pytest.mark.slow
def test_the_programs_compute_what_they_compute_without_it(searched: tuple[Path, str, str]) -> None:
    folder, _, golden = searched
    plain = subprocess.run(golden.split(), capture_output=True, text=True, check=True).stdout
    watched = (folder / "out/watch/golden.log").read_text(encoding="utf-8")
    assert [line for line in watched.splitlines() if line.startswith("loss")] == plain.splitlines()
    # Later stages end with the step that they are about.
    again = (folder / "out/step/golden.log").read_text(encoding="utf-8")
    assert [line for line in again.splitlines() if line.startswith("loss")] == plain.splitlines()[:5]


def test_the_page_tells_all_of_it(searched: tuple[Path, str, str]) -> None:
    folder, _, golden = searched
    page = (folder / "out/find.html").read_text(encoding="utf-8")
    for text in ("Functional.silu.1.forward", "step 4", "train.py:19", "keep the suspects", f"{golden} b"):
        assert text in page, text
    links = re.findall(r'href="([^"]+)"', page)
    assert len(links) == 4
    assert "reproducer/reproduce.py" in links
    assert all((folder / "out" / link).is_file() for link in links)


def test_only_suspects_keep_their_tensors(searched: tuple[Path, str, str]) -> None:
    folder, _, _ = searched
    for side in ("target", "golden"):
        names = {path.name for path in (folder / "out/tensors" / side).rglob("*.pt")}
        assert "Functional.silu.1.forward.output.0.pt" in names
        assert not any("cross_entropy" in name for name in names)


def test_the_reproducer_shows_the_fault_by_itself(searched: tuple[Path, str, str]) -> None:
    folder, printed, _ = searched
    assert "Functional.silu.1.forward: the target is off by itself" in printed
    readme = (folder / "out/reproducer/README.md").read_text(encoding="utf-8")
    assert "torch.nn.functional.silu" in readme


def test_resuming_a_finished_search_runs_nothing_again(searched: tuple[Path, str, str]) -> None:
    folder, _, golden = searched
    before = found_in(folder / "out")
    logs = {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.log")}
    assert main(["find", f"{golden} b", golden, "-o", str(folder / "out")]) == 2  # it holds a search
    assert main(["find", f"{golden} b", golden, "-o", str(folder / "out"), "--resume", "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").rglob("*.log")} == logs
    after = found_in(folder / "out")
    assert after["first"] == before["first"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("raise ValueError('no such corpus')", "the golden program failed (exit code 1): ValueError: no such corpus"),
        ("import sys; print('disk is full'); sys.exit(3)", "the golden program failed (exit code 3): disk is full"),
        ("print('done')", "the golden program never imported torch"),
    ],
)
def test_a_program_that_fails_is_reported_in_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], script: str, said: str
) -> None:
    golden = write(tmp_path, script)
    recording = Path(__file__).resolve().parents[2] / "examples/demo/target"
    assert main(["find", str(recording), golden, "-o", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "golden.log" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("pyhton train.py", "'pyhton' is neither a program nor a recording"),
        ("", "the target command is empty"),
        ("python 'train.py", "cannot be read"),
        (f"{sys.executable} -I -c 0", "could not be watched"),
    ],
)
def test_commands_that_cannot_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, said: str
) -> None:
    assert main(["find", command, command, "-o", str(tmp_path / "out")]) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_ends_the_program_and_leaves_what_was_found(tmp_path: Path) -> None:
    script = "import pathlib, sys, time\npathlib.Path(sys.argv[1]).write_text('x')\ntime.sleep(600)\n"
    golden = write(tmp_path, script)
    started = tmp_path / "started"
    command = [sys.executable, "-c", "import sys; from twinprobe._cli import main; sys.exit(main())"]
    with subprocess.Popen(
        [*command, "find", f"{golden} {started}", f"{golden} {started}", "-o", str(tmp_path / "out")],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        while not started.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "interrupted" in error
    assert found_in(tmp_path / "out")["interrupted"]
    assert "interrupted" in (tmp_path / "out/find.html").read_text(encoding="utf-8")
    assert "KeyboardInterrupt" in (tmp_path / "out/watch/target.log").read_text(encoding="utf-8")


def test_to_the_bit_every_watched_difference_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rounding of bfloat16 is noise; whoever asks for every bit is told of it."""
    for side, factor in (("target", 1.0001), ("golden", 1.0)):
        writer = WatchStream(tmp_path / side / "rank0" / STREAM, 1000)
        for step in range(4):
            values = np.array([3.0 * factor, 2.0**-7], dtype=np.float32)
            writer.append(step, ["output.layers.0.norm", "output.layers.0.eps"], values)
        writer.close()
    watched = ["find", str(tmp_path / "target"), str(tmp_path / "golden")]
    assert main([*watched, "-o", str(tmp_path / "noise")]) == 0
    assert found_in(tmp_path / "noise")["agrees"]
    assert main([*watched, "-o", str(tmp_path / "bits"), "--exact"]) == 2  # there is no program to record
    assert "was only watched" in capsys.readouterr().err
    assert (found_in(tmp_path / "bits")["agrees"], found_in(tmp_path / "bits")["step"]) == (False, 0)


# The rest takes several runs of PyTorch each.

SMALL = """
import sys
import numpy as np
import torch

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.25), torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(1)
if "unseeded" in sys.argv:
    torch.seed()

def scattered(x):
    order = torch.from_numpy(np.random.default_rng().permutation(len(x)))
    return torch.zeros(3, x.shape[1]).index_add_(0, (torch.arange(len(x)) % 3)[order], x[order])

for step in range(6):
    if "lr" in sys.argv and step == 3:
        optimizer.param_groups[0]["lr"] = 3e-2
    x = torch.randn(64, 8, generator=data)
    if "shuffled" in sys.argv and step == 2:
        x = x.flip(0)
    hidden = net[0](x) if "parts" in sys.argv else net(x)
    if "parts" in sys.argv:
        hidden = net[2](scattered(hidden) if step >= 2 else hidden)
    loss = hidden.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_confirming_puts_goldens_values_in(searched: tuple[Path, str, str], capsys: pytest.CaptureFixture[str]) -> None:
    folder, _, golden = searched
    assert main(["find", f"{golden} b", golden, "-o", str(folder / "out"), "--resume", "--confirm"]) == 0
    printed = capsys.readouterr().out
    assert "with golden's values at layers.1.1, 100% of the difference of the loss is gone" in printed
    assert found_in(folder / "out")["stages"]["confirm"]


@pytest.mark.slow
def test_another_learning_rate_is_an_update_of_its_step(tmp_path: Path) -> None:
    golden = write(tmp_path, SMALL)
    found = find(tmp_path, f"{golden} lr", golden)
    assert found["step"] == 3
    assert found["first"]["op"].startswith("Optimizer.")
    assert "lr: 0.03 against 0.01" in found["first"]["sentence"]
    assert not found["others"]  # the same setting, of the other parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "step", "call"),
    [("parts", 2, "Tensor.index_add_.0.forward"), ("unseeded", 0, "Functional.dropout.0.forward")],
)
def test_one_program_twice_tells_which_call_is_not_deterministic(
    tmp_path: Path, how: str, step: int, call: str
) -> None:
    command = write(tmp_path, SMALL) + f" {how}"
    found = find(tmp_path, command, command)
    assert (found["agrees"], found["step"], found["first"]["op"]) == (False, step, call)


@pytest.mark.slow
def test_one_program_twice_may_well_be_deterministic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = write(tmp_path, SMALL.replace("torch.manual_seed(0)\n", ""))
    found = find(tmp_path, command, command, "--steps", "4")
    assert found["agrees"]
    assert "deterministic: both runs are equal in all 4 steps" in found["sentence"]
    assert "seed 1234 set for python, numpy, torch" in capsys.readouterr().out
    assert main(["find", command, command, "-o", str(tmp_path / "other"), "--keep-seeds", "--fail-on", "--quiet"]) == 1
    assert found_in(tmp_path / "other")["step"] == 0


ATTENTION = """
import sys
import torch
torch.manual_seed(0)

class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(8, 24), torch.nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if "b" not in sys.argv:
            return self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)  # one token too many
        weights = (q @ k.transpose(-1, -2) / 8 ** 0.5).masked_fill(~seen, float("-inf")).softmax(-1)
        return self.out(weights @ v)

net = torch.nn.Sequential(torch.nn.Linear(8, 8), Attention(), torch.nn.Linear(8, 4))
for step in range(2):
    net(torch.randn(2, 6, 8)).square().mean().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""


@pytest.mark.slow
def test_a_call_that_only_one_run_makes_names_what_stands_in_its_place(tmp_path: Path) -> None:
    """Attention written out, with a mask that is off by one: nothing stands beside its last call to be run again."""
    golden = write(tmp_path, ATTENTION)
    found = find(tmp_path, f"{golden} b", golden)
    assert found["step"] == 0
    assert found["first"]["op"].startswith("Tensor.__matmul__.1.")
    assert "scaled_dot_product_attention" in found["first"]["sentence"], found["first"]["sentence"]
    assert found["stages"]["replay"] == "only the target run makes this call: there is no counterpart to run"
    kept = tmp_path / "out" / "tensors" / "golden"
    assert list(kept.rglob("Functional.scaled_dot_product_attention*")), "golden's call in its place keeps its tensors"


INFERENCE = """
import sys
import torch
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).eval()
with torch.no_grad():
    for step in range(4):
        x = torch.ones(2, 8) * step
        if "b" in sys.argv and step == 2:
            x = x + 1e-2
        net(x)
"""


@pytest.mark.slow
def test_without_an_optimizer_a_step_is_one_forward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    golden = write(tmp_path, INFERENCE)
    found = find(tmp_path, f"{golden} b", golden)
    assert found["step"] == 2
    assert "4 steps, each one forward of the model" in capsys.readouterr().out
    assert found["first"]["begins"] == "outside"


TRAINER = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

sizes = {"n_layer": 2, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 16}
config = GPT2Config(**sizes, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0)
model = GPT2LMHeadModel(config)
words = torch.randint(0, 50, (32, 8), generator=torch.Generator().manual_seed(1))
data = [{"input_ids": one, "labels": one} for one in words]

if "b" in sys.argv:
    count = 0
    original = torch.nn.functional.layer_norm

    def layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
        global count
        count += 1
        return original(x, shape, weight, bias, eps if count <= 10 else 1e-3)  # 5 a step: from step 2 on

    torch.nn.functional.layer_norm = layer_norm
arguments = TrainingArguments(
    output_dir=sys.argv[1], max_steps=4, per_device_train_batch_size=4, report_to=[], save_strategy="no",
    use_cpu=True, dataloader_num_workers=1, gradient_accumulation_steps=1,
)
Trainer(model, arguments, train_dataset=data).train()
"""


@pytest.mark.slow
def test_a_trainer_of_hugging_face(tmp_path: Path) -> None:
    golden = write(tmp_path, TRAINER) + f" {tmp_path}/trained"
    found = find(tmp_path, f"{golden} b", golden)
    assert found["target"]["model"] == "GPT2LMHeadModel"
    assert found["step"] == 2
    assert found["first"]["op"] == "Functional.layer_norm.0.forward"
    assert found["target"]["seeds"]["torch"] == "program"


LIGHTNING = """
import sys
import lightning
import torch

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))

    def training_step(self, batch, number):
        hidden = self.net(batch)
        return (hidden * 1.001 if "b" in sys.argv and number >= 3 else hidden).square().mean()

    def validation_step(self, batch, number):
        self.net(batch)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

lightning.seed_everything(0)
data = torch.utils.data.DataLoader(torch.randn(24, 8), batch_size=4, shuffle=True)
quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(Model(), data, data)
"""


@pytest.mark.slow
def test_a_trainer_of_lightning(tmp_path: Path) -> None:
    golden = write(tmp_path, LIGHTNING)
    found = find(tmp_path, f"{golden} b", golden)
    assert (found["target"]["model"], found["target"]["steps"], found["step"]) == ("Model", 6, 3)
    assert found["first"]["op"] == "Tensor.__mul__.0.forward"


DISTRIBUTED = """
import atexit
import os
import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
data = torch.Generator().manual_seed(dist.get_rank())
for step in range(4):
    hidden = model(torch.randn(4, 8, generator=data))
    if "b" in sys.argv and dist.get_rank() == 1 and step == 2:
        hidden = hidden * 1.001
    loss = hidden.square().mean()
    if "fail" in sys.argv and dist.get_rank() == 1:
        raise RuntimeError("rank 1 has lost its data")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
atexit._run_exitfuncs()
os._exit(0)  # gloo keeps its threads, and those can abort a Python that shuts down
"""


@pytest.mark.slow
def test_processes_of_torchrun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = write(tmp_path, DISTRIBUTED).split()[1]
    golden = f"{sys.executable} -m torch.distributed.run --standalone --nproc_per_node 2 {script}"
    found = find(tmp_path, f"{golden} b", golden)
    assert (found["step"], found["rank"], found["target"]["processes"]) == (2, "rank1", 2)
    assert found["first"]["op"].startswith(("Tensor.__mul__", "Tensor.mul"))
    capsys.readouterr()
    assert main(["find", f"{golden} fail", golden, "-o", str(tmp_path / "failed")]) == 2
    assert "RuntimeError: rank 1 has lost its data" in capsys.readouterr().err


@pytest.mark.slow
def test_a_recording_in_place_of_a_program(tmp_path: Path) -> None:
    golden = write(tmp_path, SMALL)
    find(tmp_path, f"{golden} shuffled", golden, "--from-step", "100")
    step = tmp_path / "out/step"
    assert found_in(tmp_path / "out")["step"] == 102
    # Both stages' folders are recordings like any other.
    assert not twinprobe.compare(step / "target", step / "golden")
    again = twinprobe.find(f"{golden} shuffled", str(step / "golden"), output_path=tmp_path / "again", from_step=100)
    assert not again
    assert found_in(tmp_path / "again")["step"] == 102
    assert found_in(tmp_path / "again")["first"]["begins"] == "outside"


@pytest.mark.slow
def test_a_search_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    golden = write(tmp_path, KERNEL)
    words = ["find", f"{golden} b", golden, "-o", str(tmp_path / "out")]
    command = [sys.executable, "-c", "import sys; from twinprobe._cli import main; sys.exit(main())"]
    with subprocess.Popen([*command, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / "out/step/target.facts/torch").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=600)
    assert (process.returncode, "interrupted" in error) == (130, True)
    left = found_in(tmp_path / "out")
    assert (left["step"], left["interrupted"], list(left["stages"])) == (4, True, ["watch"])
    assert "from step 4 on" in (tmp_path / "out/find.html").read_text(encoding="utf-8")
    watched = {path: path.stat().st_mtime_ns for path in (tmp_path / "out/watch").glob("*.log")}
    assert main([*words, "--resume", "--quiet"]) == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out/watch").glob("*.log")} == watched
    found = found_in(tmp_path / "out")
    assert (found["interrupted"], found["first"]["op"]) == (False, "Functional.silu.1.forward")
