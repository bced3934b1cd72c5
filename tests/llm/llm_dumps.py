"""Small inference dumps for tests, written file by file as recorders and engines write them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

CODES = {
    "float32": 0, "float16": 1, "int8": 2, "int32": 3, "uint8": 4, "int16": 6, "uint16": 7, "uint32": 8, "int64": 9,
    "uint64": 10, "float64": 11, "bool": 12, "complex64": 16, "complex128": 17,
}  # fmt: skip

Values = dict[str, np.ndarray]


def atb_bytes(payload: bytes, dims: tuple[int, ...], code: int, **more: str) -> bytes:
    """An ATB tensor file, header lines in the order of the writer."""
    lines = ["$Version=1.0", "$Object.Count=1", f"$Object.Length={len(payload)}", "format=2", f"dtype={code}"]
    lines += [f"dims={','.join(map(str, dims))}", f"$Object.data=0,{len(payload)}"]
    lines += [f"{key}={value}" for key, value in more.items()]
    return ("\n".join([*lines, "$End=1"]) + "\n").encode() + payload


def write_atb(path: Path, array: np.ndarray, code: int | None = None) -> None:
    """Write one tensor; ``code`` overrides the one of the array's dtype."""
    path.parent.mkdir(parents=True, exist_ok=True)
    code = CODES[array.dtype.name] if code is None else code
    path.write_bytes(atb_bytes(array.tobytes(), array.shape, code))


def write_pth(path: Path, array: np.ndarray) -> None:
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(np.ascontiguousarray(array)), path)


@dataclass
class Sizes:
    """A small decoder: k and v may be narrower than q."""

    layers: int = 3
    rows: int = 4
    hidden: int = 16
    kv: int = 16
    wide: int = 24
    vocab: int = 37


SMALL = Sizes(layers=2, hidden=8, kv=8, wide=12, vocab=10)


def decoder_values(sizes: Sizes, seed: int = 0) -> Values:
    """Numbers for every place of one forward pass; what one operator gives is what the next one takes."""
    rng = np.random.default_rng(seed)

    def some(width: int) -> np.ndarray:
        return rng.standard_normal((sizes.rows, width)).astype(np.float32)

    values = {"ids": np.arange(sizes.rows, dtype=np.int64), "embed": some(sizes.hidden)}
    x = values["embed"]
    for at in range(sizes.layers):
        layer = {
            "in": x, "norm1": some(sizes.hidden), "q": some(sizes.hidden), "k": some(sizes.kv), "v": some(sizes.kv),
            "context": some(sizes.hidden), "o": some(sizes.hidden), "norm2": some(sizes.hidden),
            "gate": some(sizes.wide), "up": some(sizes.wide), "act": some(sizes.wide), "down": some(sizes.hidden),
        }  # fmt: skip
        layer["middle"] = layer["in"] + layer["o"]
        layer["product"] = layer["act"] * layer["up"]
        layer["out"] = x = layer["middle"] + layer["down"]
        values |= {f"{at}.{name}": value for name, value in layer.items()}
    return values | {"norm": some(sizes.hidden), "logits": some(sizes.vocab)}


# -- torch ------------------------------------------------------------------------------------------------------------

_MODULES = {
    "self_attn.q_proj": ("norm1", "q"),
    "self_attn.k_proj": ("norm1", "k"),
    "self_attn.v_proj": ("norm1", "v"),
    "self_attn.o_proj": ("context", "o"),
    "self_attn": ("norm1", "o"),
    "mlp.gate_proj": ("norm2", "gate"),
    "mlp.up_proj": ("norm2", "up"),
    "mlp.down_proj": ("product", "down"),
    "mlp.act_fn": ("gate", "act"),
    "mlp": ("norm2", "down"),
    "input_layernorm": ("in", "norm1"),
    "post_attention_layernorm": ("middle", "norm2"),
    "": ("in", "out"),
}
_LINEAR_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def torch_tree(layers: int) -> dict[str, Any]:
    """The modules in the order of their definition, which is not the order of their calls."""

    def node(name: str, kind: str, *children: dict[str, Any]) -> dict[str, Any]:
        return {"name": name, "type": kind, "children": list(children)}

    def layer(front: str) -> dict[str, Any]:
        attention, mlp = f"{front}.self_attn", f"{front}.mlp"
        return node(
            front, "DecoderLayer",
            node(attention, "Attn", *[node(f"{attention}.{name}", "Linear") for name in _LINEAR_NAMES[:4]]),
            node(mlp, "MLP", *[node(f"{mlp}.{name}", "Linear") for name in _LINEAR_NAMES[4:]],
                 node(f"{mlp}.act_fn", "SiLU")),
            node(f"{front}.input_layernorm", "RMSNorm"),
            node(f"{front}.post_attention_layernorm", "RMSNorm"),
            node(f"{front}.unused", "Linear"),
        )  # fmt: skip

    stack = [layer(f"root.model.layers.{at}") for at in range(layers)]
    model = node("root.model", "Model", node("root.model.embed_tokens", "Embedding"),
                 node("root.model.layers", "ModuleList", *stack), node("root.model.norm", "RMSNorm"))  # fmt: skip
    return node("root", "CausalLM", model, node("root.lm_head", "Linear"))


def write_torch(device: Path, tokens: dict[int, Values], layers: int) -> Path:
    """A torch dump: model_tree.json and a folder per token."""
    device.mkdir(parents=True, exist_ok=True)
    (device / "model_tree.json").write_text(json.dumps(torch_tree(layers)))
    for token, values in tokens.items():
        for module, (taken, given) in torch_places(layers).items():
            folder = device / str(token) / module
            write_pth(folder / "input_0.pth", values[taken][None])
            write_pth(folder / ("output_0.pth" if module.endswith("self_attn") else "output.pth"), values[given][None])
    return device


def torch_places(layers: int) -> dict[str, tuple[str, str]]:
    """For every module the names of what it takes and gives."""
    places = {"root.model.embed_tokens": ("ids", "embed"), "root.model.norm": (f"{layers - 1}.out", "norm")}
    places |= {"root.lm_head": ("norm", "logits"), "root.model": ("ids", "norm"), "root": ("ids", "logits")}
    for at in range(layers):
        for module, (taken, given) in _MODULES.items():
            name = f"root.model.layers.{at}.{module}".rstrip(".")
            places[name] = (f"{at}.{taken}", f"{at}.{given}")
    return places


# -- ATB --------------------------------------------------------------------------------------------------------------


@dataclass
class Op:
    """One operator: its type, its children, the names of what it takes and gives (``q+k+v``: side by side)."""

    type: str
    takes: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    children: list[Op] = field(default_factory=list)
    param: dict[str, Any] = field(default_factory=dict)


def atb_layer(*, attention_first: bool = False, fused: bool = True, fused_mlp: bool = False) -> Op:
    """A decoder layer; the attention may stand at any place, projections may be fused or not."""
    if fused:
        cut = Op("SplitOperation", ("q+k+v",), ("q", "k", "v"))
        projections = [Op("QKVLinearSplitPack", ("norm1",), ("q", "k", "v"),
                          [Op("LinearOperation", ("norm1",), ("q+k+v",)), cut])]  # fmt: skip
    else:
        projections = [Op("LinearOperation", ("norm1",), (name,)) for name in "qkv"]
    attention = Op("Attention", ("norm1",), ("o",), [
        *projections, Op("SelfAttentionOperation", ("q", "k", "v"), ("context",)),
        Op("LinearOperation", ("context",), ("o",)),
    ])  # fmt: skip
    if fused_mlp:
        start = [Op("LinearOperation", ("norm2",), ("gate+up",)), Op("SplitOperation", ("gate+up",), ("gate", "up"))]
    else:
        start = [Op("LinearOperation", ("norm2",), ("gate",)), Op("LinearOperation", ("norm2",), ("up",))]
    mlp = Op("Mlp", ("norm2",), ("down",), [
        *start, Op("ActivationOperation", ("gate",), ("act",)),
        Op("ElewiseOperation", ("act", "up"), ("product",), param={"elewiseType": 9}),
        Op("LinearOperation", ("product",), ("down",)),
    ])  # fmt: skip
    norm = Op("RmsNormOperation", ("in",), ("norm1",))
    return Op("CommonLayer", ("in",), ("out",), [
        *([attention, norm] if attention_first else [norm, attention]),
        Op("ElewiseOperation", ("in", "o"), ("middle",), param={"elewiseType": 8}),
        Op("RmsNormOperation", ("middle",), ("norm2",)), mlp,
        Op("ElewiseOperation", ("middle", "down"), ("out",), param={"elewiseType": 8}),
    ])  # fmt: skip


def atb_model(layers: int, layer: Op) -> list[Op]:
    """The operators at the top of the model."""
    head = Op("LmHead", ("norm",), ("logits",), [Op("LinearOperation", ("norm",), ("logits",))])
    return [Op("WordEmbedding", ("ids",), ("embed",)), *[layer] * layers, Op("RmsNormOperation", (), ("norm",)), head]


def write_atb_model(
    root: Path, device: str, rounds: dict[int, Values], operators: list[Op], *, first: int = 0, name: str = "Tiny"
) -> Path:
    """An ATB dump of one device: the topology and the tensors of every round."""
    topology = root / "model" / device.partition("_")[2]
    topology.mkdir(parents=True, exist_ok=True)
    nodes = [_topology(op, f"{first + at}", "") for at, op in enumerate(operators)]
    document = {"modelName": name, "inTensors": [f"{name}_input_0"], "outTensors": [f"{name}_output_0"], "nodes": nodes}
    (topology / f"{name}.json").write_text(json.dumps(document))
    for number, values in rounds.items():
        for at, op in enumerate(operators):
            layer = f"{at - 1}." if op.type == "CommonLayer" else ""
            _write_operator(root / "tensors" / device / str(number) / f"{first + at}_{op.type}", op, values, layer)
    return root


def _topology(op: Op, path: str, front: str) -> dict[str, Any]:
    node: dict[str, Any] = {"opName": f"{op.type}_{path}", "opType": op.type, "param": op.param}
    node |= {"inTensors": [front + name for name in op.takes], "outTensors": [front + name for name in op.gives]}
    if op.children:
        node["nodes"] = [_topology(child, f"{path}_{at}", front) for at, child in enumerate(op.children)]
    return node


def _write_operator(folder: Path, op: Op, values: Values, layer: str) -> None:
    for when, kind, names in (("before", "intensor", op.takes), ("after", "outtensor", op.gives)):
        for at, name in enumerate(names):
            parts = [values[layer + part] for part in name.split("+")]
            array = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
            array = array.astype(np.float16) if array.dtype == np.float32 else array
            write_atb(folder / when / f"{kind}{at}.bin", array)
    (folder / "op_param.json").write_text(json.dumps(op.param))
    for at, child in enumerate(op.children):
        _write_operator(folder / f"{at}_{child.type}", child, values, layer)
