"""Kernel dumps of static graphs compared."""
