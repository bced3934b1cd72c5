"""A perturbed run: half a unit in the last place on every result, and nothing else is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import Residual
from torch import nn

from dump_reading import Dump
from twinprobe import compare
from twinprobe._runs.run import open_run
from twinprobe.errors import BadInput
from twinprobe.torch import PrecisionDebugger, record

_INTEGERS = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.float64: torch.int64,
}


def units(changed: torch.Tensor, clean: torch.Tensor) -> torch.Tensor:
    """By how many representable values each element was moved."""
    kind = _INTEGERS[clean.dtype]
    return changed.detach().view(kind).long() - clean.detach().view(kind).long()


@pytest.mark.parametrize("dtype", list(_INTEGERS), ids=str)
def test_a_quarter_of_the_values_moves_to_a_neighbour(dtype: torch.dtype, tmp_path: Path) -> None:
    x = torch.rand(200, 200).to(dtype) + 1
    clean = x * 3
    with record(None, tmp_path, level="L1", perturb=1):
        changed = x * 3
    moved = units(changed, clean)
    assert moved.abs().max() == 1
    assert abs((moved == 1).float().mean() - 0.125) < 0.01
    assert abs((moved == -1).float().mean() - 0.125) < 0.01


def test_zeros_integers_and_what_is_not_finite_stay(tmp_path: Path) -> None:
    largest = torch.finfo(torch.float32).max
    special = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), largest, -largest]).repeat(100)
    with record(None, tmp_path, level="L1", perturb=1):
        same = special * 1
        nan = torch.full((50,), float("nan")) * 1
        numbers = torch.arange(50) * 2
        found, at = torch.rand(50, 50).max(dim=1)
    assert same.view(torch.int32).equal(special.view(torch.int32))
    assert bool(nan.isnan().all())
    assert numbers.equal(torch.arange(50) * 2)
    assert at.dtype == torch.int64
    assert int(at.max()) < 50
    assert bool(found.isfinite().all())


def test_the_dump_shows_what_was_changed_and_the_next_call_gets_it(tmp_path: Path) -> None:
    x = torch.rand(64, 64) + 1
    with record(None, tmp_path, level="L1", task="tensor", perturb=1):
        y = x * 3
        z = y + 1
    folder = Dump(tmp_path).folder / "dump_tensor_data"
    assert torch.load(folder / "Tensor.__mul__.0.forward.output.0.pt").equal(y)
    assert torch.load(folder / "Tensor.__add__.0.forward.input.0.pt").equal(y)
    assert torch.load(folder / "Tensor.__add__.0.forward.output.0.pt").equal(z)
    assert units(y, x * 3).any()
    assert units(z, y + 1).any()


def test_views_inputs_and_parameters_are_none_of_a_calls_results(tmp_path: Path) -> None:
    class Handing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(40, 40))
            self.register_buffer("table", torch.rand(40, 40))

        def forward(self, x: torch.Tensor) -> Any:
            return x, x.T, self.weight, self.table[:10], x[0].expand(5, 40)

    model = nn.Sequential(Handing())
    x = torch.rand(40, 40)
    before = [one.clone() for one in (x, model[0].weight, model[0].table)]
    for level in ("L0", "mix"):
        with record(model, tmp_path / level, level=level, risk_level="ALL", perturb=1):
            model(x)
            x.reshape(-1).view(80, 20).chunk(2)
    for one, other in zip(before, (x, model[0].weight, model[0].table), strict=True):
        assert one.equal(other)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_gradients_in_place_calls_and_views_go_on_as_before(level: str, tmp_path: Path) -> None:
    def trained(**options: Any) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(Residual())
        x = torch.randn(16, 8, requires_grad=True)
        with record(model, tmp_path / str(len(options)), level=level, **options):
            loss = model(x).sigmoid().exp().softmax(-1).square().sum()
            loss.backward()
        assert Dump(tmp_path / str(len(options))).log() == ""
        assert x.grad is not None
        return [loss.detach(), x.grad, *(one.grad for one in model.parameters() if one.grad is not None)]

    clean, changed = trained(), trained(perturb=1)
    assert len(clean) == len(changed)
    assert any(not one.equal(other) for one, other in zip(clean, changed, strict=True))
    for one, other in zip(clean, changed, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_at_l0_a_tensor_handed_up_through_modules_is_changed_once(tmp_path: Path) -> None:
    inner = nn.Linear(30, 30)
    model = nn.Sequential(nn.Sequential(nn.Sequential(inner)))
    x = torch.rand(50, 30)
    clean = model(x)
    with record(model, tmp_path, level="L0", perturb=1):
        changed = model(x)
    moved = units(changed, clean)
    assert moved.abs().max() == 1
    assert 0.2 < (moved != 0).float().mean() < 0.3


def test_the_seed_decides_and_the_programs_own_random_numbers_stay(tmp_path: Path) -> None:
    def drawn(name: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(5)
        with record(None, tmp_path / name, level="L1", **options):
            return torch.rand(30, 30), torch.ones(30, 30) * 3

    (noise, first), (again, second), (other, third) = (
        drawn("a", perturb=1), drawn("b", perturb=1), drawn("c", perturb=1, perturb_seed=7)
    )  # fmt: skip
    plain, _ = drawn("d")
    assert noise.equal(plain)
    assert again.equal(plain)
    assert other.equal(plain)
    assert first.equal(second)
    assert not first.equal(third)


def test_config_json_takes_it_and_inference_tensors_too(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_path": str(tmp_path / "dump"), "level": "L1", "perturb": 1, "perturb_seed": 3}))
    debugger = PrecisionDebugger(str(config))
    with torch.inference_mode():
        x = torch.rand(60, 60) + 1
        debugger.start()
        changed = x * 3
        debugger.stop()
        assert units(changed, x * 3).any()
    debugger.close()
    assert open_run(Dump(tmp_path / "dump").folder).settings["perturb"] == 3
    for wrong in ({"perturb": 2}, {"perturb": 1, "perturb_seed": -1}, {"perturb": 1, "level": "debug"}):
        with pytest.raises(BadInput, match="perturb"):
            PrecisionDebugger(dump_path=str(tmp_path / "x"), **wrong)


def test_such_a_run_is_neither_target_nor_golden(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    for name, options in (("plain", {}), ("perturbed", {"perturb": 1})):
        with record(model, tmp_path / name, level="L0", **options):
            model(torch.ones(2, 4))
    plain, perturbed = (Dump(tmp_path / name).folder for name in ("plain", "perturbed"))
    assert "perturb" not in open_run(plain).settings
    for target, golden in ((plain, perturbed), (perturbed, plain)):
        with pytest.raises(BadInput, match="recorded with perturb") as refused:
            compare(target, golden)
        assert "--noise" in str(refused.value)


def test_the_header_tells_what_changes_rounding(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with record(model, tmp_path, level="L0"), torch.autocast("cpu", torch.bfloat16):
            model(torch.ones(2, 4))
    finally:
        torch.set_float32_matmul_precision(before)
    settings = open_run(Dump(tmp_path).folder).settings
    assert settings["matmul_precision"] == "high"
    assert settings["autocast"] == "bfloat16"
    assert settings["threads"] == torch.get_num_threads()
    assert settings["deterministic"] is False
    assert {"tf32_matmul", "tf32_cudnn", "cudnn_deterministic", "mkldnn"} <= settings.keys()
