"""Checks that sorting examples by length does not change their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embgrad.engine.options import GradientOptions
from embgrad.errors import ObjectiveError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective, Scalar
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.padding_invariance import Verdict, follows_positions
from embgrad.streaming.source import Source

__all__ = ["expect_restorable", "expect_same", "expect_sortable", "expect_window"]


def expect_window(options: GradientOptions, source: Source, objective: Any) -> None:
    """Check before the first batch that the examples of the source may be batched anew by length.

    Args:
        options: the options of each batch.
        objective: the argument of `stream`, for the whole source or to be made for each batch.

    Raises:
        ObjectiveError: the objective depends on the other examples of a batch.
        UnsupportedError: an option makes results depend on the other examples, or the source yields whole batches.
    """
    if source.tokenizer is None:
        raise UnsupportedError(
            "window sorts texts by length, but the source yields whole batches: pass texts with tokenizer=..., or omit window"
        )
    for name, is_set in {"split=True": options.split, "training=True": options.training}.items():
        if is_set:
            raise UnsupportedError(
                f"window sorts examples into other batches, but with {name} results depend on the examples of a batch: omit one "
                "of the two"
            )
    expect_sortable(objective, source.padding.side)


def expect_sortable(objective: Any, side: str) -> None:
    """Check that an objective does not depend on the length of the batch, nor on its other examples.

    Args:
        objective: the objective of a batch.
        side: the side of the padding, "left" or "right".

    Raises:
        ObjectiveError: the objective depends on one of these.
    """
    if isinstance(objective, Scalar):
        raise ObjectiveError(
            "window sorts examples into other batches, but a Scalar objective reduces over a batch: omit window, or pass a "
            "function that returns shape (example,)"
        )
    position = getattr(objective, "position", None) if isinstance(objective, Objective) else None
    if side == "left" and position is not None and np.any(np.asarray(position) >= 0):
        raise ObjectiveError(
            f"window sorts examples into other batches, but position={position} is a column of a batch, which holds another "
            "token in a batch of another length, since this tokenizer pads on the left. Pass positions that count from the end, "
            "such as -1, or omit window"
        )


def expect_restorable(batches: Sequence[TokenBatch], results: Sequence[Mapping[str, Any]]) -> None:
    """Check that the results can be restored to the batches of the source, which have other examples and lengths.

    Args:
        batches: the sorted batches that have been run.
        results: the results of each batch, by the names of the points.

    Raises:
        UnsupportedError: the results at a point, or the output, cannot be restored.
    """
    for name in results[0]:
        at_point = [result[name] for result in results]
        if isinstance(at_point[0], EmbeddingGradients):  # the axes of an attribution are example and position
            _expect_each_example(name, batches, at_point)
            _expect_one_form(name, at_point)
        _expect_one_length(batches, at_point)


def expect_same(example: int, verdict: Verdict) -> bool:
    """Check that an example's results do not depend on the length of its batch.

    Args:
        example: the example's number in the source.
        verdict: the comparison of its results with and without padding.

    Returns:
        Whether the comparison was conclusive.

    Raises:
        UnsupportedError: the results differ.
    """
    difference = verdict.difference
    if difference is not None:
        raise UnsupportedError(
            f"example {example} of the source has other results alone than with {difference.padding} positions of padding: at "
            f"{difference.name!r} their relative difference is {difference.size:.2g}, and rounding explains "
            f"{difference.limit:.2g}. window requires a model whose results do not depend on padding: pass "
            "other positions in call=..., pad on the right, or omit window"
        )
    return verdict.conclusive


def _expect_each_example(name: str, batches: Sequence[TokenBatch], results: Sequence[EmbeddingGradients]) -> None:
    for batch, result in zip(batches, results, strict=True):
        if len(result.values) != len(batch):
            raise UnsupportedError(
                f"the point {name!r} has the shape {result.values.shape} in a batch of {len(batch)} examples, which share it, "
                "but window requires an entry for each example: pass a role such as at='position', or omit window"
            )


def _expect_one_form(name: str, results: Sequence[EmbeddingGradients]) -> None:
    shapes = list({result.values.shape[1:]: result.values.shape for result in results}.values())
    if len(shapes) > 1 and not follows_positions(results):
        raise UnsupportedError(
            f"the point {name!r} has the shapes {shapes[0]} and {shapes[1]}, which depend on the length of the batch in an axis "
            "other than the second of three. window requires (example, position, …): omit it"
        )


def _expect_one_length(batches: Sequence[TokenBatch], results: Sequence[Any]) -> None:
    """Check that the output does not have one number for each position, padding included."""
    shapes = [result.provenance["output_shape"] for result in results]
    per_position = [
        shape is not None and len(shape) == 2 and shape[1] == batch.shape[1]
        for shape, batch in zip(shapes, batches, strict=True)
    ]
    distinct = sorted({tuple(shape[1:]): tuple(shape) for shape in shapes if shape is not None}.values())
    if all(per_position) and len(distinct) > 1:
        raise UnsupportedError(
            f"the output that the objective reads has the shapes {distinct[0]} and {distinct[1]} in batches of several lengths, "
            "with a number for each position, padding included. The results of an example then depend on its batch: omit window"
        )
