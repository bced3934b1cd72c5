"""Making dumps of inference runs: per layer the eight operators of a decoder, each with an input and an output."""

from __future__ import annotations

import io
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import numpy as np

ATB, TORCH = "atb", "torch"
# By the folders of a layer's operators: those of an engine, and the modules that do the same.
OPERATORS = {
    "0_RmsNormOperation": "input_layernorm",
    "1_Attention/0_LinearOperation": "self_attn.qkv_proj",
    "1_Attention/1_SelfAttentionOperation": "self_attn.core",
    "1_Attention/2_LinearOperation": "self_attn.o_proj",
    "2_RmsNormOperation": "post_attention_layernorm",
    "3_Mlp/0_LinearOperation": "mlp.up_proj",
    "3_Mlp/1_ActivationOperation": "mlp.act_fn",
    "3_Mlp/2_LinearOperation": "mlp.down_proj",
}
TYPES = {
    "input_layernorm": "RMSNorm", "post_attention_layernorm": "RMSNorm", "core": "CoreAttention", "act_fn": "SiLU",
    "self_attn": "Attention", "mlp": "MLP",
}  # fmt: skip


@dataclass(frozen=True)
class Extent:
    """How much is made. Every operator has its first input and its output."""

    layers: int
    tokens: int
    devices: int
    rows: int
    hidden: int
    kind: str = ATB
    dtype: str = "float16"
    linked: bool = False
    """Whether later tokens are hard links to the files of the first one: as many files, little memory."""


def make_dump(root: Path, extent: Extent, seed: int) -> int:
    """Write one dump; returns its bytes. Tensors repeat: what is measured is reading and comparing them."""
    content = _atb_content(extent, seed) if extent.kind == ATB else _torch_content(extent, seed)
    folders = (_atb_folders if extent.kind == ATB else _torch_folders)(root, extent)
    if extent.linked:
        _make_token(f"{folders[0]}/0", content, extent)
    tokens = [f"{folder}/{token}" for folder in folders for token in range(extent.tokens)]
    wanted = tokens[1:] if extent.linked else tokens
    with ProcessPoolExecutor() as pool:
        first = tokens[0] if extent.linked else ""
        list(pool.map(_make_token, wanted, repeat(content), repeat(extent), repeat(first), chunksize=4))
    return len(tokens) * len(_names(extent)) * len(content)


def _make_token(folder: str, content: bytes, extent: Extent, first: str = "") -> None:
    """The files of one token; hard links to those of the first one, if that is named."""
    for name in _names(extent):
        file = f"{folder}/{name}"
        os.makedirs(file.rpartition("/")[0], exist_ok=True)  # noqa: PTH103  by the hundred thousand
        if first:
            os.link(f"{first}/{name}", file)
            continue
        with open(file, "wb", buffering=0) as stream:  # noqa: PTH123
            stream.write(content)


def _names(extent: Extent) -> list[str]:
    """The files of a token."""
    if extent.kind == ATB:
        tops = [f"{layer}_Layer/{operator}" for layer in range(extent.layers) for operator in OPERATORS]
        return [f"{top}/{name}" for top in tops for name in ("before/intensor0.bin", "after/outtensor0.bin")]
    layers = [f"root.model.layers.{layer}" for layer in range(extent.layers)]
    tops = [f"{layer}.{module}" for layer in layers for module in OPERATORS.values()]
    return [f"{top}/{name}" for top in tops for name in ("input_0.pth", "output.pth")]


def _values(extent: Extent, seed: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    shape = extent.rows, extent.hidden
    return (rng.standard_normal(shape) + seed * 1e-4 * rng.standard_normal(shape)).astype(extent.dtype)


def _atb_content(extent: Extent, seed: int) -> bytes:
    payload = _values(extent, seed).tobytes()
    code = 1 if extent.dtype == "float16" else 0
    head = f"format=2\ndtype={code}\ndims={extent.rows},{extent.hidden}\n$Object.data=0,{len(payload)}\n$End=1\n"
    return head.encode() + payload


def _torch_content(extent: Extent, seed: int) -> bytes:
    import torch

    saved = io.BytesIO()
    torch.save(torch.from_numpy(_values(extent, seed)), saved)
    return saved.getvalue()


def _atb_folders(root: Path, extent: Extent) -> list[Path]:
    dump = root / "ait_dump"
    for device in range(extent.devices):
        _write_topology(dump / "model" / str(100 + device), extent.layers)
    return [dump / "tensors" / f"{device}_{100 + device}" for device in range(extent.devices)]


def _torch_folders(root: Path, extent: Extent) -> list[Path]:
    folders = [root / f"{100 + device}_npu{device}" for device in range(extent.devices)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "model_tree.json").write_text(json.dumps(_tree(extent.layers)))
    return folders


def _tree(layers: int) -> dict[str, object]:
    def node(name: str, kind: str, children: list[dict[str, object]]) -> dict[str, object]:
        return {"name": name, "type": kind, "children": children}

    def layer(name: str) -> dict[str, object]:
        tops: dict[str, list[dict[str, object]]] = {}
        for module in OPERATORS.values():
            first, _, inner = module.partition(".")
            below = tops.setdefault(first, [])
            if inner:
                below.append(node(f"{name}.{module}", TYPES.get(inner, "Linear"), []))
        return node(name, "Layer", [node(f"{name}.{top}", TYPES[top], below) for top, below in tops.items()])

    stack = [layer(f"root.model.layers.{at}") for at in range(layers)]
    model = node("root.model", "Model", [node("root.model.layers", "ModuleList", stack)])
    return node("root", "CausalLM", [model])


def _write_topology(folder: Path, layers: int) -> None:
    def node(kind: str, name: str, children: list[dict[str, object]]) -> dict[str, object]:
        return {"opName": name, "opType": kind, "param": {}, "inTensors": [], "outTensors": [], "nodes": children}

    def layer(at: int) -> dict[str, object]:
        tops: dict[str, list[dict[str, object]]] = {}
        for operator in OPERATORS:
            first, _, inner = operator.partition("/")
            below = tops.setdefault(first, [])
            if inner:
                below.append(node(inner.partition("_")[2], operator, []))
        return node("Layer", f"Layer_{at}", [node(top.partition("_")[2], top, below) for top, below in tops.items()])

    folder.mkdir(parents=True, exist_ok=True)
    document = {"modelName": "Made", "nodes": [layer(at) for at in range(layers)]}
    (folder / "Made.json").write_text(json.dumps(document))
