"""Commands: one per file, one typed function."""
