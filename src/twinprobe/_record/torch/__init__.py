"""Recording PyTorch."""
