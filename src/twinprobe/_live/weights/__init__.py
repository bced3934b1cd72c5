"""Weights from one model to another, in either direction among PyTorch, Paddle and MindSpore."""

from twinprobe._live.weights.assigning import assign_weight, copy_weights
from twinprobe._live.weights.copying import WeightReport, copy_aligned
from twinprobe._live.weights.special import add_special_init

__all__ = ["WeightReport", "add_special_init", "assign_weight", "copy_aligned", "copy_weights"]
