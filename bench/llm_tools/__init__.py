"""What the benchmark of inference dumps is made of: its inputs, and the limits that it is held against."""
