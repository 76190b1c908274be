"""Refuses to put batches together by length where an example's numbers would be others than in its own batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embgrad.errors import ObjectiveError, UnsupportedError
from embgrad.objective import Objective, Scalar
from embgrad.result import EmbeddingGradients

__all__ = ["expect_one_length", "expect_sortable"]


def expect_sortable(objective: Any, side: str) -> None:
    """Refuse an objective that means something else in a batch of another length, or of other examples.

    Args:
        objective: that of a batch.
        side: on which examples are padded.

    Raises:
        ObjectiveError: it does.
    """
    if isinstance(objective, Scalar):
        raise ObjectiveError(
            "window puts batches together anew, and a Scalar objective reduces over a batch: leave window out, or give a "
            "function of shape (example,)"
        )
    position = getattr(objective, "position", None) if isinstance(objective, Objective) else None
    if side == "left" and position is not None and np.any(np.asarray(position) >= 0):
        raise ObjectiveError(
            f"window puts batches together anew, and position={position} is a column of a batch, where this tokenizer pads on "
            "the left: another token's in a batch of another length; expected positions that count from the end, such as -1, or "
            "no window"
        )


def expect_one_length(results: Sequence[EmbeddingGradients]) -> None:
    """Refuse outputs that have a number for each position, padding too, in batches of several lengths.

    Args:
        results: of the batches that were put together.

    Raises:
        UnsupportedError: there are such.
    """
    shapes = [one.provenance["output_shape"] for one in results]
    lengths = {one.ids.shape[1] for one in results if one.ids.ndim > 1}
    as_long = [shape is not None and len(shape) == 2 and shape[1] in lengths for shape in shapes]
    if all(as_long) and len({shape[1] for shape in shapes}) > 1:
        raise UnsupportedError(
            f"the output that the objective reads has the shapes {' and '.join(str(tuple(shape)) for shape in shapes[:2])} in "
            "batches of several lengths, a number for each position, those of padding too: an example's numbers depend on who is "
            "in its batch; leave window out"
        )
