"""Symmetry as constraint: mirrors and their constraint sets, how to impose one, and how to remove a symmetry.

Source: Liu Ziyin, "Symmetry leads to structured constraint of learning" (ICML 2024).
"""
