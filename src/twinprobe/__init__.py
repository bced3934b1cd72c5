"""Two runs of the same neural network give different numbers: where do they part, and why?"""

__version__ = "0.1.0"
