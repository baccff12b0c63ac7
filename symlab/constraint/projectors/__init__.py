"""Projectors P of theta = P(u * w) + (I - P) v, one kind per file: which structure decay then favours."""
