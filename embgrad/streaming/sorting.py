"""Checks that sorting examples by length does not change their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from embgrad.engine.run import Task
from embgrad.errors import ObjectiveError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective, Scalar
from embgrad.results.gradients import EmbeddingGradients
from embgrad.streaming.padding_invariance import Verdict, follows_positions
from embgrad.streaming.source import Source

__all__ = ["expect_restorable", "expect_same", "expect_sortable", "expect_window"]


def expect_window(task: Task, source: Source, objective: Any) -> None:
    """Check before the first batch that the examples of the source may be batched anew by length.

    Args:
        task: the request for each batch.
        source: the source.
        objective: the argument of `stream`, for the whole source or to be made for each batch.

    Raises:
        ObjectiveError: the objective depends on the other examples of a batch.
        UnsupportedError: an option makes results depend on the other examples, or the source yields whole batches.
    """
    if source.tokenizer is None:
        raise UnsupportedError(
            "window puts texts together by length, and the source gives whole batches: expected texts, with tokenizer=...; or "
            "leave window out"
        )
    for name, asked_for in {"split=True": task.split, "training=True": task.training}.items():
        if asked_for:
            raise UnsupportedError(
                f"window puts batches together anew, and with {name} it counts which examples meet: leave one of them out"
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


def expect_restorable(batches: Sequence[TokenBatch], results: Sequence[Mapping[str, EmbeddingGradients]]) -> None:
    """Check that the results can be restored to the batches of the source, which have other examples and lengths.

    Args:
        batches: the sorted batches that have been run.
        results: the results of each batch, by the names of the points.

    Raises:
        UnsupportedError: the results at a point, or the output, cannot be restored.
    """
    for name in results[0]:
        of_point = [one[name] for one in results]
        _expect_each_example(name, batches, of_point)
        _expect_one_form(name, of_point)
        _expect_one_length(batches, of_point)


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
    found = verdict.difference
    if found is not None:
        raise UnsupportedError(
            f"example {example} of the source has other numbers alone than with {found.padding} positions of padding: at "
            f"{found.name!r} they lie {found.size:.2g} apart, relatively, where rounding explains {found.limit:.2g}. window puts "
            "examples together by length: expected a model to which padding does not count, as it does where positions are "
            "numbered from the left and the tokenizer pads there; pass other positions in call=..., pad on the right, or leave "
            "window out"
        )
    return verdict.told


def _expect_each_example(name: str, batches: Sequence[TokenBatch], results: Sequence[EmbeddingGradients]) -> None:
    for batch, one in zip(batches, results, strict=True):
        if len(one.values) != len(batch):
            raise UnsupportedError(
                f"the point {name!r} has the shape {one.values.shape} in a batch of {len(batch)} examples, which share it, and "
                "window puts other examples together: expected an entry for each example, as a role such as at='position' "
                "gives it; or leave window out"
            )


def _expect_one_form(name: str, results: Sequence[EmbeddingGradients]) -> None:
    shapes = list({one.values.shape[1:]: one.values.shape for one in results}.values())
    if len(shapes) > 1 and not follows_positions(results):
        raise UnsupportedError(
            f"the point {name!r} has the shapes {shapes[0]} and {shapes[1]}, which follow the batches' lengths in an axis that "
            "is not the second of three: expected (example, position, …), to put the results of batches by length in order; "
            "leave window out"
        )


def _expect_one_length(batches: Sequence[TokenBatch], results: Sequence[EmbeddingGradients]) -> None:
    """Check that the output does not have one number for each position, padding included."""
    shapes = [one.provenance["output_shape"] for one in results]
    as_long = [
        shape is not None and len(shape) == 2 and shape[1] == batch.shape[1]
        for shape, batch in zip(shapes, batches, strict=True)
    ]
    found = sorted({tuple(shape[1:]): tuple(shape) for shape in shapes if shape is not None}.values())
    if all(as_long) and len(found) > 1:
        raise UnsupportedError(
            f"the output that the objective reads has the shapes {found[0]} and {found[1]} in batches of several lengths, a "
            "number for each position, those of padding too: an example's numbers depend on who is in its batch; leave window "
            "out"
        )
