"""The objective of each batch of a stream: cut from one for the whole source, or made from the labels of the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.errors import ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import Objective, Scalar, as_objective

__all__ = ["Labelled", "Objectives", "PerBatch"]


@dataclass(frozen=True)
class Labelled:
    """An objective for `embgrad.stream` whose arguments come with the source: each item is (text, label).

    Args:
        make: a function that takes the labels of a batch, a list with one entry an example, and returns the objective:
            `CrossEntropy` itself, for example, or `lambda labels: Margin([a for a, b in labels], [b for a, b in labels])`.
            A label may be any object.
        with_batch: whether the batch is passed too, as `make(labels, batch)`, for example to pad labels of positions.
    """

    make: Callable[..., Any]
    with_batch: bool = False

    def __post_init__(self) -> None:
        _expect_function(self.make, "Labelled", "the labels of a batch")


@dataclass(frozen=True)
class PerBatch:
    """An objective for `embgrad.stream` that is made from each batch, for example with the next tokens as labels.

    Args:
        make: a function that takes a TokenBatch and returns the objective.
    """

    make: Callable[[TokenBatch], Any]

    def __post_init__(self) -> None:
        _expect_function(self.make, "PerBatch", "a batch")


class Objectives:
    """The objectives of a source's examples.

    Args:
        argument: an objective as for `embgrad.gradients`, whose arguments with one entry an example cover the whole source; or
            `Labelled`, or `PerBatch`.

    Attributes:
        argument: the objective, as it was passed.
        labelled: whether each item of the source carries a label.
        count: the number of examples for which the arguments have entries; None where there is no such argument.

    Raises:
        ObjectiveError: `argument` is no objective, or its arguments are for different numbers of examples.
    """

    def __init__(self, argument: Any) -> None:
        if isinstance(argument, type) and issubclass(argument, (Labelled, PerBatch)):
            raise ObjectiveError(
                f"the objective is the class {argument.__name__}: expected an instance; write {argument.__name__}(CrossEntropy)"
            )
        self.argument = argument
        self.labelled = isinstance(argument, Labelled)
        self.count = None if isinstance(argument, (Labelled, PerBatch)) else _count(as_objective(argument))

    @property
    def fixed(self) -> Any:
        """The objective, which can be checked before the source is read; None where it is made for each batch."""
        return None if isinstance(self.argument, (Labelled, PerBatch)) else self.argument

    def of(self, examples: np.ndarray, batch: TokenBatch, labels: Sequence[Any] | None) -> Any:
        """Return the objective of some examples, as for `embgrad.gradients`.

        Args:
            examples: the numbers of the examples in the source.
            batch: the examples.
            labels: the labels of the examples, where the source has labels.

        Raises:
            ObjectiveError: the arguments are for fewer examples, or the user's function returned no objective.
        """
        if isinstance(self.argument, Labelled):
            return _check(self.argument.make(labels, batch) if self.argument.with_batch else self.argument.make(labels))
        if isinstance(self.argument, PerBatch):
            return _check(self.argument.make(batch))
        if self.count is None:
            return self.argument
        if examples.max() >= self.count:
            raise ObjectiveError(
                f"the objective's arguments have {self.count} entries, but the source has more examples. Pass one entry for each "
                "example or, where labels come with the texts, embgrad.Labelled(embgrad.CrossEntropy) and items of (text, label)"
            )
        return self.argument.take(examples, self.count)

    def expect_all_used(self, examples: int) -> None:
        """Check that the arguments are not for more examples than the source had.

        Raises:
            ObjectiveError: the arguments have entries for more examples.
        """
        if self.count is not None and examples < self.count:
            raise ObjectiveError(
                f"the objective's arguments have {self.count} entries, but the source ended after {examples} examples: pass one "
                "entry for each example, in the order of the source"
            )


def _count(objective: Any) -> int | None:
    """Return the number of examples that the arguments are for, or None where no argument has one entry an example."""
    if not isinstance(objective, Objective):
        return None
    counts = {}
    for name in objective._argument_names():
        value = getattr(objective, name)
        if isinstance(value, np.ndarray) and value.ndim and not len(objective._cut(name, slice(0, 0), len(value))):
            counts[name] = len(value)
    if len(set(counts.values())) > 1:
        raise ObjectiveError(
            f"the objective's arguments are for different numbers of examples, {counts}: expected one entry an example in each"
        )
    return next(iter(counts.values()), None)


def _check(objective: Any) -> Any:
    if isinstance(objective, (Labelled, PerBatch)):
        raise ObjectiveError(f"the function returned {brief(objective)}: expected an objective for one batch")
    if not isinstance(objective, Scalar):
        as_objective(objective)  # raises where it is no objective
    return objective


def _expect_function(make: Any, name: str, argument: str) -> None:
    if isinstance(make, (Objective, Scalar)) or not callable(make):
        raise ObjectiveError(
            f"{name} received {brief(make)}: expected a function that takes {argument} and returns an objective, such as "
            + ("embgrad.CrossEntropy itself" if name == "Labelled" else "lambda batch: embgrad.Logit(0)")
        )
