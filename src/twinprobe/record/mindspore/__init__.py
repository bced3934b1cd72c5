"""Recording MindSpore."""
