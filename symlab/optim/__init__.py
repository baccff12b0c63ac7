"""Optimizers: one per file, each with a factory `name(model, inputs, *, ...)`."""
