"""Recording PaddlePaddle."""
