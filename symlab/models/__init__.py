"""Architectures: one per file."""
