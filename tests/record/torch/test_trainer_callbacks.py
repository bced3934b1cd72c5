"""Hugging Face's and Lightning's trainers, recorded through one callback each: one folder per optimizer step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import twinprobe.torch


def names(path: Path, step: int) -> list[str]:
    (index,) = (path / f"step{step}").glob("*/dump.json")
    return list(json.loads(index.read_text(encoding="utf-8"))["data"])


def steps(path: Path) -> list[str]:
    return sorted(one.name for one in path.iterdir())


def nothing_attached(model: nn.Module) -> bool:
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    return not hooked and torch._C._len_torch_function_stack() == 0


def test_a_hugging_face_trainer_is_recorded(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")

    def train(*callbacks: Any) -> tuple[Any, list[torch.Tensor]]:
        torch.manual_seed(0)
        config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        model = transformers.GPT2LMHeadModel(config)
        tokens = torch.randint(0, 50, (8, 6), generator=torch.Generator().manual_seed(1))
        rows = [{"input_ids": row, "labels": row} for row in tokens]
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            max_steps=2,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[*callbacks])
        trainer.train()
        return model, [one.detach().clone() for one in model.parameters()]

    _, plain = train()
    callback = twinprobe.torch.HuggingFaceCallback(dump_path=tmp_path / "dump", level="mix")
    model, recorded = train(callback)
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    first = names(tmp_path / "dump", 0)
    assert first == names(tmp_path / "dump", 1)
    block = "Module.transformer.h.0.mlp.c_fc.Conv1D."
    assert {f"{block}forward.1", f"{block}backward.1", f"{block}parameters_grad.1"} <= {*first}
    assert f"{block}forward.2" not in first
    assert nothing_attached(model)


class Learner:
    """What both Lightning tests train; the base class is only known when Lightning is there."""

    @staticmethod
    def make(lightning: Any, *, fail: bool = False) -> Any:
        class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))

            def training_step(self, batch: Any, at: int) -> Any:
                if fail and at == 3:
                    raise RuntimeError("on purpose")
                return self.net(batch).pow(2).mean()

            def configure_optimizers(self) -> Any:
                return torch.optim.SGD(self.parameters(), lr=0.1)

        torch.manual_seed(0)
        return Module()


def fit(lightning: Any, path: Path, *, fail: bool = False) -> Any:
    model = Learner.make(lightning, fail=fail)
    trainer = lightning.Trainer(
        max_epochs=1,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[twinprobe.torch.LightningCallback(dump_path=path, level="mix")],
    )
    rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(2))
    try:
        trainer.fit(model, torch.utils.data.DataLoader(rows, batch_size=2))
    except RuntimeError as error:
        assert "on purpose" in str(error)
    return model


@pytest.mark.filterwarnings("ignore")
def test_a_lightning_trainer_is_recorded(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    model = fit(lightning, tmp_path / "dump")
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    first = names(tmp_path / "dump", 0)
    assert first == names(tmp_path / "dump", 1)
    assert {"Module.net.0.Linear.forward.1", "Module.net.2.Linear.backward.1"} <= {*first}
    assert nothing_attached(model)


@pytest.mark.filterwarnings("ignore")
def test_an_exception_in_lightning_leaves_a_dump_and_no_hooks(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning.pytorch")
    model = fit(lightning, tmp_path / "dump", fail=True)
    assert "Module.net.2.Linear.backward.0" in names(tmp_path / "dump", 1)
    assert nothing_attached(model)


def test_callbacks_are_imported_only_when_asked_for() -> None:
    code = "import sys, twinprobe.torch; print(*sorted({'transformers', 'lightning'} & {*sys.modules}), end='')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    with pytest.raises(AttributeError, match="no attribute 'KerasCallback'"):
        twinprobe.torch.KerasCallback  # noqa: B018
