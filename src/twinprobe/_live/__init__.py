"""Two models side by side: run both on the same inputs, and say which layer is the first to differ."""
