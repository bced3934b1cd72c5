"""Loops over elements, written in Python for numba to compile. Where their machine code is kept, none is imported."""
