"""Dumps that lie elsewhere: URLs through fsspec, read by byte ranges."""
