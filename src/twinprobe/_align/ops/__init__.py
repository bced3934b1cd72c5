"""Operators of inference engines and layers of torch models."""
