"""Models from checkpoints: one folder, the same weights in each framework."""

from embgrad.checkpoints.load_bert import load_bert

__all__ = ["load_bert"]
