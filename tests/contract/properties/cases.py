"""A generated case: a model, a batch and an objective; asked of a framework, and of the closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

import embgrad
from tests.contract.properties.closed_form import Batch, Forward, as_it_is
from tests.contract.properties.goals import Goal
from tests.contract.properties.rounding import allowed
from tests.contract.properties.specs import FUNCTIONS, Spec
from tests.contract.properties.steps import Kept


def built(framework: str, spec: Spec) -> Any:
    return import_module(f"tests.contract.properties.model_{framework}").build(spec)


@dataclass(frozen=True)
class Case:
    """What is asked: of a model, on a batch, for an objective."""

    spec: Spec
    batch: Batch
    goal: Goal

    @property
    def blocks(self) -> list[str]:
        """The blocks' names in the closed form, and where they are modules in the framework."""
        return [f"blocks.{number}" for number in range(len(self.spec.blocks))]

    @property
    def changeable(self) -> list[str]:
        """Points of every framework, by the closed form's names, whose values differ from example to example."""
        return ["word", *([] if self.spec.form == FUNCTIONS else self.blocks)]

    @property
    def points(self) -> list[str]:
        """All points of every framework. A row of positions that all examples share moves them all: where examples meet,
        that is another question than each example's own."""
        tables = {"position": self.spec.positions and not self.spec.meets, "type": self.spec.types}
        return [*(name for name, there in tables.items() if there), *self.changeable]

    def tokens(self) -> embgrad.TokenBatch:
        return embgrad.TokenBatch(self.batch.ids, self.batch.mask, self.batch.types)

    def gradients(self, model: Any, at: Any = "word", **options: Any) -> Any:
        """What `embgrad.gradients` gives for a model of the case's."""
        return embgrad.gradients(model, self.tokens(), self.goal.given(), at=at, **options)

    def take(self, examples: Any) -> Case:
        """The case of some of the examples, by a slice or an order."""
        return replace(self, batch=self.batch.take(examples), goal=self.goal.take(examples))

    def closed_form(self, only: int | None = None, **changes: Mapping[str, np.ndarray]) -> Answer:
        """What is right.

        Args:
            only: the example whose L alone is pulled back; None for the sum of all.
            changes: "override" and "add", each by point an array.
        """
        return Answer(self, only, changes)


@dataclass(frozen=True)
class Answer:
    """The closed form of a case.

    Attributes:
        only: the example whose L alone is pulled back; None for the sum of all.
        changes: as `Forward` has them.
    """

    case: Case
    only: int | None
    changes: Mapping[str, Mapping[str, np.ndarray]]

    @cached_property
    def arrays(self) -> dict[str, np.ndarray]:
        """By point the gradient, and by "at word" and so on the value there; by "table" and "head" the gradient of the table on
        either way; "objective"."""
        return self._evaluated(as_it_is)

    @cached_property
    def allowed(self) -> dict[str, float]:
        """By the same names, how far an entry may be off by rounding."""
        return allowed(self.case.spec, self.case.batch.ids.shape[1], self._evaluated)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def _evaluated(self, kept: Kept) -> dict[str, np.ndarray]:
        forward = Forward(self.case.spec, self.case.batch, kept=kept, **self.changes)  # type: ignore[arg-type]
        objective, cotangent = self.case.goal.evaluate(forward.output, self.case.batch.real)
        if self.only is not None:
            own = np.arange(len(cotangent)) == self.only
            cotangent = cotangent * own.reshape(-1, *[1] * (cotangent.ndim - 1))
        values = {f"at {name}": value for name, value in forward.activations.items()}
        return {"objective": objective, **values, **forward.pull_back(kept(cotangent))}


def close(found: Any, expected: Any, allowed: float, name: str) -> None:
    """Assert that no entry is off by more than is allowed."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape, f"{name} has the shape {found.shape}: expected {expected.shape}"
    off = float(np.abs(found - expected).max(initial=0.0))
    # Of NaN this is false.
    assert off <= allowed, f"{name} is off by {off:.3g}, with {allowed:.3g} allowed: {found} instead of {expected}"
