"""Which updates make one step where a model has several optimizers: in a watch, and in full recordings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import twinprobe
from support import slow
from twinprobe._find.child import Program
from twinprobe._runs.watch import Watched, read_watch


class Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5))
        self.critic = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(self.generator(x))


Seen = Callable[[], None]


def adversaries(net: Gan, seen: Seen, rounds: int, critics: int = 1) -> None:
    """Two optimizers in turn, each with a forward pass of its own before it; ``seen`` is called for each round."""
    of_critic = torch.optim.SGD(net.critic.parameters(), lr=0.1)
    of_generator = torch.optim.Adam(net.generator.parameters(), lr=0.01)
    for number in range(rounds):
        for _ in range(critics):
            net.zero_grad()
            net(torch.ones(2, 4) * (1 + number)).mean().backward()
            seen()
            of_critic.step()
        net.zero_grad()
        (-net(torch.ones(2, 4) * (1 + number)).mean()).backward()
        of_generator.step()


def one_for_each_layer(net: Gan, seen: Seen, rounds: int) -> None:
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in net.modules() if isinstance(one, nn.Linear)]
    for number in range(rounds):
        net(torch.ones(2, 4) * (1 + number)).mean().backward()
        seen()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def inside_backward(net: Gan, seen: Seen, rounds: int) -> None:
    """An optimizer for each parameter, which steps as soon as its gradient is there and frees it."""
    optimizers = {one: torch.optim.SGD([one], lr=0.1) for one in net.parameters()}

    def step(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    handles = [one.register_post_accumulate_grad_hook(step) for one in net.parameters()]
    for number in range(rounds):
        net(torch.ones(2, 4) * (1 + number)).mean().backward()
        seen()
    for handle in handles:
        handle.remove()


def one_is_never_used(net: Gan, seen: Seen, rounds: int) -> None:
    unused = torch.optim.SGD(net.critic.parameters(), lr=0.3)
    used = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(rounds):
        net.zero_grad()
        net(torch.ones(2, 4) * (1 + number)).mean().backward()
        seen()
        used.step()
    del unused


def two_critics(net: Gan, seen: Seen, rounds: int) -> None:
    adversaries(net, seen, rounds, critics=2)


def watch(folder: Path, train: Any, rounds: int = 4) -> tuple[Watched, list[float]]:
    torch.manual_seed(0)
    net = Gan()
    norms: list[float] = []  # of the first layer's output, once for each step that a reader would count
    with twinprobe.record(net, folder, level="watch", list=["generator.0"]):
        outputs: list[torch.Tensor] = []
        net.generator[0].register_forward_hook(lambda *given: outputs.append(given[-1].detach()))

        def seen() -> None:
            norms.append(float(torch.linalg.vector_norm(outputs[-1])))

        train(net, seen, rounds)
    return read_watch(folder / "rank0/watch.arrows"), norms


@pytest.mark.parametrize("train", [one_for_each_layer, inside_backward, one_is_never_used])
def test_a_step_has_one_forward_and_all_gradients(tmp_path: Path, train: Any) -> None:
    found, norms = watch(tmp_path, train)
    assert found.steps.tolist() == [0, 1, 2, 3]
    of_output = found.values[:, found.names.index("output.generator.0.norm")]
    assert of_output.tolist() == pytest.approx(norms)
    gradients = [at for at, name in enumerate(found.names) if name.startswith("gradient.") and name.endswith(".norm")]
    assert len(gradients) == 8
    assert found.known[:, gradients].all()


def test_adversaries_make_one_step_together(tmp_path: Path) -> None:
    found, _ = watch(tmp_path, adversaries)
    assert found.steps.tolist() == [0, 1, 2, 3]
    rates = [found.values[:, found.names.index(f"group.{at}.lr")].tolist() for at in (0, 1)]
    assert rates == [pytest.approx([0.1] * 4), pytest.approx([0.01] * 4)]


def test_an_optimizer_that_steps_again_begins_a_new_step(tmp_path: Path) -> None:
    """Two updates of the critic for each one of the generator, which is in the step of the critic's next one."""
    found, norms = watch(tmp_path, two_critics)
    assert found.steps.tolist() == list(range(9))  # the last one is the generator's last
    of_output = found.values[:, found.names.index("output.generator.0.norm")]
    assert of_output[0] == pytest.approx(norms[0])  # the second forward pass is not in the first step


@pytest.mark.parametrize(
    "train", [adversaries, inside_backward, *slow(two_critics, one_for_each_layer, one_is_never_used)]
)
def test_a_recorded_step_is_the_watched_step_of_its_number(tmp_path: Path, train: Any) -> None:
    """As find does it: the watch tells how many updates each step has, and the recording counts them."""
    found: dict[str, Any] = {}
    for level, step in (("watch", None), ("mix", 2)):
        folder = tmp_path / level
        (folder / "facts").mkdir(parents=True)
        record = {"dump_path": str(folder / "dump"), "level": level, **({"step": [step]} if step else {})}
        plan = {"record": record, "facts": str(folder / "facts"), "seed": None, "from_step": 0, "last_step": None,
                "updates": found.get("updates", ()), "swap": None}  # fmt: skip
        program = Program(plan)
        program.attach(torch)
        torch.manual_seed(0)
        train(Gan(), lambda: None, 4)
        program.close()
        (path,) = (folder / "facts").glob("*.json")
        found = {**json.loads(path.read_text(encoding="utf-8")), "updates": found.get("updates")} if found else (
            json.loads(path.read_text(encoding="utf-8")))  # fmt: skip
    watched = read_watch(tmp_path / "watch/dump/rank0/watch.arrows")
    assert found["steps"] == len(watched.steps)
    (index,) = (tmp_path / "mix/dump/step2").glob("*/optimizer.json")
    recorded = json.loads(index.read_text(encoding="utf-8"))["data"]
    names = {name.removeprefix("Optimizer.").rsplit(".", 3)[0] for name in recorded} - {"total_norm"}
    row = watched.steps.tolist().index(2)
    of_watch = {name.removeprefix("gradient.").removesuffix(".norm") for at, name in enumerate(watched.names)
                if name.startswith("gradient.") and name.endswith(".norm") and watched.known[row, at]}  # fmt: skip
    assert names == of_watch
