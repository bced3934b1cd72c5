"""Records the pairs of a CPU and a GPU: `python bench/judge/record_device.py FOLDER` on a machine with CUDA.

The same training step on both devices with the same weights, statistics and sketches only. They are recorded once and
kept in bench/judge/devices, so that every machine can judge them.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import twinprobe.torch
from judge import models

PAIRS: dict[str, dict[str, Any]] = {
    "decoder_float32": {"family": "decoder", "dtype": "float32", "options": {"width": 512, "layers": 3, "heads": 8}},
    "decoder_tf32": {
        "family": "decoder", "dtype": "float32", "options": {"width": 512, "layers": 3, "heads": 8}, "tf32": True,
    },
    "decoder_bf16": {"family": "decoder", "dtype": "bf16", "options": {"width": 512, "layers": 3, "heads": 8}},
    "unet_float32": {"family": "unet", "dtype": "float32", "options": {"width": 32}},
    "unet_bf16": {"family": "unet", "dtype": "bf16", "options": {"width": 32}},
}  # fmt: skip


DEVICES = ("cpu", "cuda")


def record(folder: Path, device: str, family: str, dtype: str, options: dict[str, Any], *, tf32: bool = False) -> None:
    """One training step on one device."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    program = models.build(family, dtype, **options)
    program.model.to(device)
    program.batch = {key: value.to(device) if torch.is_tensor(value) else value for key, value in program.batch.items()}
    scratch = folder.with_name(folder.name + "_whole")
    recording = twinprobe.torch.record(program.model, scratch, level="mix", task="statistics")
    with recording, torch.device(device):  # what the model makes on its way is made there
        loss = program.step()
    print(folder.name, float(loss))
    made = next(scratch.rglob("dump.json")).parent
    folder.mkdir(parents=True)
    for name in ("dump.json", "construct.json", "dump.sketch"):
        shutil.copy(made / name, folder / name)
    shutil.rmtree(scratch)


def main() -> None:
    """All pairs."""
    root = Path(sys.argv[1])
    for name, pair in PAIRS.items():
        for device in DEVICES:
            record(root / name / device, device, **pair)


if __name__ == "__main__":
    main()
