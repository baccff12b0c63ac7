"""symlab: a laboratory for the symmetries of neural networks."""

__version__ = "0.1.0"
