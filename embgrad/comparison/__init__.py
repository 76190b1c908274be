"""Comparison of two gradients or two models, with the causes of a difference."""

from embgrad.comparison.result import Comparison, Comparisons

__all__ = ["Comparison", "Comparisons"]
