"""The examples of PaDiff's own LayerMap document, run as printed through the drop-in package."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import paddle
import pytest
import torch

COMPAT = Path(__file__).resolve().parents[3] / "compat" / "src"
NAMES = ["attention, mapped", "a layer that does nothing, ignored"]


@pytest.fixture(scope="module")
def examples(seeds: Path) -> list[str]:
    """The two complete programs of the document; the other blocks are fragments."""
    text = next(seeds.glob("003*.txt")).read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if "auto_diff(" in block]
    assert len(found) == 2
    return found


@pytest.fixture
def padiff(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(COMPAT))
    import padiff

    assert Path(str(padiff.__file__)).is_relative_to(COMPAT)
    return padiff


def run(program: str, padiff: Any) -> list[Any]:
    """Run a program that takes its imports for granted, as the document does; what auto_diff gave."""
    results = []

    def auto_diff(*given: Any, **options: Any) -> Any:
        results.append(padiff.auto_diff(*given, **options))
        return results[-1]

    paddle.seed(1)
    torch.manual_seed(1)
    exec(program, {"paddle": paddle, "torch": torch, "LayerMap": padiff.LayerMap, "auto_diff": auto_diff})
    return results


@pytest.mark.parametrize("number", [0, 1], ids=NAMES)
def test_the_printed_example_runs_and_its_models_agree(
    examples: list[str], number: int, padiff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (result,) = run(examples[number], padiff)
    assert result is True
    layer, module = (("SimpleLayer", "SimpleModule"), ("SimpleLayer4", "SimpleModule4"))[number]
    assert f"weights: copied from base {module} (PyTorch) to raw {layer} (Paddle)" in capsys.readouterr().out


@pytest.mark.parametrize("number", [0, 1], ids=NAMES)
def test_the_printed_example_can_fail(
    examples: list[str], number: int, padiff: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other weights in place of copied ones the same program finds the layer that differs."""
    (result,) = run(examples[number].replace("auto_weights=True", "auto_weights=False"), padiff)
    assert result is False
    assert f"raw   Module.{('attn', 'linear')[number]}." in capsys.readouterr().out
