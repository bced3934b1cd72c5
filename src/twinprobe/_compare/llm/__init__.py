"""Inference dumps compared: ait, msit and ATB."""
