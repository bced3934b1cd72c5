"""Operations that are recorded once, replayed and reproduced: each is one call of PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

F = functional


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(7)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=made).to(dtype).requires_grad_()

    return {
        "x": draw(3, 8, 16), "y": draw(3, 8, 16), "row": draw(16), "w": draw(12, 16), "b": draw(12),
        "square": draw(3, 8, 8), "m": draw(3, 16, 5), "pos": (draw(3, 8, 16).detach().abs() + 0.5).requires_grad_(),
        "image": draw(2, 4, 8, 8), "kernel": draw(6, 4, 3, 3), "k1": draw(6, 8, 3), "table": draw(20, 16),
        "q": draw(2, 2, 6, 8), "k": draw(2, 2, 6, 8), "v": draw(2, 2, 6, 8), "logits": draw(9, 11),
    }  # fmt: skip


IDS = torch.arange(10).reshape(2, 5)
CLASSES = torch.arange(9) % 11

# The recorded name without its number, and the call.
OPERATIONS: dict[str, Callable[[dict[str, torch.Tensor]], Any]] = {
    "Functional.gelu": lambda t: F.gelu(t["x"]),
    "Functional.softmax": lambda t: F.softmax(t["square"], dim=-1),
    "Functional.linear": lambda t: F.linear(t["x"], t["w"], t["b"]),
    "Functional.layer_norm": lambda t: F.layer_norm(t["x"], (16,), t["row"], None, 1e-6),
    "Torch.matmul": lambda t: torch.matmul(t["x"], t["m"]),
    "Tensor.__mul__": lambda t: t["x"] * t["row"],
    "Functional.scaled_dot_product_attention": lambda t: F.scaled_dot_product_attention(
        t["q"], t["k"], t["v"], is_causal=True
    ),
    "Torch.max": lambda t: torch.max(t["x"], dim=1),
    # The rest of the matrix.
    "Functional.silu": lambda t: F.silu(t["x"]),
    "Functional.relu": lambda t: F.relu(t["x"]),
    "Functional.leaky_relu": lambda t: F.leaky_relu(t["x"], 0.2),
    "Functional.elu": lambda t: F.elu(t["x"]),
    "Functional.softplus": lambda t: F.softplus(t["x"]),
    "Functional.log_softmax": lambda t: F.log_softmax(t["logits"], dim=-1),
    "Functional.mish": lambda t: F.mish(t["x"]),
    "Functional.hardswish": lambda t: F.hardswish(t["x"]),
    "Functional.glu": lambda t: F.glu(t["x"], dim=-1),
    "Functional.normalize": lambda t: F.normalize(t["x"], dim=-1),
    "Functional.group_norm": lambda t: F.group_norm(t["image"], 2),
    "Functional.embedding": lambda t: F.embedding(IDS, t["table"]),
    "Functional.conv2d": lambda t: F.conv2d(t["image"], t["kernel"], None, 2, 1),
    "Functional.conv1d": lambda t: F.conv1d(t["x"], t["k1"], padding=1),
    "Functional.avg_pool2d": lambda t: F.avg_pool2d(t["image"], 2),
    "Functional.interpolate": lambda t: F.interpolate(t["image"], scale_factor=2.0, mode="bilinear"),
    "Functional.pad": lambda t: F.pad(t["x"], (1, 2), value=0.5),
    "Functional.cross_entropy": lambda t: F.cross_entropy(t["logits"], CLASSES),
    "Functional.mse_loss": lambda t: F.mse_loss(t["x"], t["y"]),
    "Functional.smooth_l1_loss": lambda t: F.smooth_l1_loss(t["x"], t["y"]),
    "Functional.cosine_similarity": lambda t: F.cosine_similarity(t["x"], t["y"], dim=-1),
    "Torch.einsum": lambda t: torch.einsum("bik,bjk->bij", t["x"], t["y"]),
    "Torch.bmm": lambda t: torch.bmm(t["x"], t["m"]),
    "Torch.baddbmm": lambda t: torch.baddbmm(t["square"], t["x"], t["y"].mT, beta=0.5),
    "Torch.add": lambda t: torch.add(t["x"], t["y"], alpha=0.3),
    "Torch.cat": lambda t: torch.cat([t["x"], t["y"]], dim=1),
    "Torch.where": lambda t: torch.where(t["x"].detach() > 0, t["x"], t["y"]),
    "Torch.rsqrt": lambda t: torch.rsqrt(t["pos"]),
    "Torch.logsumexp": lambda t: torch.logsumexp(t["x"], dim=(1, 2)),
    "Torch.linalg.norm": lambda t: torch.linalg.norm(t["x"], dim=-1),
    "Torch.cumsum": lambda t: torch.cumsum(t["x"], dim=1),
    "Torch.clamp": lambda t: torch.clamp(t["x"], -0.5, float("inf")),
    "Torch.std": lambda t: torch.std(t["x"], dim=-1),
    "Torch.outer": lambda t: torch.outer(t["row"], t["b"]),
    "Tensor.__add__": lambda t: t["x"] + 1.5,
    "Tensor.__truediv__": lambda t: t["x"] / t["pos"],
    "Tensor.__matmul__": lambda t: t["x"] @ t["m"],
    "Tensor.__rsub__": lambda t: 2.0 - t["x"],
    "Tensor.__pow__": lambda t: t["pos"] ** 1.5,
    "Tensor.__neg__": lambda t: -t["x"],
    "Tensor.mean": lambda t: t["x"].mean(-1, keepdim=True),
    "Tensor.sum": lambda t: t["x"].sum(dim=[0, 2]),
    "Tensor.exp": lambda t: t["x"].exp(),
    "Tensor.log": lambda t: t["pos"].log(),
    "Tensor.tanh": lambda t: t["x"].tanh(),
    "Tensor.sigmoid": lambda t: t["x"].sigmoid(),
    "Tensor.sin": lambda t: t["x"].sin(),
    "Tensor.masked_fill": lambda t: t["x"].masked_fill(t["y"].detach() > 0, float("-inf")),
    "Tensor.mul_": lambda t: (t["x"] + 0.0).mul_(t["y"]),
    "Tensor.softmax": lambda t: t["square"].softmax(-1),
    "Tensor.var": lambda t: t["x"].var(dim=-1, unbiased=False),
    "Tensor.sqrt": lambda t: t["pos"].sqrt(),
}
FEW = list(OPERATIONS)[:8]
REST = list(OPERATIONS)[8:]


class All(torch.nn.Module):
    """Every operation once."""

    def forward(self, given: dict[str, torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for call in OPERATIONS.values():
            result = call(given)
            first = result[0] if isinstance(result, tuple) else result
            total = total + torch.nan_to_num(first.float(), 0.0, 0.0, 0.0).square().sum()
        return total
