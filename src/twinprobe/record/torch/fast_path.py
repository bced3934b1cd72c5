"""Modules whose fast path PyTorch itself switches off when anything watches them: warned of, and marked in the dump."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from twinprobe.record.problems import logger
from twinprobe.record.rows import Leaf

REMARK = "PyTorch left its fast path because the module is watched"
_NAMED = 6
_KINDS = (nn.TransformerEncoderLayer, nn.TransformerEncoder, nn.MultiheadAttention)


def has_fast_path(module: nn.Module) -> bool:
    """Whether this kind of module computes differently when nobody watches."""
    return isinstance(module, _KINDS)


def leaves_fast_path(module: nn.Module) -> bool:
    """Whether a call made now would have taken the fast path: no training, no gradients, not switched off."""
    if module.training or not _is_switched_on():
        return False
    return not (torch.is_grad_enabled() and any(one.requires_grad for one in module.parameters()))


def _is_switched_on() -> bool:
    switch = getattr(torch.backends, "mha", None)  # torch 2.2 has none
    return switch is None or bool(switch.get_fastpath_enabled())


class FastPaths:
    """Says once per module that its result may differ from an unwatched run."""

    def __init__(self) -> None:
        self._said: set[nn.Module] = set()

    def mark(self, module: nn.Module, prefix: str, parts: dict[str, Any]) -> None:
        """Put the remark into the entry of a call that leaves the fast path."""
        if leaves_fast_path(module):
            parts["remark"] = Leaf({"type": "str", "value": REMARK})
            self._say({prefix.rstrip("."): module})

    def look_over(self, models: Iterable[nn.Module]) -> None:
        """Warn of all modules that would take the fast path as things stand when recording starts."""
        self._say(
            {
                f"{path}.{type(module).__name__}".lstrip("."): module
                for model in models
                for path, module in model.named_modules()
                if has_fast_path(module) and not module.training and _is_switched_on()
            }
        )

    def _say(self, found: dict[str, nn.Module]) -> None:
        new = [name for name, module in found.items() if module not in self._said]
        if not new:
            return
        self._said.update(found.values())
        more = f" and {len(new) - _NAMED} more" if len(new) > _NAMED else ""
        logger.warning(
            "without gradients, watched modules leave PyTorch's fast path; results may differ in the last digits, and "
            "at masked places, from an unwatched run: %s%s",
            ", ".join(new[:_NAMED]),
            more,
        )
