"""What the documents print works as printed: calls, options with their defaults, signatures, environment variables."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch_pairs import Chain, numbers

import twinprobe
from twinprobe._live.auto_diff import auto_diff, read_options
from warm_python import run_warm

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "auto_diff.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
X = numbers(3, 8)


class WithAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attn(x, x, x)[0]


def test_every_printed_example_runs_in_its_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = Chain(2)
    other_model = Chain(2)
    names: dict[str, Any] = {
        "base": Chain(2), "raw": Chain(2), "inputs": X, "layer": WithAttention(), "module": WithAttention(),
        "paddle_x": X, "torch_x": X, "model": model, "x": X, "loss_fn": torch.mean, "other_model": other_model,
    }  # fmt: skip
    assert len(BLOCKS) == 4
    for block in BLOCKS:
        exec(compile(block, "docs/auto_diff.md", "exec"), names)  # the documents are our own
    assert names["result"], "the first example compares equal models"
    assert torch.equal(names["layer"].attn.in_proj_weight, names["module"].attn.in_proj_weight)
    assert any((tmp_path / "recorded_run").rglob("dump.json"))
    assert torch.equal(other_model.layers[0].weight, model.layers[0].weight), "weights came from the recording"


def _printed_options() -> list[tuple[str, str]]:
    rows = re.findall(
        r"^\| (`[^|]+?) \| ([^|]+?) \|", PAGE.partition("## Options")[2].partition("\n## ")[0], re.MULTILINE
    )
    return [(name, default) for names, default in rows for name in re.findall(r"`(\w+)`", names)]


@pytest.mark.filterwarnings("ignore:auto_weights=True:FutureWarning")
def test_every_printed_option_is_taken_with_its_printed_default() -> None:
    printed = _printed_options()
    assert len(printed) > 15
    parameters = inspect.signature(auto_diff).parameters
    defaults = read_options({})
    for name, default in printed:
        given: Any = None
        if default.startswith("`") or default.isdecimal():
            given = ast.literal_eval(default.strip("`"))
        if name in parameters and given is None:
            assert parameters[name].default is None, name
            continue
        options = {} if given is None else {name: given}
        assert auto_diff(Chain(2), Chain(2), X, **{"quiet": True, **options}), name
        if name not in parameters and name != "auto_weights" and given is not None:
            assert read_options({name: given}) == defaults, f"{name} is not {given!r} by default"


def test_every_option_there_is_is_printed() -> None:
    positional = {"base", "raw", "inputs", "older", "options"}
    keywords = set(inspect.signature(auto_diff).parameters) - positional
    assert keywords <= {name for name, _ in _printed_options()}


def test_every_name_that_the_page_speaks_of_exists() -> None:
    for name in ("check_report", "check_weights", "check_grads", "check_params", "check_dataloader", "LayerMap"):
        assert name in PAGE
        assert callable(getattr(twinprobe, name))
    for call in re.findall(r"`lm\.(\w+)", PAGE):
        assert hasattr(twinprobe.LayerMap, call), call
    result = auto_diff(Chain(2), Chain(2, at=0, change=torch.sin), X, quiet=True)
    carried = PAGE.partition("It carries ")[2].partition("shows itself")[0]
    for attribute in re.findall(r"`(\w+)(?:\(\w*\))?`", carried):
        assert hasattr(result, attribute), attribute


def _documents() -> str:
    pages = [ROOT / "README.md", ROOT / "compat/README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages)


def test_environment_variables_of_the_documents_are_read_by_the_code() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    read = "\n".join(path.read_text(encoding="utf-8") for path in sources if path != Path(__file__))
    named = set(re.findall(r"\b(?:TWINPROBE|PADIFF)_[A-Z_]+\b", _documents()))
    assert "TWINPROBE_CONFIG" in named
    for variable in named:
        assert re.search(rf"[\"']{variable}[\"']", read), f"{variable} is documented, and nothing reads it"


def test_the_older_tools_switches_break_nothing_and_change_nothing() -> None:
    """They raised a NameError at import, or did the opposite of what was written. Here they mean nothing."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'compat/src')!r})\n"
        "import torch, padiff\n"
        "model = lambda: torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
        "torch.manual_seed(0)\n"
        "print(padiff.auto_diff(model(), model(), ({'input': torch.ones(2, 4)}, {'input': torch.ones(2, 4)})))\n"
    )
    switches = {
        "PADDLE_THIRDPARTY_API": "json.loads", "PADIFF_API_CHECK": "OFF", "PADIFF_SIKP_WRAP_LAYER": "OFF",
        "PADIFF_TENSOR_METHOD": "OFF", "PADIFF_PATH_LOG": "ON",
    }  # fmt: skip
    shown = []
    for more in ({}, switches):
        done = run_warm(program, environment=os.environ | more)
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.splitlines()[-1])
    assert shown[0] == shown[1]
    assert shown[0].startswith("True")


def test_dumping_calls_take_what_their_signatures_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """try_dump(2, path) was printed where the function took one argument: here a wrong call is an error at once."""
    monkeypatch.syspath_prepend(str(ROOT / "compat/src"))
    padiff = importlib.import_module("padiff")
    padiff.set_dump_root_path(tmp_path / "root")
    model = padiff.create_model(Chain(2))
    model.backward(model(X).mean())
    with pytest.raises(TypeError, match="positional"):
        model.try_dump(2, tmp_path / "copy")
    model.try_dump(tmp_path / "copy")
    assert (tmp_path / "copy/dump.json").is_file()
    assert not list(Path(model.dump_path).iterdir())
