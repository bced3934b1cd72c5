"""register_hook: the layout of the document, nothing lost, nothing changed, and gone when it is removed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from llm_models import IDS, Model, files, new_model  # noqa: E402

from twinprobe._compare.llm.job import LlmRequest, compare_dumps  # noqa: E402
from twinprobe._record.llm.folders import device_folder  # noqa: E402
from twinprobe._runs.llm.dump import open_llm_dump  # noqa: E402
from twinprobe._runs.tensors.tensor_files import open_tensor  # noqa: E402
from twinprobe.llm import DumpConfig, register_hook  # noqa: E402

nn = torch.nn


@pytest.fixture
def model() -> Model:
    return new_model()


def test_the_documents_first_step_works_as_printed(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dump_config = DumpConfig(dump_path="./torch_dump")
    handle = register_hook(model, dump_config)
    model(IDS)
    handle.flush()
    device = tmp_path / "torch_dump" / f"{os.getpid()}_cpu"
    assert device.is_dir()
    assert (device / "model_tree.json").is_file()
    found = files(device / "0")
    assert "root.layers.0.norm/output.pth" in found
    assert "root.layers.0.norm/input_0.pth" in found
    assert {"root/output_0.pth", "root/output_1.pth", "root/input_0.pth"} <= found
    handle.remove()


def test_keywords_dicts_and_repeated_calls_are_kept(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(IDS)
    found = files(handle.path / "0")
    assert "root.layers.0/input_mask.pth" in found
    assert {"root.layers.0/output_hidden.pth", "root.layers.0/output_cache_0.pth"} <= found
    assert "root.layers.0/output_cache_1_0.pth" in found
    assert {"root.layers.0.mix/output.pth", "root.layers.0.mix-1/output.pth"} <= found
    first, second = (
        open_tensor(handle.path / "0" / name / "output.pth") for name in ("root.layers.0.mix", "root.layers.0.mix-1")
    )
    assert first.data.tolist() != second.data.tolist()


def test_model_outputs_of_transformers_are_kept(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=32, max_position_embeddings=32,
    )  # fmt: skip
    torch.manual_seed(0)
    llama = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad(), register_hook(llama, DumpConfig(tmp_path)) as handle:
        plain = llama(input_ids=IDS).logits
    found = files(handle.path / "0")
    assert "root/output_logits.pth" in found
    assert "root/input_input_ids.pth" in found
    kept = open_tensor(handle.path / "0" / "root" / "output_logits.pth")
    assert kept.data.tolist() == plain.reshape(-1).tolist()
    result = compare_dumps(LlmRequest(handle.path, handle.path))
    assert set(result.table["Reason"]) == {"identical"}


def test_a_view_costs_its_own_elements_only(tmp_path: Path) -> None:
    class Slice(nn.Module):
        def forward(self, x: Any) -> Any:
            return x[:1, :1]

    with register_hook(Slice(), DumpConfig(tmp_path, tensor_part=1)) as handle:
        handle._recorder.model(torch.zeros(1000, 1000))
    assert (handle.path / "0" / "root" / "output.pth").stat().st_size < 4096


def test_the_tree_has_the_order_of_calls_and_marks_what_never_ran(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path)) as handle:
        model(IDS)
    tree = json.loads((handle.path / "model_tree.json").read_text())
    assert (tree["name"], tree["type"]) == ("root", "Model")
    layer = tree["children"][1]["children"][0]
    assert [child["name"].rpartition(".")[2] for child in layer["children"]] == ["norm", "mix", "unused"]
    assert [child.get("called") for child in layer["children"]] == [None, None, False]
    dump = open_llm_dump(handle.path)
    assert [token.label for token in dump.tokens(dump.layout.devices[0])] == ["0"]


def test_tokens_are_calls_of_the_model(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path, token_range=[0, 2])) as handle:
        for _ in range(4):
            model(IDS)
    assert sorted(path.name for path in handle.path.iterdir() if path.is_dir()) == ["0", "2"]


def test_the_msit_layout_by_choice(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path, layout="msit")) as handle:
        model(IDS)
    relative = handle.path.relative_to(tmp_path).parts
    assert relative[0].startswith("msit_dump_20")
    assert relative[1:] == ("torch_tensors", f"cpu_{os.getpid()}")


@pytest.mark.parametrize(("device", "name"), [("npu3", "{}_npu3"), ("cuda1", "{}_cuda1"), ("cpu", "{}_cpu")])
def test_the_folder_is_named_after_process_and_device(tmp_path: Path, device: str, name: str) -> None:
    assert device_folder(tmp_path, "ait", device)[1] == tmp_path / name.format(os.getpid())
    second = device_folder(tmp_path, "ait", device)[1]
    assert second.name == f"{name.format(os.getpid())}-1"
    top, newer = device_folder(tmp_path, "msit", device)
    assert newer == top / "torch_tensors" / f"{device}_{os.getpid()}"
    assert top.name.startswith("msit_dump_")


def test_observing_changes_nothing_and_removal_leaves_nothing(model: Model, tmp_path: Path) -> None:
    before = model(IDS)[0]
    matmul = torch.matmul
    handle = register_hook(model, DumpConfig(tmp_path, mode=["module", "api"]))
    during = model(IDS)[0]
    handle.remove()
    assert torch.equal(before, during)
    assert torch.equal(before, model(IDS)[0])
    assert torch.matmul is matmul
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_several_models_and_configurations_in_one_process(model: Model, tmp_path: Path) -> None:
    other = Model(width=4, layers=1)
    one = register_hook(model, DumpConfig(tmp_path / "a", module_list=[nn.LayerNorm]))
    two = register_hook(other, DumpConfig(tmp_path / "b", layer_name="root.head"))
    three = register_hook(other, DumpConfig(tmp_path / "b", tensor_part=0))
    model(IDS)
    other(IDS)
    for handle in (one, two, three):
        handle.remove()
    assert {name.partition("/")[0] for name in files(one.path / "0")} == {"root.layers.0.norm", "root.layers.1.norm"}
    assert {name.partition("/")[0] for name in files(two.path / "0")} == {"root.head"}
    assert two.path != three.path
    assert not any("output" in name for name in files(three.path / "0"))


def test_a_forward_that_fails_leaves_the_recorder_ready_for_the_next(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path, token_range=[0, 1])) as handle:
        with pytest.raises(IndexError):
            model(torch.tensor([[99]]))
        model(IDS)
    assert "root.head/output.pth" in files(handle.path / "1")


def test_two_runs_of_a_changed_model_part_where_the_change_is(model: Model, tmp_path: Path) -> None:
    with register_hook(model, DumpConfig(tmp_path / "golden")) as golden:
        model(IDS)
    with torch.no_grad():
        model.layers[1].norm.weight += 0.5
    with register_hook(model, DumpConfig(tmp_path / "mine")) as mine:
        model(IDS)
    first = compare_dumps(LlmRequest(mine.path, golden.path)).summary.first
    assert first is not None
    assert first.op == "token 0: root.layers.1.norm (LayerNorm)"


def test_importing_the_facade_or_comparing_imports_no_framework() -> None:
    import subprocess
    import sys

    code = (
        "import sys, twinprobe.llm, twinprobe._compare.llm.job\n"
        "import twinprobe._compare.llm.modes, twinprobe._cli.llm\n"
        "print(*[name for name in ('torch', 'polars', 'numba', 'mindspore') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
