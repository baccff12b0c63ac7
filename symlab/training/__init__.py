"""Build, fit, evaluate, checkpoint. fit yields rows; it writes nothing."""
