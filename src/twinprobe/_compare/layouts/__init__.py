"""Runs in different parallel layouts, put together and compared as wholes."""
