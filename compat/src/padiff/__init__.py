"""padiff, answered by TwinProbe."""
