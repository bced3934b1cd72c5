"""Inference dumps on disk: ait, msit and ATB."""
