"""Record ERNIE in two frameworks with equal weights, each run by its own interpreter, PyTorch first:

    PYTHONPATH=src:tests python tests/data/held_out/remake.py torch STATE.npz
    PYTHONPATH=src:tests python tests/data/held_out/remake.py paddle STATE.npz

The first writes the weights to STATE.npz, the second takes them from there. Both say how far their outputs agree.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
TOKENS = np.random.default_rng(7).integers(0, 64, (2, 8))


def torch_run(state: Path, folder: Path) -> None:
    """Build the published model, keep its weights and outputs, record one step."""
    import torch
    import transformers

    from twinprobe.torch import record

    torch.manual_seed(0)
    config = transformers.ErnieConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, vocab_size=64, intermediate_size=64,
        max_position_embeddings=32, use_task_id=True,
    )  # fmt: skip
    model = transformers.ErnieModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    with record(model, folder, level="mix"):
        outputs = model(torch.from_numpy(TOKENS))
        outputs[0].square().mean().backward()
    arrays = {name: value.detach().numpy() for name, value in model.state_dict().items()}
    np.savez(state, **arrays, hidden=outputs[0].detach().numpy())


def paddle_run(state: Path, folder: Path) -> None:
    """Take the weights, record one step, and check the output."""
    import paddle

    from models.ernie_paddle import ErniePaddle
    from twinprobe.paddle import record

    arrays = dict(np.load(state))
    model = ErniePaddle()
    model.copy_from_numpy(arrays)
    model.eval()
    with record(model, folder, level="mix"):
        hidden, _ = model(paddle.to_tensor(TOKENS))
        hidden.square().mean().backward()
    print("largest difference:", float(np.abs(hidden.numpy() - arrays["hidden"]).max()))


def keep(folder: Path, target: Path) -> None:
    """Keep what alignment needs, without paths of the machine it was made on."""
    (found,) = (folder / "step0").iterdir()
    target.mkdir(parents=True, exist_ok=True)
    shutil.copy(found / "construct.json", target)
    document: dict[str, Any] = json.loads((found / "dump.json").read_text(encoding="utf-8"))
    document["dump_data_dir"] = None
    (target / "dump.json").write_text(json.dumps(document, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        (torch_run if sys.argv[1] == "torch" else paddle_run)(Path(sys.argv[2]), Path(made, "dump"))
        keep(Path(made, "dump"), HERE / sys.argv[1])
