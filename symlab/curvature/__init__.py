"""Gradients, Hessian, GGN, Fisher and Jacobian spectra of a model on data."""
