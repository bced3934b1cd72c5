"""The same script as the reference dumps: the same names, parents and forward values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from twinprobe.torch import PrecisionDebugger

transformers = pytest.importorskip("transformers")

# What ours records and the other tool does not: the unary minus has no hook there.
EXTRA = "Tensor.__neg__."


def record_llama(path: Path, **options: Any) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        attn_implementation="eager",
        use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tokens = torch.randint(0, 128, (2, 8), generator=torch.Generator().manual_seed(7))
    debugger = PrecisionDebugger(dump_path=path, **options)
    debugger.start(model=model)
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    debugger.stop()
    debugger.close()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if value is None or (isinstance(value, dict) and isinstance(value.get("type"), str)):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for at, item in enumerate(value):
            yield from leaves(item, f"{path}.{at}")


def same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-9) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)


def theirs(reference: Path, name: str, file: str = "dump") -> Any:
    (path,) = (reference / "msprobe" / "dumps" / name / "step0").glob(f"*/{file}.json")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_names_are_those_of_the_reference(tmp_path: Path, reference: Path, dump_of: Any, level: str) -> None:
    record_llama(tmp_path, level=level)
    ours, expected = dump_of(tmp_path).data, theirs(reference, f"{level}_stat_a")["data"]
    assert [name for name in expected if name not in ours] == []
    assert [name for name in ours if name not in expected and not name.startswith(EXTRA)] == []


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_forward_parents_are_those_of_the_reference(tmp_path: Path, reference: Path, dump_of: Any, level: str) -> None:
    record_llama(tmp_path, level=level)
    ours, expected = dump_of(tmp_path).side("construct"), theirs(reference, f"{level}_stat_a", "construct")
    forward = {name: parent for name, parent in expected.items() if ".forward" in name or name == "optimizer"}
    assert {name: ours.get(name, "missing") for name in forward} == forward


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_backward_parents_are_those_of_the_reference_or_nearer(
    tmp_path: Path, reference: Path, dump_of: Any, level: str
) -> None:
    """The other tool closes a module called with keywords only at once; ours keeps it open, as in forward."""
    record_llama(tmp_path, level=level)
    ours, expected = dump_of(tmp_path).side("construct"), theirs(reference, f"{level}_stat_a", "construct")

    def chain(name: str | None) -> Iterator[str | None]:
        while name is not None:
            name = ours.get(name)
            yield name

    for name, parent in expected.items():
        if ".backward" in name and name in ours:
            assert parent in list(chain(name)), name


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_values_are_those_of_the_reference(tmp_path: Path, reference: Path, dump_of: Any, level: str) -> None:
    """Forward of everything, backward of modules. (An API's backward there shows its last inner node, ours its own.)"""
    record_llama(tmp_path, level=level)
    ours, expected = dump_of(tmp_path).data, theirs(reference, f"{level}_stat_a")["data"]
    compared = 0
    for name, entry in expected.items():
        if name.endswith(".backward"):
            continue
        own = dict(leaves(ours[name]))
        for path, leaf in leaves(entry):
            if leaf is None:
                assert own.get(path) is None
                continue
            assert {key: own[path].get(key) for key in leaf if not same(leaf[key], own[path].get(key))} == {}, name
            compared += 1
    assert compared > 150


@pytest.mark.parametrize(("folder", "mode"), [("mix_md5_a", "md5"), ("mix_xor_a", "xor")])
def test_checksums_of_forward_inputs_are_those_of_the_reference(
    tmp_path: Path, reference: Path, dump_of: Any, folder: str, mode: str
) -> None:
    """Weights, token numbers and positions are exact on every machine; computed activations need not be."""
    record_llama(tmp_path, level="mix", summary_mode=mode)
    ours, expected = dump_of(tmp_path).data, theirs(reference, folder)["data"]
    name = "Functional.embedding.0.forward"
    own, other = ours[name]["input_args"], expected[name]["input_args"]
    assert [leaf["md5"] for leaf in own[:2]] == [leaf["md5"] for leaf in other[:2]]
    equal = sum(
        leaf.get("md5") == own.get("md5")
        for entry in expected
        if entry in ours and entry.startswith("Module")
        for (_, leaf), (_, own) in zip(leaves(expected[entry]), leaves(ours[entry]), strict=False)
        if leaf is not None and own is not None
    )
    assert equal > 40


def test_tensor_files_have_the_names_of_the_reference(tmp_path: Path, reference: Path, dump_of: Any) -> None:
    record_llama(tmp_path, level="L0", task="tensor")
    dump = dump_of(tmp_path)
    (folder,) = (reference / "msprobe" / "dumps" / "L0_tensor_a" / "step0").glob("*/dump_tensor_data")
    expected = {path.name for path in folder.iterdir()}
    ours = {path.name for path in (dump.folder / "dump_tensor_data").iterdir()}
    assert expected <= ours
    # Gradients of inputs given by keyword: the other tool has none.
    assert all(name.split(".backward.")[1].startswith("0.output.") for name in ours - expected)
    weight = torch.load(dump.folder / "dump_tensor_data" / "Module.lm_head.Linear.forward.0.parameters.weight.pt")
    assert weight.shape == (128, 32)
