"""What the benchmark of many ranks is made of: its inputs, the plain loop it is held against, a watch on processes."""
