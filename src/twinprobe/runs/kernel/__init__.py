"""Kernel dumps of static graphs on disk."""
