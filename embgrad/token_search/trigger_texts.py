"""The texts of a problem with the same tokens inserted in each, and the mean of the objective over them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np

from embgrad.attribution.passes import Passes
from embgrad.attribution.removal import columns_read
from embgrad.errors import BatchError
from embgrad.token_search.problem import Problem
from embgrad.token_search.resizing import movable
from embgrad.token_search.texts import Texts

__all__ = ["PLACES", "TriggerTexts", "trigger_texts"]

#: Where a trigger can be inserted: before the first position whose token may be replaced, or after the last one.
PLACES: Final = ("start", "end")

#: How many texts are held at a time; a pass runs fewer, see `Problem`.
MOST_TEXTS: Final = 1024


@dataclass(frozen=True)
class TriggerTexts:
    """The texts of a problem with room for a trigger in each.

    Attributes:
        problem: the problem; its objective reads each text where the token stands that it reads without a trigger.
        template: one text of each example, padded on the right, in which any ids stand in the place of a trigger.
        at: the position of the first token of the trigger, int64, shape (example,).
        length: the number of tokens of a trigger.
        stable: the examples whose texts without a trigger tokenise to their own ids, bool, shape (example,).
    """

    problem: Problem
    template: Texts
    at: np.ndarray
    length: int
    stable: np.ndarray

    @cached_property
    def everything(self) -> np.ndarray:
        """The indices of all examples."""
        return np.arange(len(self.template))

    def with_trigger(self, examples: np.ndarray, trigger: np.ndarray) -> Texts:
        """Return these examples with a trigger, or with one for each, int64, shape (length,) or (text, length)."""
        columns = self.at[examples][:, None] + np.arange(self.length)
        return self.template.substitute(examples, columns, np.broadcast_to(trigger, columns.shape))

    def objectives(self, trigger: np.ndarray) -> np.ndarray:
        """Return L of each example with a trigger, float64, shape (example,)."""
        values = np.empty(len(self.template))
        for some in self._blocks(self.everything, MOST_TEXTS):
            values[some] = self.problem.objectives(self.with_trigger(some, trigger))
        return values

    def means(self, examples: np.ndarray, triggers: np.ndarray) -> np.ndarray:
        """Return the mean of L over these examples with each trigger.

        Args:
            triggers: int64, shape (trigger, length).

        Returns:
            float64, shape (trigger,).
        """
        sums = np.zeros(len(triggers))
        for some in self._blocks(examples, MOST_TEXTS // len(triggers)):
            texts = self.with_trigger(np.tile(some, len(triggers)), np.repeat(triggers, len(some), 0))
            sums += self.problem.objectives(texts).reshape(len(triggers), -1).sum(1)
        return sums / len(examples)

    def gradient(self, examples: np.ndarray, trigger: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Return the mean of L over these examples with a trigger, its gradient at the trigger, and the rows of the trigger.

        Gradients of a few texts are in memory at a time.

        Returns:
            The mean; the gradient of the mean, float64, shape (length, dim); and the rows of the table, likewise.
        """
        total, gradient, rows = 0.0, np.zeros(0), np.zeros(0)
        for some in self._blocks(examples, MOST_TEXTS):
            for places, values, gradients, inputs in self.problem.each_gradient(self.with_trigger(some, trigger)):
                columns = self.at[some[places]][:, None] + np.arange(self.length)
                index = np.arange(len(places))[:, None], columns
                summed = gradients[index].sum(0, dtype=np.float64)
                gradient = gradient + summed if gradient.size else summed
                rows, total = inputs[0, columns[0]], total + float(values.sum())
        return total / len(examples), gradient / len(examples), rows.astype(np.float64)

    def first_stable(self, examples: np.ndarray, triggers: np.ndarray, most: int) -> np.ndarray:
        """Return the indices of the first triggers with which those of these examples tokenise to their own ids that do without.

        Args:
            triggers: int64, shape (trigger, length).
            most: how many to return at most.
        """
        examples = examples[self.stable[examples]]
        if self.problem.stability is None or not len(examples):
            return np.arange(min(most, len(triggers)))
        first = self.problem.stable(self.with_trigger(np.repeat(examples[:1], len(triggers)), triggers))
        kept: list[int] = []
        for number in np.flatnonzero(first).tolist():
            if len(kept) == most:
                break
            blocks = self._blocks(examples[1:], MOST_TEXTS)
            if all(self.problem.stable(self.with_trigger(some, triggers[number])).all() for some in blocks):
                kept.append(number)
        return np.array(kept, np.int64)

    def _blocks(self, examples: np.ndarray, size: int) -> Iterator[np.ndarray]:
        """Yield the examples in blocks of similar length, which run in few passes."""
        ordered = examples[np.argsort(self.template.real[examples].sum(1), kind="stable")]
        for start in range(0, len(ordered), max(1, size)):
            yield ordered[start : start + max(1, size)]


def trigger_texts(problem: Problem, length: int, place: str, stable: np.ndarray | None = None) -> TriggerTexts:
    """Return the texts of a problem with room for a trigger.

    Args:
        stable: see `TriggerTexts`; None to find out.
    """
    passes = movable(
        problem,
        "search each text by itself, by HotFlip or GCG, which keep its length",
    )
    original = problem.original
    empty = np.flatnonzero(~original.free.any(1))
    if empty.size:
        raise BatchError(
            f"example {empty[0]} has no position whose token may be replaced, which would be where a trigger stands: leave out "
            "such texts, or name positions of each example with positions=..."
        )
    order = np.argsort(~original.real, axis=1, kind="stable")  # padding last, also that on the left
    free = np.take_along_axis(original.free, order, 1)
    width = free.shape[1]
    at = free.argmax(1) if place == "start" else width - free[:, ::-1].argmax(1)
    neighbour = at if place == "start" else at - 1  # its type is that of the trigger
    columns = np.arange(width + length)
    inside = (columns >= at[:, None]) & (columns < at[:, None] + length)
    moved = np.where(inside, neighbour[:, None], np.where(columns < at[:, None], columns, columns - length))
    source = np.take_along_axis(order, moved, 1)[:, : int(original.real.sum(1).max()) + length]

    def arrange(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array, source, 1)

    template = Texts(
        original.examples,
        arrange(original.ids),
        arrange(original.real),
        None if original.types is None else arrange(original.types),
        inside[:, : source.shape[1]],
    )
    rank = np.argsort(order, axis=1)
    shifted = rank + np.where(rank >= at[:, None], length, 0)
    stable = problem.stable(original) if stable is None else stable
    return TriggerTexts(_reading(problem, passes, shifted), template, at, length, stable)


def _reading(problem: Problem, passes: Passes, moved: np.ndarray) -> Problem:
    """Return the problem whose objective reads the columns to which those that it reads move, (example, position).

    Columns that count back from the end of a text stay as they are.
    """
    columns = columns_read(passes)
    if columns is None:
        return problem
    objective = copy.copy(problem.objective)
    objective.position = np.where(columns < 0, columns, moved[np.arange(len(moved)), columns])  # type: ignore[union-attr]
    return replace(problem, objective=objective)
