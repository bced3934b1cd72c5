"""Records pairs on a CPU and a GPU: `python bench/judge/record_device.py FOLDER [PAIR...]` on a machine with CUDA.

The same training with the same weights on two devices, or on one with other kernels; statistics and sketches only. They
are recorded once and kept in bench/judge/devices, so that every machine can judge them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import twinprobe.torch
from judge import models

_DECODER = {"family": "decoder", "options": {"width": 512, "layers": 3, "heads": 8}}
_UNET = {"family": "unet", "options": {"width": 32}}
_DEVICES = {"cpu": {"device": "cpu"}, "cuda": {}}
_TRAINED = {"family": "llama", "steps": 2, "level": "L0"}
# Each pair has two sides; the golden one comes first in the alphabet.
PAIRS: dict[str, tuple[dict[str, Any], dict[str, dict[str, Any]]]] = {
    "decoder_float32": (_DECODER, _DEVICES),
    "decoder_tf32": ({**_DECODER, "tf32": True}, _DEVICES),
    "decoder_bf16": ({**_DECODER, "dtype": "bf16"}, _DEVICES),
    "unet_float32": (_UNET, _DEVICES),
    "unet_bf16": ({**_UNET, "dtype": "bf16"}, _DEVICES),
    # The recurrence of cuDNN and PyTorch's own.
    "lstm_kernels": ({"family": "lstm"}, {"cudnn": {}, "native": {"cudnn": False}}),
    # Noise of products stays in the parameters, and the next step begins with it.
    "trained_tf32": (_TRAINED, {"float32": {}, "tf32": {"tf32": True}}),
}


class Tagger(nn.Module):
    """Labels for words, by a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 64)
        self.recurrent = nn.LSTM(64, 96, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(192, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.head(self.recurrent(self.embedding(words))[0])
        return states


def _tagger() -> models.Program:
    def loss(program: models.Program) -> torch.Tensor:
        scores = program.model(program.batch["words"])
        return nn.functional.cross_entropy(scores.flatten(0, 1), program.batch["labels"].flatten())

    generator = torch.Generator().manual_seed(3)
    batch = {
        "words": torch.randint(0, 200, (4, 60), generator=generator),
        "labels": torch.randint(0, 20, (4, 60), generator=generator),
    }
    return models.Program(Tagger(), batch, loss)


def _llama() -> models.Program:
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=500,
    )  # fmt: skip
    words = torch.randint(0, 500, (2, 96), generator=torch.Generator().manual_seed(3))
    model = transformers.LlamaForCausalLM(config)
    return models.Program(model, {"words": words}, lambda program: program.model(**_labelled(program)).loss)


def _labelled(program: models.Program) -> dict[str, torch.Tensor]:
    return dict.fromkeys(("input_ids", "labels"), program.batch["words"])


models.FAMILIES |= {"lstm": _tagger, "llama": _llama}


def record(
    folder: Path, family: str, options: dict[str, Any] | None = None, *, dtype: str = "float32", device: str = "cuda",
    tf32: bool = False, cudnn: bool = True, steps: int = 1, level: str = "mix",
) -> None:  # fmt: skip
    """A training on one device; several steps are AdamW's."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.enabled = cudnn
    program = models.build(family, dtype, **(options or {}))
    program.model.to(device)
    program.batch = {key: value.to(device) if torch.is_tensor(value) else value for key, value in program.batch.items()}
    if steps > 1:
        optimizer = torch.optim.AdamW(program.model.parameters(), lr=1e-3)
        program.optimizer = lambda _: optimizer
    scratch = folder.with_name(folder.name + "_whole")
    recorded = twinprobe.torch.record(program.model, scratch, level=level, task="statistics")
    with recorded as recording, torch.device(device):  # what the model makes on its way is made there
        for _ in range(steps):
            loss = program.step()
            program.model.zero_grad()
            recording.step()
    print(folder, float(loss))
    for made in sorted(path.parent for path in scratch.rglob("dump.json")):
        kept = folder / (made.parent.name if steps > 1 else "")
        kept = kept / "rank0" if steps > 1 else kept
        kept.mkdir(parents=True)
        for name in ("dump.json", "construct.json", "dump.sketch", *(["optimizer.json"] if steps > 1 else [])):
            shutil.copy(made / name, kept / name)
    shutil.rmtree(scratch)


def main() -> None:
    """All pairs, or those that are named."""
    root = Path(sys.argv[1])
    for name, (common, sides) in PAIRS.items():
        if name in sys.argv[2:] or not sys.argv[2:]:
            for side, own in sides.items():
                record(root / name / side, **common, **own)


if __name__ == "__main__":
    main()
