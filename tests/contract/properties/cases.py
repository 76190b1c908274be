"""A generated case: a model, a batch and an objective, for a framework and for the closed form."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

import embgrad
from tests.contract.properties.closed_form import STEP, Batch, Forward, Kept
from tests.contract.properties.goals import Goal
from tests.contract.properties.rounding import allowed
from tests.contract.properties.specs import Spec


def built(framework: str, spec: Spec) -> Any:
    return import_module(f"tests.contract.properties.model_{framework}").build(spec)


@dataclass(frozen=True)
class Case:
    """A model, a batch and an objective."""

    spec: Spec
    batch: Batch
    goal: Goal

    @property
    def changeable(self) -> list[str]:
        """Return the points whose values differ between examples."""
        return ["word", *(f"blocks.{number}" for number in range(len(self.spec.blocks)))]

    @property
    def points(self) -> list[str]:
        """Return all points that have a gradient for each example."""
        # A row of positions that all examples share moves them all, which differs where examples interact.
        tables = {"position": self.spec.positions and not self.spec.mixes, "type": self.spec.types}
        return [*(name for name, exists in tables.items() if exists), *self.changeable]

    def tokens(self) -> embgrad.TokenBatch:
        return embgrad.TokenBatch(self.batch.ids, self.batch.mask, self.batch.types)

    def gradients(self, model: Any, at: Any = "word", **options: Any) -> Any:
        return embgrad.gradients(model, self.tokens(), self.goal.objective(), at=at, **options)

    def take(self, examples: Any) -> Case:
        return replace(self, batch=self.batch.take(examples), goal=self.goal.take(examples))

    def closed_form(self, only: int | None = None, **changes: Mapping[str, np.ndarray]) -> Answer:
        """Return the expected arrays.

        Args:
            only: the example whose L is differentiated; None for the sum of all.
            changes: "override" and "add", each an array by point.
        """
        return Answer(self, only, changes)


class Answer:
    """The closed form of a case; see `Case.closed_form`.

    An entry is the gradient at a point, by its name; the value there, by "at word" and so on; the gradient of the table through
    its lookup, "table", and through the head, "head"; and "objective".
    """

    def __init__(self, case: Case, only: int | None, changes: Mapping[str, Any]) -> None:
        self._case, self._only, self._changes = case, only, changes
        self._arrays: dict[str, np.ndarray] = {}
        self._allowed: dict[str, float] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            self._arrays[name] = self._evaluated(name, np.asarray)
        return self._arrays[name]

    def allowed(self, name: str) -> float:
        """Return the largest error of an entry that rounding explains."""
        if name not in self._allowed:
            case = self._case
            evaluate = functools.partial(self._evaluated, name)
            self._allowed[name] = allowed(case.spec, case.batch.ids.shape[1], self[name], evaluate)
        return self._allowed[name]

    def _evaluated(self, name: str, kept: Kept) -> np.ndarray:
        spec, batch = self._case.spec, self._case.batch
        if name == "table":
            table = np.zeros((spec.vocab, spec.width))
            np.add.at(table, batch.ids, self._evaluated("word", kept))
            return table
        if name == "head" and spec.head != "tied":
            return np.zeros((spec.vocab, spec.width))
        plain = Forward(spec, batch, kept=kept, **self._changes)
        if name == "objective":
            return np.asarray(self._case.goal.values(plain.output, batch.real)[0])
        if name.startswith("at "):
            return np.asarray(plain.activations[name.removeprefix("at ")][0])
        shape = plain.activations[name].shape[1:]
        steps = np.eye(int(np.prod(shape))).reshape(-1, *shape) * 1j * STEP
        moved = Forward(spec, batch, at=name, steps=steps, kept=kept, **self._changes)
        slopes = self._case.goal.values(moved.output, batch.real).imag / STEP
        return np.asarray((slopes.sum(1) if self._only is None else slopes[:, self._only]).reshape(shape))


def close(actual: Any, expected: Any, allowed: float, name: str) -> None:
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    assert actual.shape == expected.shape, f"{name} has the shape {actual.shape}: expected {expected.shape}"
    error = float(np.abs(actual - expected).max(initial=0.0))
    # NaN compares false.
    assert error <= allowed, f"{name} is off by {error:.3g}, with {allowed:.3g} allowed: {actual} instead of {expected}"


def close_results(case: Case, actual: Any, expected: Any, name: str) -> None:
    """Assert that two results at all points are equal within the rounding of both."""
    limits = case.closed_form().allowed
    for point in case.points:
        one, other = actual[point], expected[point]
        close(one.values, other.values, 2 * limits(point), f"{name}: values at {point}")
        close(one.activations, other.activations, 2 * limits(f"at {point}"), f"{name}: value at {point}")
        close(one.objective, other.objective, 2 * limits("objective"), f"{name}: objective")
        assert one.values.dtype == other.values.dtype


def close_to(answer: Answer, point: str, result: Any) -> None:
    """Assert that a result at a point is the closed form's."""
    close(result.values, answer[point], answer.allowed(point), f"the gradient at {point}")
    close(result.activations, answer[f"at {point}"], answer.allowed(f"at {point}"), f"the value at {point}")
    close(result.objective, answer["objective"], answer.allowed("objective"), "the objective")
