"""The four steps of the inference document, run as printed through the drop-in's ``ait``.

The engine is a stand-in: it runs the same model, reads the environment as the dumping library does, and writes what
every operator took and gave in half precision.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from support import slow

SCRIPTS = Path(sys.executable).parent
HELPERS = Path(__file__).resolve().parents[1] / "llm"

MODEL = """
import torch
from torch import nn


class RMSNorm(nn.Module):
    def forward(self, x):
        return x / x.pow(2).mean(-1, keepdim=True).add(1e-6).sqrt()


class Attn(nn.Module):
    def __init__(self, width):
        super().__init__()
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))

    def forward(self, x, seen):
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        context = (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v
        o = self.o_proj(context)
        seen.update(q=q, k=k, v=v, context=context, o=o)
        return o


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 24, bias=False), nn.Linear(width, 24, bias=False)
        self.down_proj, self.act_fn = nn.Linear(24, width, bias=False), nn.SiLU()

    def forward(self, x, seen):
        gate, up = self.gate_proj(x), self.up_proj(x)
        act = self.act_fn(gate)
        down = self.down_proj(act * up)
        seen.update(gate=gate, up=up, act=act, product=act * up, down=down)
        return down


class DecoderLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.self_attn, self.mlp = Attn(width), MLP(width)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def forward(self, x, seen):
        norm1 = self.input_layernorm(x)
        middle = x + self.self_attn(norm1, seen)
        norm2 = self.post_attention_layernorm(middle)
        out = middle + self.mlp(norm2, seen)
        seen.update({"in": x, "norm1": norm1, "middle": middle, "norm2": norm2, "out": out})
        return out


class CausalLM(nn.Module):
    def __init__(self, layers=3, width=16):
        super().__init__()
        self.embed_tokens, self.norm = nn.Embedding(37, width), RMSNorm()
        self.layers = nn.ModuleList(DecoderLayer(width) for _ in range(layers))
        self.lm_head = nn.Linear(width, 37, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        self.seen = {"ids": ids, "embed": x}
        for at, layer in enumerate(self.layers):
            seen = {}
            x = layer(x, seen)
            self.seen |= {f"{at}.{name}": value for name, value in seen.items()}
        norm = self.norm(x)
        self.seen |= {"norm": norm, "logits": self.lm_head(norm)}
        return self.seen["logits"]


torch.manual_seed(0)
model = CausalLM().eval()
IDS = torch.arange(5)[None]
"""

ENGINE = f"""
import os, runpy, sys
from pathlib import Path

import torch

sys.path.insert(0, {str(HELPERS)!r})
from llm_dumps import atb_layer, atb_model, write_atb_model

started = runpy.run_path(sys.argv[1])
model = started["model"]
if "FAULT" in os.environ:
    with torch.no_grad():
        model.layers[1].self_attn.o_proj.weight[3] *= -1
with torch.no_grad():
    model(started["IDS"])
values = {{name: value[0].numpy() for name, value in model.seen.items()}}
write_atb_model(Path(os.environ["ATB_OUTPUT_DIR"]) / "ait_dump", f"0_{{os.getpid()}}", {{0: values}},
                atb_model(len(model.layers), atb_layer()))
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with the model, a script that runs it on the stand-in, and what looks like CANN and ATB."""
    (tmp_path / "patches/models").mkdir(parents=True)
    (tmp_path / "patches/models/modeling_xxx.py").write_text(MODEL)
    (tmp_path / "engine.py").write_text(ENGINE)
    (tmp_path / "run.sh").write_text(f'exec {shlex.quote(sys.executable)} engine.py "$1"\n')
    probe = tmp_path / "cann/tools/ait_backend/dump"
    probe.mkdir(parents=True)
    for flavour in (0, 1):
        (probe / f"libatb_probe_abi{flavour}.so").write_bytes(b"")
    (tmp_path / "atb/lib").mkdir(parents=True)
    (tmp_path / "atb/lib/libatb.so").write_bytes(b"\x7fELF")
    return tmp_path


def run(command: list[str], folder: Path, **more: str) -> str:
    environment = {**os.environ, "ASCEND_TOOLKIT_HOME": str(folder / "cann"), "ATB_HOME_PATH": str(folder / "atb")}
    environment.pop("LD_PRELOAD", None)
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=1800, env=environment | more
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def ait(printed: str, folder: Path, **more: str) -> str:
    words = shlex.split(printed)
    return run([str(SCRIPTS / words[0]), *words[1:]], folder, **more)


@pytest.mark.parametrize("fault", [*slow(False), True])
def test_the_four_steps_work_as_printed(seeds: Path, place: Path, fault: bool) -> None:
    document = next(seeds.glob("001*.txt")).read_text()

    # Step 1: the printed lines, at the beginning of the model's file and after the model is there.
    (printed,) = re.findall(r"```python\n(.*?)```", document, flags=re.DOTALL)
    first, rest = printed.split("\n", 1)
    (place / "torch_run.py").write_text(f"{first}\n{MODEL}\n{rest}\nmodel(IDS)\n")
    run([sys.executable, "torch_run.py"], place)
    (golden,) = place.glob("torch_dump/*_cpu")
    assert (golden / "model_tree.json").is_file()
    assert (golden / "0").is_dir()

    # Step 2.
    (command,) = re.findall(r"^`(ait llm dump .*)`$", document, flags=re.MULTILINE)
    ait(command, place, **({"FAULT": "1"} if fault else {}))
    (mine,) = place.glob("ait_dump/tensors/*/0")
    pid = mine.parent.name.partition("_")[2]
    assert list(place.glob(f"ait_dump/model/{pid}/*.json"))

    # Step 3: the printed file.
    (mapping,) = re.findall(r"```\n(\{\n.*?\})\n```", document, flags=re.DOTALL)
    assert json.loads(mapping)["LinearOperation"] == "Linear"
    (place / "xx/xxx/xx").mkdir(parents=True)
    (place / "xx/xxx/xx/op_mapping_file.json").write_text(mapping)

    # Step 4: with the numbers of these processes in the places of the printed names.
    (command,) = re.findall(r"^(ait llm compare -gp .*)$", document, flags=re.MULTILINE)
    command = command.replace("{PID}_npu{device_id}/{TID}", f"{golden.name}/0")
    command = command.replace("{device_id}_{PID}/{TID}", f"{mine.parent.name}/0")
    said = ait(command, place)
    (report,) = place.glob("ait_cmp_report_*.csv")
    with report.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 40
    wrong = {row["my_data_path"] for row in rows if row["Result"] != "pass"}
    if fault:
        assert "2_CommonLayer/1_Attention/2_LinearOperation/after/outtensor0.bin" in said
        assert not any("/1_CommonLayer/" in path for path in wrong)
    else:
        assert not wrong
        assert "No divergence" in said
