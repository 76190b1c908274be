"""For the modules of kept traces, until they are made anew."""

from embgrad_torch.lookup import DIFFERENTIATING

__all__ = ["DIFFERENTIATING"]
