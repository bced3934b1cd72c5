"""Two checkpoints: which tensors differ, and which are only renamed, transposed, fused, exchanged or cast."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import twinprobe
from twinprobe._cli.main import main

State = dict[str, torch.Tensor]


def model(layers: int = 2, width: int = 16) -> State:
    torch.manual_seed(5)
    state = {"model.embed_tokens.weight": torch.randn(20, width), "lm_head.weight": torch.randn(20, width)}
    for at in range(layers):
        layer = f"model.layers.{at}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            state[f"{layer}.self_attn.{name}.weight"] = torch.randn(width, width)
        for name in ("gate_proj", "up_proj"):
            state[f"{layer}.mlp.{name}.weight"] = torch.randn(24, width)
        state[f"{layer}.mlp.down_proj.weight"] = torch.randn(width, 24)
        state[f"{layer}.input_layernorm.weight"] = torch.rand(width) + 0.5
    return state


def notes(target: State, golden: State, folder: Path) -> tuple[twinprobe._api.Comparison, str]:  # type: ignore[name-defined]
    save_file({name: one.contiguous() for name, one in golden.items()}, folder / "golden.safetensors")
    torch.save(target, folder / "target.pt")
    result = twinprobe.compare(folder / "target.pt", folder / "golden.safetensors")
    return result, result.summary


def test_the_same_weights_agree(tmp_path: Path) -> None:
    result, shown = notes(model(), model(), tmp_path)
    assert result
    assert "note:" not in shown


def test_wrappers_around_names_do_not_count(tmp_path: Path) -> None:
    wrapped = {"state_dict": {f"module._orig_mod.{name}": one for name, one in model().items()}}
    result, _ = notes(wrapped, model(), tmp_path)  # type: ignore[arg-type]
    assert result


def test_one_tensor_differs(tmp_path: Path) -> None:
    target = model()
    target["model.layers.1.mlp.down_proj.weight"] *= 1.01
    result, _ = notes(target, model(), tmp_path)
    assert result.first is not None
    assert result.first.op == "model.layers.1.mlp.down_proj.weight"
    assert result.table["verdict"].to_list().count("pass") == len(target) - 1


def test_transposed_weights_are_named_also_square_ones(tmp_path: Path) -> None:
    target = model()
    for name in ("model.layers.0.mlp.up_proj.weight", "model.layers.1.self_attn.o_proj.weight"):
        target[name] = target[name].t().contiguous()
    result, shown = notes(target, model(), tmp_path)
    assert result
    assert "transposed: model.layers.0.mlp.up_proj.weight; model.layers.1.self_attn.o_proj.weight" in shown


def test_exchanged_weights_are_named(tmp_path: Path) -> None:
    target = model()
    one, two = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.mlp.up_proj.weight"
    target[one], target[two] = target[two], target[one]
    result, shown = notes(target, model(), tmp_path)
    assert not result
    assert f"exchanged: {one} holds {two} and the other way round" in shown


@pytest.mark.parametrize("as_target", [True, False])
def test_fused_projections_are_compared_with_their_parts(tmp_path: Path, as_target: bool) -> None:
    fused, split = model(), model()
    for at in range(2):
        layer = f"model.layers.{at}"
        parts = [fused.pop(f"{layer}.self_attn.{name}.weight") for name in ("q_proj", "k_proj", "v_proj")]
        fused[f"{layer}.self_attn.qkv_proj.weight"] = torch.cat(parts)
        parts = [fused.pop(f"{layer}.mlp.{name}.weight") for name in ("gate_proj", "up_proj")]
        fused[f"{layer}.mlp.gate_up_proj.weight"] = torch.cat(parts)
    result, shown = notes(*((fused, split) if as_target else (split, fused)), tmp_path)
    assert result
    assert "fused or split: " in shown
    broken = {name: one.clone() for name, one in fused.items()}
    broken["model.layers.1.self_attn.qkv_proj.weight"][20] += 1
    result, _ = notes(*((broken, split) if as_target else (split, broken)), tmp_path)
    assert not result
    assert "qkv_proj" in result.first.row + result.first.golden_row


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("as_target", [True, False])
def test_shards_of_ranks_are_put_together(tmp_path: Path, ranks: int, as_target: bool) -> None:
    whole, parts = model(), [{} for _ in range(ranks)]
    for name, one in whole.items():
        axis = 1 if "down_proj" in name or "o_proj" in name else 0  # as Megatron cuts them
        for rank, part in enumerate(parts):
            is_copy = one.dim() == 1 or "embed" in name or "lm_head" in name
            part[name] = one if is_copy else one.chunk(ranks, axis)[rank].contiguous()

    def save(folder: str) -> Path:
        for rank, part in enumerate(parts):
            (tmp_path / folder / f"mp_rank_{rank:02}").mkdir(parents=True)
            torch.save({"model": part, "iteration": 7}, tmp_path / folder / f"mp_rank_{rank:02}" / "model_optim_rng.pt")
        return tmp_path / folder

    save_file(whole, tmp_path / "whole.safetensors")
    sides = [save("good"), tmp_path / "whole.safetensors"]
    assert twinprobe.compare(*(sides if as_target else sides[::-1]))
    parts[1]["model.layers.0.mlp.up_proj.weight"] = parts[0]["model.layers.0.mlp.up_proj.weight"]
    sides[0] = save("bad")
    first = twinprobe.compare(*(sides if as_target else sides[::-1])).first
    assert first is not None
    assert "layers.0.mlp.up_proj" in first.row


def test_other_names_are_paired_by_what_they_hold(tmp_path: Path) -> None:
    renamed = {f"decoder.block.{at}.x": one for at, one in enumerate(model().values())}
    result, shown = notes(renamed, model(), tmp_path)
    assert result
    assert "renamed, by what they hold: decoder.block.0.x is model.embed_tokens.weight" in shown


def test_a_cast_is_named(tmp_path: Path) -> None:
    target = {name: one.bfloat16() for name, one in model().items()}
    result, shown = notes(target, model(), tmp_path)
    assert "cast from float32 to bfloat16: " in shown
    assert result.table["relative_error"].max() < 2**-8
    assert result.table["golden"].null_count() == 0


def test_the_command_and_check_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = model()
    target["lm_head.weight"][3, 4] += 1
    save_file(target, tmp_path / "new.safetensors")
    save_file(model(), tmp_path / "old.safetensors")
    words = [
        "compare",
        str(tmp_path / "new.safetensors"),
        str(tmp_path / "old.safetensors"),
        "-o",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--json", "--fail-on", "warning"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown["first"]["op"] == "lm_head.weight"
    assert len(list((tmp_path / "out").glob("*.xlsx"))) == 1
    assert twinprobe.check_weights(model(), model(), quiet=True)
    assert not twinprobe.check_weights(model(), target, quiet=True)
    found = twinprobe.check_weights(tmp_path / "old.safetensors", tmp_path / "new.safetensors", quiet=True)
    assert found.first.op == "lm_head.weight"


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_tensors_too_large_for_statistics_are_judged_by_their_elements(tmp_path: Path, suffix: str) -> None:
    """Nothing but elements is known of the tensors of a large file."""
    whole = torch.arange(17_000_000, dtype=torch.float32)
    for name, state in (("a", {"w": whole}), ("b", {"w": whole}), ("c", {"w": whole.flip(0)})):
        if suffix == "npz":
            np.savez(tmp_path / name, **{key: one.numpy() for key, one in state.items()})
        else:
            save_file(state, tmp_path / f"{name}.safetensors")
    paths = [tmp_path / f"{name}.{suffix}" for name in "abc"]
    assert twinprobe.compare(paths[0], paths[1])
    assert not twinprobe.compare(paths[0], paths[2])


def test_float8_is_judged_by_its_elements() -> None:
    values = torch.linspace(-1, 1, 24).to(torch.float8_e4m3fn)
    other = values.float().neg().to(values.dtype)
    assert twinprobe.compare({"w": values}, {"w": values})
    assert not twinprobe.compare({"w": values}, {"w": other})


def test_the_sentence_about_a_weight_speaks_of_the_weight(tmp_path: Path) -> None:
    weights = {"head.weight": torch.linspace(-1, 1, 64).reshape(8, 8), "bias": torch.ones(8)}
    save_file(weights, tmp_path / "old.safetensors")
    save_file(weights | {"head.weight": weights["head.weight"] * 1.5}, tmp_path / "new.safetensors")
    first = twinprobe.compare(tmp_path / "new.safetensors", tmp_path / "old.safetensors").first
    assert first is not None
    assert "the parameter differs: norm" in first.sentence
    assert "output" not in first.sentence
