"""For the modules of kept traces, until they are made anew."""

from embgrad_torch.run import answered_by, dtype_of

__all__ = ["answered_by", "dtype_of"]
