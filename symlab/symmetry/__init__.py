"""Axes and groups of a model, and the matrices that commute with them."""
