"""Recordings that stay in memory, for live comparison: nothing is measured or written while a model runs."""
