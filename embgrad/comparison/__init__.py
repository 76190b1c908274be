"""Comparison of two gradients or two models, with the causes of a difference."""
