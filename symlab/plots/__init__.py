"""Figures: one per file, table -> Figure."""
