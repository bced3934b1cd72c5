"""Weights from one model to another, in either direction among PyTorch, Paddle and MindSpore."""

from twinprobe.live.weights.assigning import assign_weight, copy_weights
from twinprobe.live.weights.copying import copy_aligned
from twinprobe.live.weights.report import WeightReport
from twinprobe.live.weights.special import add_special_init

__all__ = ["WeightReport", "add_special_init", "assign_weight", "copy_aligned", "copy_weights"]
