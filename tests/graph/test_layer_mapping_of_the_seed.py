"""The users' worked example of a layer mapping, in its two stages, through the command as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from support import forward, tensor, write_dump
from twinprobe._cli import main

LEFT = {
    "module": "Float16Module",
    "module.module": "GPTModel",
    "module.module.language_model": "TransformerLanguageModel",
    "module.module.language_model.embedding": "Embedding",
    "module.module.language_model.rotary_pos_emb": "RotaryEmbedding",
    "module.module.language_model.encoder": "ParallelTransformer",
    "module.module.language_model.encoder.layers.{n}": "ParallelTransformerLayer",
    "module.module.language_model.encoder.layers.{n}.mlp": "ParallelMLP",
    "module.module.language_model.encoder.layers.{n}.mlp.dense_h_to_4h": "ColumnParallelLinear",
    "module.module.language_model.encoder.layers.{n}.mlp.dense_4h_to_h": "RowParallelLinear",
}
RIGHT = {
    "model": "FloatModule",
    "model.module": "GPT2Model",
    "model.module.embedding": "LanguageModelEmbedding",
    "model.module.rotary_pos_emb": "RotaryEmbedding",
    "model.module.decoder": "TransformerBlock",
    "model.module.decoder.layers.{n}": "TransformerLayer",
    "model.module.decoder.layers.{n}.mlp": "MLP",
    "model.module.decoder.layers.{n}.mlp.linear_fc1": "TELayerNormColumnParallelLinear",
    "model.module.decoder.layers.{n}.mlp.linear_fc2": "TERowParallelLinear",
}
FIRST_STAGE = {
    "module": "model",
    "module.module": "model.module",
    "module.module.language_model.embedding": "model.module.embedding",
    "module.module.language_model.rotary_pos_emb": "model.module.rotary_pos_emb",
    "module.module.language_model.encoder": "model.module.decoder",
    "module.module.language_model.encoder.layers.{n}": "model.module.decoder.layers.{n}",
    "module.module.language_model.encoder.layers.{n}.mlp": "model.module.decoder.layers.{n}.mlp",
}
DENSE = "module.module.language_model.encoder.layers.{n}.mlp.dense_"
SECOND_STAGE = FIRST_STAGE | {
    f"{DENSE}h_to_4h": "model.module.decoder.layers.{n}.mlp.linear_fc1",
    f"{DENSE}4h_to_h": "model.module.decoder.layers.{n}.mlp.linear_fc2",
}


def modules(classes: dict[str, str]) -> dict[str, str]:
    """Path to class for two layers, children of a layer before those of the next."""
    one_each = {path: cls for path, cls in classes.items() if "{n}" not in path}
    return one_each | {path.format(n=n): cls for n in (0, 1) for path, cls in classes.items() if "{n}" in path}


def record(folder: Path, classes: dict[str, str]) -> None:
    """Write the dump of one forward and one backward pass through these modules."""
    found = modules(classes)
    parents: dict[str, str | None] = {}
    data: dict[str, Any] = {}
    for direction, paths in (("forward", list(found)), ("backward", list(reversed(found)))):
        for path in paths:
            above = path.rpartition(".")[0]
            while above and above not in found:
                above = above.rpartition(".")[0]
            name = f"Module.{path}.{found[path]}.{direction}.0"
            parents[name] = f"Module.{above}.{found[above]}.{direction}.0" if above else None
            data[name] = forward([tensor()], [tensor(norm=3.0)])
    write_dump(folder, data, level="L0", parents=parents, stacks={})


def record_one_layer(folder: Path, classes: dict[str, str]) -> None:
    """One forward pass as a recorder writes it: inner modules first, each with values of its own."""
    found = {path.format(n=0): cls for path, cls in classes.items()}
    parents: dict[str, str | None] = {}
    data: dict[str, Any] = {}

    def call(path: str) -> str:
        name = f"Module.{path}.{found[path]}.forward.0"
        for inner in found:
            above = inner.rpartition(".")[0]
            while above and above not in found:
                above = above.rpartition(".")[0]
            if above == path:
                parents[call(inner)] = name
        norm = 2.0 + len(data)
        data[name] = forward([tensor(norm=norm, high=norm / 2)], [tensor(norm=norm + 1, high=norm / 2 + 1)])
        return name

    parents[call(next(iter(found)))] = None
    write_dump(folder, data, level="L0", parents=parents, stacks={})


def yaml_of(seeds: Path, stage: int) -> str:
    """The mapping as the document prints it: its pieces put together, or the whole."""
    text = next(seeds.glob("000*")).read_text(encoding="utf-8")
    blocks = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    return blocks[0] + "\n" + blocks[1] if stage == 1 else blocks[2]


@pytest.mark.parametrize(("stage", "expected"), [(1, FIRST_STAGE), (2, SECOND_STAGE)])
@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_what_the_mapping_names_matches_and_nothing_else(
    stage: int, expected: dict[str, str], framework: str, seeds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record(tmp_path / "npu_dump", LEFT)
    record(tmp_path / "bench_dump", RIGHT)
    Path("mapping.yaml").write_text(yaml_of(seeds, stage), encoding="utf-8")
    Path("compare.json").write_text(
        '{\n"npu_path": "./npu_dump",\n"bench_path": "./bench_dump", # right\n"is_print_compare_log": false\n}'
    )
    words = f"-f {framework} graph -i ./compare.json -o ./output -lm ./mapping.yaml --align names"
    assert main(words.split()) == 0
    (file,) = Path("output").glob("compare_*.vis")
    document = json.loads(file.read_text(encoding="utf-8"))
    assert matched(document, "NPU") == _both_layers(expected)
    assert matched(document, "Bench") == {golden: target for target, golden in _both_layers(expected).items()}
    grey = document["NPU"]["node"]["Module.module.module.language_model.TransformerLanguageModel.forward.0"]
    assert grey["matched_node_link"] == []
    assert "precision_index" not in grey["data"]


def test_without_a_file_no_level_is_taken_for_another(tmp_path: Path) -> None:
    record_one_layer(tmp_path / "npu_dump", LEFT)
    record_one_layer(tmp_path / "bench_dump", RIGHT)
    paths = {"npu_path": str(tmp_path / "npu_dump"), "bench_path": str(tmp_path / "bench_dump")}
    (tmp_path / "compare.json").write_text(json.dumps(paths))
    assert main(["graph", "-i", str(tmp_path / "compare.json"), "-o", str(tmp_path / "output")]) == 0
    (file,) = (tmp_path / "output").glob("compare_*.vis")
    found = linked(json.loads(file.read_text(encoding="utf-8")), "NPU")["forward"]
    assert found["module"] == "model"
    assert found["module.module"] == "model.module"
    assert "module.module.language_model" not in found
    assert found.items() <= _both_layers(SECOND_STAGE).items()


def matched(document: dict[str, Any], side: str) -> dict[str, str]:
    """Module paths of matched nodes, the same for forward and backward."""
    found = linked(document, side)
    assert found["forward"] == found["backward"]
    return found["forward"]


def linked(document: dict[str, Any], side: str) -> dict[str, dict[str, str]]:
    """Module paths of matched nodes by direction."""
    found: dict[str, dict[str, str]] = {"forward": {}, "backward": {}}
    for name, node in document[side]["node"].items():
        if name != "DefaultModel" and node["matched_node_link"]:
            *_, partner = node["matched_node_link"]
            direction = name.rsplit(".", 2)[1]
            assert partner.rsplit(".", 2)[1] == direction
            found[direction][_path(name)] = _path(partner)
    return found


def _path(name: str) -> str:
    return name.rsplit(".", 3)[0].removeprefix("Module.")


def _both_layers(expected: dict[str, str]) -> dict[str, str]:
    return {target.format(n=n): golden.format(n=n) for n in (0, 1) for target, golden in expected.items()}
