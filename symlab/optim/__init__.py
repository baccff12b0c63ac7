"""Optimizers: one per file, each with a factory `name(model, inputs, *, ...)`."""

from symlab.optim.symo import SymO

__all__ = ["SymO"]
