"""Learning-rate schedules: one pure function per file."""
