"""Protocols of the experiments on symmetry as constraint, one per file: what is trained, measured and claimed."""
