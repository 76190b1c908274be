"""A reader of values and gradients at many points of a model's forward pass, for comparisons point by point."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embgrad.backend.objective_callback import Respond, objective_values
from embgrad.backend.protocol import Backend, Call, PointValues, Request, Weight
from embgrad.backend.registry import bind
from embgrad.engine.call_errors import explained_forward
from embgrad.engine.options import GradientOptions
from embgrad.engine.probe import with_layout, word_resolved
from embgrad.engine.task import Task
from embgrad.engine.weights import weights_of
from embgrad.errors import AmbiguousPointError, EmbgradError, NoGradientError, ObjectiveError, UnsupportedError
from embgrad.forward.axes import Arrangement, axis_of_examples, of_lookup, of_module
from embgrad.forward.points import WORD, Point
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.objectives import as_objective

__all__ = ["Reader", "Reading"]


@dataclass(frozen=True)
class Reading:
    """The value and the gradient at a point.

    Attributes:
        value: the value, (example, position, dim) at a role, otherwise in the tensor's own axes, with examples first if these
            can be determined.
        gradient: the gradient, in the same axes; None if the objective does not depend on the point, or if it was not requested.
        is_batch: whether the first two axes are the batch's examples and positions.
        shared: whether all examples share one tensor, whose gradient is then the sum over all of them: (1, position, dim).
    """

    value: np.ndarray
    gradient: np.ndarray | None
    is_batch: bool
    shared: bool = False

    @property
    def largest(self) -> float | None:
        """The largest absolute entry of the gradient; None if there is no gradient."""
        return None if self.gradient is None else float(np.abs(self.gradient).max(initial=0.0))


class Reader:
    """The readings of one model on one batch.

    Args:
        model: as in `gradients`.
        batch: the batch that the model runs on.
        objective: as in `gradients`.
        call: a function that calls the model, as in `gradients`.

    Attributes:
        original_objective: the objective as the user passed it.
        points: the points that a forward pass reaches, by key.
        roles: the keys of the points that can be read at a role, by role.
        objective: the objective's values, after gradients were read; None if it has none.
        size: the magnitude of the numbers that the objective's values are computed from, see `Respond`; 0 if it is not known.
        dtype: the dtype in which the model computed, after something was read.
        failure: the reason why there are no gradients; None if there are.
    """

    def __init__(self, model: Any, batch: TokenBatch, objective: Any, call: Call | None = None) -> None:
        self._bound = bind(model, call)
        self.model = self._bound.model
        self.batch = batch
        self.original_objective = objective
        self.call = call
        self.backend: Backend = self._bound.backend
        self._task = Task(self._bound, as_objective(objective), GradientOptions(()))
        with explained_forward(self._bound, batch):
            self.points = {point.key: point for point in self._seen()}
        self._turned = self._batch_axes()
        self._arrangements: dict[str, Arrangement] = {}
        self.roles: dict[str, str] = {}
        for role, key in self._named().items():
            try:
                self._arrangements[key] = self._at_role(role, self.points[key])
            except (
                UnsupportedError
            ):  # the value is not (example, position, dim), so it cannot be compared with that of another model
                continue
            self.roles[role] = key
        self.objective: np.ndarray | None = None
        self.size = 0.0
        self.dtype = "float32"
        self.failure: EmbgradError | None = None

    def on(self, batch: TokenBatch) -> Reader:
        """Return a reader of another batch with as many examples and positions, in which the points have the same keys."""
        other = copy.copy(self)
        other.batch = batch
        return other

    def weights(self) -> list[Weight]:
        """Return the model's weights; an empty list if the backend does not support this."""
        return weights_of(self.model) if "weights" in self.backend.supports else []

    def values(self, keys: Sequence[str]) -> dict[str, Reading]:
        """Return the values at the points with these keys, without a backward pass."""
        request = Request(tuple(keys), lambda outputs: [], call=self.call)
        run = self._bound.run(self.batch, request)
        self.dtype = run.compute_dtype
        return {key: self._reading(key, run.points[key]) for key in keys}

    def gradients(self, keys: Sequence[str]) -> dict[str, Reading]:
        """Return the values and gradients at the points with these keys, from one pass; store the objective's values.

        If the objective has no gradient, or is not finite, set `failure` and return the values alone.
        """
        respond = self._task.respond(self.batch, sized=True)
        request = replace(self._task.request(respond, tuple(keys)), several=False)
        try:
            run = self._bound.run(self.batch, request)
            self.objective = objective_values(respond, run)
            self.size = respond.size if isinstance(respond, Respond) else 0.0
        except (NoGradientError, ObjectiveError) as failure:
            self.failure = failure
            return self.values(keys)
        self._task.warn(self.batch, run.unused, run.masked_id)
        self.dtype = run.compute_dtype
        return {key: self._reading(key, run.points[key]) for key in keys}

    # Points, roles and axes

    def _seen(self) -> list[Point]:
        seen = self._bound.points(self.batch)
        try:
            return word_resolved(self._bound, self.batch, seen)
        except AmbiguousPointError:  # then no lookup has the role `word`; the other roles are unaffected
            return [replace(point, roles=tuple(role for role in point.roles if role != WORD)) for point in seen]

    def _named(self) -> dict[str, str]:
        """Return the points' keys by role; several lookups of the ids are `word#0`, `word#1`, …"""
        words = [key for key, point in self.points.items() if WORD in point.roles]
        keys = {f"{WORD}#{number}": key for number, key in enumerate(words)} if len(words) > 1 else {}
        for key, point in self.points.items():
            for role in point.roles:
                if role != WORD or len(words) == 1:
                    keys.setdefault(role, key)
        return keys

    def _batch_axes(self) -> Mapping[str, int]:
        """Return, by key, which of the first two axes holds the examples, if there are as many examples as positions.

        A forward pass with one example less determines it for all points at once.
        """
        examples, positions = self.batch.shape
        if examples != positions or examples == 1:
            return {}
        fewer = self._bound.points(self.batch[:-1])
        axes = {point.key: axis_of_examples(point.shape, examples - 1, positions) for point in fewer}
        return {key: axis for key, axis in axes.items() if axis is not None}

    def _at_role(self, role: str, point: Point) -> Arrangement:
        axis = self._turned.get(point.key)
        if point.lookup is None:
            self._bound.expect_ability("modules")
            return of_module(role, point.shape, self.batch, axis, by_role=True)
        lookup = with_layout(self._bound, self.batch, point.lookup)
        return of_lookup(role, lookup, self.batch, None if lookup.layout else axis, by_role=True)

    def _arrangement(self, key: str) -> Arrangement:
        if key not in self._arrangements:
            point = self.points[key]
            axis = self._turned.get(key)
            self._arrangements[key] = of_module(point.name, point.shape, self.batch, axis, by_role=False)
        return self._arrangements[key]

    def _reading(self, key: str, read: PointValues) -> Reading:
        arrangement = self._arrangement(key)
        gradient = read.gradients[0] if read.gradients else None
        if gradient is not None:
            gradient = (
                gradient.reshape(1, *arrangement.shape[1:])
                if arrangement.shared
                else arrangement.to_user_axes(gradient)
            )
        return Reading(arrangement.to_user_axes(read.activation), gradient, arrangement.is_batch, arrangement.shared)
