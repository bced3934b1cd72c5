"""The weights and the batch of the small transformer, the same numbers for every framework (PyTorch's layout)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

VOCABULARY, WIDTH, INNER, HEADS, LAYERS, BATCH, TOKENS = 40, 16, 32, 2, 2, 2, 6
EPSILON = 1e-5


def weights() -> dict[str, NDArray[np.float32]]:
    """Path -> array; Linear weights are [out, in]."""
    random = np.random.default_rng(20)

    def normal(*shape: int, scale: float = 0.3) -> NDArray[np.float32]:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    found = {"embedding.weight": normal(VOCABULARY, WIDTH)}
    for at in range(LAYERS):
        front = f"layers.{at}"
        for norm in ("norm_1", "norm_2"):
            found[f"{front}.{norm}.weight"] = 1 + normal(WIDTH, scale=0.1)
            found[f"{front}.{norm}.bias"] = normal(WIDTH, scale=0.1)
        for name, rows, columns in (
            ("qkv", 3 * WIDTH, WIDTH),
            ("out", WIDTH, WIDTH),
            ("up", INNER, WIDTH),
            ("down", WIDTH, INNER),
        ):
            found[f"{front}.{name}.weight"] = normal(rows, columns)
            found[f"{front}.{name}.bias"] = normal(rows, scale=0.1)
    found["norm.weight"], found["norm.bias"] = 1 + normal(WIDTH, scale=0.1), normal(WIDTH, scale=0.1)
    found["head.weight"], found["head.bias"] = normal(VOCABULARY, WIDTH), normal(VOCABULARY, scale=0.1)
    return found


def batch() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Tokens, labels, and the causal mask that is added to the scores."""
    random = np.random.default_rng(21)
    tokens = random.integers(0, VOCABULARY, (BATCH, TOKENS))
    mask = np.triu(np.full((TOKENS, TOKENS), -10000.0, dtype=np.float32), 1)
    return tokens, np.roll(tokens, -1, axis=1), mask
