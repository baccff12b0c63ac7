"""Constraints as options of the command line, one per file: NAME(model, inputs, generator, *, keys...) -> model."""
