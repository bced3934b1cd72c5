"""Unusual forms of arguments: the dump has every argument as the program wrote it, and the numbers are not touched."""

from __future__ import annotations

import ast
import json
import re
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from twinprobe.torch import PrecisionDebugger

CALLS = """
x.split(2)
x.split([1, 3])
x.split([1, 3], dim=0)
x.split(split_size=[1, 3])
x.split(2, 1)
x.split(split_size=3, dim=-1)
torch.Tensor.split(x, [2, 4], dim=1)
torch.split(x, [1, 3])
torch.split(x, split_size_or_sections=2, dim=1)
torch.split(tensor=x, split_size_or_sections=2, dim=1)
x.tensor_split([1, 2], dim=1)
x.tensor_split((1, 2), 1)
torch.tensor_split(x, 3, dim=1)
x.chunk(chunks=2, dim=1)
torch.chunk(x, 2, dim=-1)
x.norm()
x.norm(2)
x.norm(p=1, dim=1)
x.norm("fro", dim=(0, 1), keepdim=True)
x.norm(dim=[1], dtype=torch.float64)
torch.norm(x, p=float("inf"), dim=0)
torch.norm(x, "nuc")
torch.norm(x, 2, 1, out=mx)
x.sum(dim=(0, 1))
x.sum([0, 1], keepdim=True)
x.sum(0, False, dtype=torch.float64)
torch.sum(x, dim=(1,), dtype=torch.float64)
torch.sum(input=x, dim=-1)
x.mean(dim=None)
x.mean((0, -1))
torch.mean(x, dim=None, keepdim=False, dtype=None)
x.std(dim=1, correction=0)
x.var(unbiased=False)
x.max(dim=1)
torch.max(x, 1, out=(mx, idx))
x.max(1, keepdim=True)
x.amax((0, 1))
x.topk(2, dim=1, largest=False, sorted=True)
torch.topk(x, k=3)
x.sort(descending=True, stable=True, dim=1)
x.unique(sorted=True, return_inverse=True, return_counts=True)
x.unique(return_inverse=True)
torch.unique(x, dim=0)
torch.unique(ints, True, False, True)
x.unique_consecutive(return_counts=True)
torch.add(x, y, alpha=2)
torch.add(x, y, alpha=2, out=out)
torch.add(input=x, other=3, out=out)
x.add(y, alpha=0.5)
x.addcmul(x, y, value=0.1)
torch.addmm(m, m, m, beta=0.5, alpha=2)
torch.matmul(x, m, out=out)
x.clamp(min=None, max=0.5)
x.clamp(-0.5)
torch.clamp(x, max=y)
torch.clip(x, None, 1.0)
x.to(torch.float64)
x.to(dtype=torch.float16, copy=True)
x.to("cpu", torch.bfloat16)
x.to(device="cpu", non_blocking=True)
x.to(y)
x.type_as(c)
x.reshape(-1)
x.reshape((6, -1))
x.reshape(shape=[2, 12])
x.permute(1, 0)
x.permute((1, 0))
torch.permute(x, dims=[1, 0])
x.transpose(dim0=0, dim1=1)
x.expand(2, -1, -1)
x.repeat((2, 1))
x.repeat_interleave(2, dim=1)
x.repeat_interleave(torch.tensor([1, 2, 0, 1]), dim=0, output_size=4)
x.flip([0, 1])
x.roll(shifts=(1, 2), dims=(0, 1))
torch.rot90(x, k=1, dims=[0, 1])
torch.cat([x, y], dim=1)
torch.cat(tensors=(x, y))
torch.stack([x, y, x], -1)
torch.einsum("ij,jk->ik", x, m)
torch.einsum("ij,jk", [x, m])
torch.tensordot(x, m, dims=1)
torch.tensordot(x, m, dims=([1], [0]))
torch.where(mask, x, 0.0)
torch.where(mask)
x.masked_fill(mask, value=float("-inf"))
x.masked_fill(mask, -1)
x.index_select(dim=0, index=i)
x.gather(0, ints % 4)
x.scatter(0, ints % 4, 1.5)
x.scatter(0, ints % 4, y, reduce="add")
x.index_add(0, i, y, alpha=2)
x.index_put((i,), v, accumulate=True)
torch.bincount(t5, weights=None, minlength=8)
torch.histc(x, bins=4, min=-1, max=1)
torch.multinomial(x.abs(), 3, replacement=True, generator=gen)
torch.bernoulli(x.sigmoid(), generator=gen)
torch.normal(0.0, x.abs(), generator=gen)
torch.rand((2, 3), generator=gen, dtype=torch.float64)
torch.randint(0, 5, (2, 3), generator=gen)
torch.full((2, 3), fill_value=1.5, dtype=torch.float64)
torch.full_like(x, 2, dtype=torch.int32)
torch.arange(0, 10, step=2, dtype=torch.float32)
torch.linspace(0, 1, steps=5, out=None)
x.cumsum(dim=1, dtype=torch.float64)
torch.cumsum(x, 1, out=out)
torch.prod(x, 1, dtype=torch.float64)
torch.softmax(x, dim=1, dtype=torch.float64)
F.softmax(x, dim=-1, dtype=torch.float64)
F.softmax(x, 1, 3, torch.float64)
F.log_softmax(x, dim=-1, _stacklevel=5)
F.dropout(x, 0.3, True)
F.dropout(x, p=0.5, training=False)
F.relu(x, inplace=False)
F.leaky_relu(x, negative_slope=0.2)
F.gelu(x, approximate="tanh")
F.silu(x)
F.glu(x, dim=1)
F.linear(x, m)
F.linear(x, weight=m, bias=None)
F.linear(x, m, v)
F.layer_norm(x, [6])
F.layer_norm(x, (6,), None, None, 1e-3)
F.layer_norm(x, normalized_shape=(6,), weight=v, eps=1e-6)
F.group_norm(im, 3, eps=0.1)
F.batch_norm(im, None, None, training=True)
F.instance_norm(im, use_input_stats=True, momentum=0.3)
F.rms_norm(x, [6], eps=None)
F.conv2d(im, w, b, stride=(2, 1), padding="valid")
F.conv2d(im, w, padding=[1, 1], dilation=1, groups=1)
F.conv_transpose2d(im, w.transpose(0, 1), None, 2, output_padding=(1, 1))
F.max_pool2d(im, 2)
F.max_pool2d(im, kernel_size=(2, 2), stride=None, return_indices=True)
F.max_pool2d(im, 2, 2, ceil_mode=True)
F.avg_pool2d(im, [2, 2], padding=1, count_include_pad=False, divisor_override=3)
F.adaptive_avg_pool2d(im, (None, 2))
F.adaptive_max_pool2d(im, 2, return_indices=True)
F.interpolate(im, scale_factor=2)
F.interpolate(im, scale_factor=(0.5, 2.0), mode="bicubic", antialias=True)
F.pad(x, (1, 1))
F.pad(x, [1, 2], mode="constant", value=3.5)
F.pad(im, (1, 1, 1, 1), "reflect")
F.unfold(im, kernel_size=3, padding=(1, 1))
F.grid_sample(im, torch.zeros(2, 4, 4, 2), mode="nearest", align_corners=True)
F.embedding(i, m, None)
F.embedding(i, m, padding_idx=-1, max_norm=None)
F.embedding_bag(i, m, offsets=torch.tensor([0, 2]), mode="sum")
F.one_hot(i, num_classes=5)
F.cross_entropy(x, t5)
F.cross_entropy(x, t5, weight=v.abs(), ignore_index=0, label_smoothing=0.1, reduction="sum")
F.nll_loss(x, t5, None, None, 2)
F.mse_loss(x, y, reduction="none")
F.smooth_l1_loss(x, y, beta=0.5)
F.binary_cross_entropy_with_logits(x, y.sigmoid(), pos_weight=v.abs())
F.kl_div(x.log_softmax(1), y.softmax(1), reduction="batchmean", log_target=False)
F.cosine_similarity(x, y, dim=0, eps=1e-6)
F.pairwise_distance(x, y, p=1.0, keepdim=True)
F.normalize(x, p=1, dim=0)
F.scaled_dot_product_attention(seq, seq, seq, attn_mask=None, dropout_p=0.0, is_causal=True)
F.scaled_dot_product_attention(seq, seq, value=seq, scale=0.5)
F.multi_head_attention_forward(seq, seq, seq, 8, 2, e[:24], None, None, None, False, 0, e[:8], None, need_weights=0)
F.gumbel_softmax(x, tau=2.0, hard=True)
torch.linalg.norm(x, ord=2, dim=(0, 1))
torch.linalg.vector_norm(x, 3, dim=None, dtype=torch.float64)
torch.linalg.svd(x, full_matrices=False)
torch.linalg.solve(spd, x)
torch.linalg.qr(x, mode="r")
torch.fft.fft(x, n=8, dim=-1, norm="ortho")
torch.fft.rfftn(x, s=(4, 4), dim=[0, 1])
torch.stft(v.repeat(8), n_fft=8, hop_length=None, window=torch.ones(8), return_complex=True)
v.repeat(8).stft(8, window=torch.ones(8), return_complex=True)
torch.cdist(x, y, p=1.0, compute_mode="use_mm_for_euclid_dist")
torch.meshgrid(v, v, indexing="ij")
torch.meshgrid([v, v], indexing="xy")
torch.broadcast_tensors(x, v)
torch.block_diag(x, y)
torch.cartesian_prod(v, v)
torch.atleast_2d(v)
torch.atleast_2d([v, x])
torch.searchsorted(v.sort().values, x, right=True)
torch.bucketize(x, boundaries=v.sort()[0], out_int32=True)
torch.lerp(x, y, weight=0.3)
torch.lerp(x, y, 0.3, out=out)
x.quantile(torch.tensor([0.1, 0.9]), dim=1, keepdim=True, interpolation="lower")
x.nan_to_num(nan=0.0, posinf=None)
torch.isclose(x, y, rtol=1e-3, equal_nan=True)
torch.div(x, y, rounding_mode="floor")
x.pow(exponent=2)
torch.pow(2, x)
torch.pow(x, 2.0, out=out)
x.bernoulli_(0.5, generator=gen)
x.random_(0, 5, generator=gen)
x.exponential_(lambd=2.0, generator=gen)
x.log_normal_(mean=0.0, std=1.0, generator=gen)
x.fill_(value=3)
x.copy_(y, non_blocking=False)
x.index_fill(0, i, 2.5)
x.masked_scatter(mask, y)
torch.lu(spd, pivot=True, get_infos=True)
torch.aminmax(x, dim=1, keepdim=True)
torch.count_nonzero(x, dim=(0, 1))
torch.logsumexp(x, (0, 1))
x.logsumexp(dim=[1], keepdim=True)
torch.std_mean(x, dim=[0], correction=2)
torch.nansum(x, dim=None, dtype=torch.float64)
torch.trapezoid(x, dx=0.5, dim=0)
torch.diff(x, n=2, dim=1, prepend=y)
torch.gradient(v, spacing=2.0)
torch.kron(x, v)
torch.baddbmm(seq, seq @ seq.transpose(1, 2), seq, beta=0, alpha=0.5)
torch.triu(m, diagonal=-1)
torch.diagonal(x, offset=1, dim1=0, dim2=1)
x.unflatten(1, (2, -1))
x.unflatten(dim=1, sizes=(2, 3))
x.view(torch.int32)
x.view(2, 12)
x.view((2, -1))
x.as_strided((2, 2), (1, 2), storage_offset=1)
x.new_full((2,), 3.0, dtype=torch.float64)
x.__rsub__(1)
x.__rpow__(2)
torch.ops.aten.add.Tensor(x, y, alpha=3)
torch.ops.aten.sum.dim_IntList(x, [0, 1], dtype=torch.float64)
torch.Tensor.sum(x, dim=1)
torch.Tensor.norm(x, p=1)
torch.Tensor.add(x, y, alpha=2)
x.lt(0.5)
x.argmax(dim=None, keepdim=False)
x.any(1)
x.squeeze((0, 1))
x.unsqueeze(dim=-1)
x.swapaxes(axis0=0, axis1=1)
x.movedim([0, 1], [1, 0])
x.narrow(dim=1, start=0, length=torch.tensor(3))
x.take_along_dim(ints % 4, dim=0)
torch.lu(spd)
torch.istft(torch.ones(5, 4, dtype=torch.complex64), 8, length=16, window=torch.ones(8))
ints.bitwise_left_shift(other=2)
F.interpolate(im, size=(4, 5), mode="bilinear", align_corners=False)
""".strip().splitlines()

# What the instruction of the call does not say: the dump has at least what reached the function.
HIDDEN = {
    "partial(F.dropout, p=0.3)(x)": "F.dropout(x, p=0.3)",
    "partial(F.softmax, dim=1)(x)": "F.softmax(x, dim=1)",
    "partial(F.layer_norm, normalized_shape=(6,))(x)": "F.layer_norm(x, (6,))",
    "list(map(partial(F.leaky_relu, negative_slope=0.3), [x]))": "F.leaky_relu(x, negative_slope=0.3)",
    "list(map(x.split, [2]))": "x.split(2)",
    "torch.Tensor.split(x, 2)": "x.split(2, 0)",
    "torch.Tensor.unique(x, return_counts=True)": "x.unique(True, return_counts=True)",
}


def values() -> dict[str, Any]:
    random = torch.Generator().manual_seed(1)

    def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=random, dtype=dtype)

    torch.manual_seed(7)
    return {
        "torch": torch, "F": functional, "partial": partial, "x": normal(4, 6), "y": normal(4, 6), "m": normal(6, 6),
        "v": normal(6), "i": torch.tensor([0, 2, 1, 3]), "c": normal(4, 6, dtype=torch.complex64),
        "im": normal(2, 3, 8, 8), "w": normal(4, 3, 3, 3), "b": normal(4), "seq": normal(2, 5, 8),
        "mask": torch.tensor([[True, False] * 3] * 4), "ints": torch.arange(24).reshape(4, 6), "spd": torch.eye(4) * 3,
        "e": torch.eye(24, 8),
        "out": torch.empty(4, 6), "idx": torch.empty(4, dtype=torch.long), "mx": torch.empty(4),
        "gen": torch.Generator().manual_seed(3), "t5": torch.randint(0, 6, (4,), generator=random),
    }  # fmt: skip


def run(code: str, given: dict[str, Any]) -> Any:
    return eval(compile(code, "<program>", "eval"), given)


def bits(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.flatten().contiguous().view(torch.uint8).numpy().tobytes()
    return [bits(item) for item in value] if isinstance(value, list | tuple) else repr(value)


def leaf(value: Any, key: str | None = None) -> Any:
    """What dumps have for a value: tensors by dtype and shape, other values whole."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), list(value.shape)]
    if isinstance(value, list | tuple):
        return [leaf(item) for item in value]
    if value is None or isinstance(value, torch.Generator):
        return None
    if isinstance(value, torch.dtype):  # positional ones are empty objects, as they always were
        return {"type": "torch.dtype", "value": str(value)} if key == "dtype" else {}
    if key == "device":
        return {"type": "torch.device", "value": value}
    return {"type": type(value).__name__, "value": value}


def read(recorded: Any) -> Any:
    if isinstance(recorded, list):
        return [read(item) for item in recorded]
    is_tensor = isinstance(recorded, dict) and "shape" in recorded
    return [recorded["dtype"], recorded["shape"]] if is_tensor else recorded


def written(code: str) -> tuple[list[Any], dict[str, Any]]:
    call = ast.parse(code, mode="eval").body
    assert isinstance(call, ast.Call)
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    is_method = owner is not None and not re.match(r"(torch|F)\b(?!.*\()", ast.unparse(owner))
    nodes = [*([owner] if is_method else []), *call.args]
    args = [leaf(run(ast.unparse(node), values())) for node in nodes]
    return args, {str(one.arg): leaf(run(ast.unparse(one.value), values()), one.arg) for one in call.keywords}


@pytest.fixture(scope="module")
def entries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The last call of each line as the dump has it."""
    folder = tmp_path_factory.mktemp("written")
    lines = [code for code in [*CALLS, *HIDDEN] if "rms_norm" not in code or hasattr(functional, "rms_norm")]
    plain = [bits(run(code, values())) for code in lines]
    debugger = PrecisionDebugger(dump_path=str(folder), level="L1", risk_level="ALL")
    seen = []
    debugger.start()
    for code in lines:  # one step for all of them: each step waits for the disk
        given = values()
        result = run(code, given)
        torch.lgamma(given["b"])  # ends the line in the dump
        seen.append(result)
    debugger.stop()
    debugger.close()
    assert [bits(result) for result in seen] == plain
    assert not list(folder.rglob("dump_error_info.log"))
    (file,) = folder.glob("step0/*/dump.json")
    found: dict[str, Any] = {}
    last: Any = None
    for name, entry in json.loads(file.read_text())["data"].items():
        if name.startswith("Torch.lgamma."):
            found[lines[len(found)]] = last
        elif name.endswith("forward"):
            last = entry
    assert len(found) == len(lines)
    return found


def test_every_argument_is_there_as_it_was_written(entries: dict[str, Any]) -> None:
    wrong = {}
    for code, entry in entries.items():
        recorded = read(entry["input_args"]), {key: read(item) for key, item in entry["input_kwargs"].items()}
        if recorded != written(HIDDEN.get(code, code)):
            wrong[code] = recorded
    assert not wrong
