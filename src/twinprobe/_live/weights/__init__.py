"""Weights from one model to another, in either direction among PyTorch, Paddle and MindSpore."""
