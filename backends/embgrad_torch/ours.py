"""For the modules of kept traces, until they are made anew."""

from embgrad_torch.state import running

__all__ = ["running"]
