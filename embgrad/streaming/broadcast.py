"""Options of `gradients` for many batches: their arrays broadcast to each batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embgrad.engine.interventions import BroadcastArray
from embgrad.engine.options import GradientOptions
from embgrad.errors import UnsupportedError

__all__ = ["for_all_batches"]


def for_all_batches(options: GradientOptions) -> GradientOptions:
    """Return the options with each array marked, so that its axes are checked once those of its point are known."""
    for option, changes in options.changes.items():
        for name, change in changes.items():
            if isinstance(change, np.ndarray) and change.ndim > 2 and len(change) > 1:
                raise UnsupportedError(
                    f"{option}[{name!r}] has the shape {change.shape}, which seems to have an example axis, but it applies to "
                    "many batches: pass an array without that axis, or a function of the value"
                )
    changes_of = {
        option: {
            name: BroadcastArray(change) if isinstance(change, np.ndarray) else change
            for name, change in changes.items()
        }
        for option, changes in options.changes.items()
    }
    return replace(options, changes=changes_of)
