"""What scripts call, the same for every framework."""
