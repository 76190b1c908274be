"""Diagnosis of a difference between two gradients: hypotheses that predict one from the other, measured against the numbers."""
