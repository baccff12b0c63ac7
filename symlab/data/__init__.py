"""Data sets: one per file, each returning one frozen Dataset."""
