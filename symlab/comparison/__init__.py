"""Comparing optimizers: trials, tuning, workers, statistics, report."""
