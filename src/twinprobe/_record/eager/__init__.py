"""What MindSpore and PaddlePaddle share: calls are seen by replacing functions, gradients by an adapter's own means."""
