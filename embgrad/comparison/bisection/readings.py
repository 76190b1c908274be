"""Reads values and gradients at many points of one model's forward pass, for who compares models point by point."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embgrad.backend.objective_callback import Respond, objective_values
from embgrad.backend.protocol import Backend, Call, PointValues, Request, Weight
from embgrad.engine.bound_model import bind
from embgrad.engine.call_errors import explained_errors
from embgrad.engine.options import GradientOptions
from embgrad.engine.probe import with_layout, word_resolved
from embgrad.engine.task import Task
from embgrad.engine.weights import weights_of
from embgrad.errors import AmbiguousPointError, EmbgradError, NoGradientError, ObjectiveError, UnsupportedError
from embgrad.forward.axes import Arrangement, axis_of_examples, of_lookup, of_module
from embgrad.forward.points import WORD, Point
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.native import as_objective

__all__ = ["Reader", "Reading"]


@dataclass(frozen=True)
class Reading:
    """What was read at a point.

    Attributes:
        value: the value, (example, position, dim) at a role, else in the tensor's own axes, examples first if that can be told.
        gradient: likewise; None where the graph has no way from the objective to the point, or where it was not asked for.
        is_batch: whether the first two axes are the batch's examples and positions.
        shared: whether all examples share one tensor, whose gradient is then that of all of them: (1, position, dim).
    """

    value: np.ndarray
    gradient: np.ndarray | None
    is_batch: bool
    shared: bool = False

    @property
    def largest(self) -> float | None:
        """The largest entry of the gradient; None where there is none."""
        return None if self.gradient is None else float(np.abs(self.gradient).max(initial=0.0))


class Reader:
    """One model on one batch.

    Args:
        model: as in `gradients`.
        batch: what it is run on.
        objective: as in `gradients`.
        call: calls it in another way.

    Attributes:
        given: the objective as it was given.
        points: what a forward pass reaches, by key.
        roles: by role the keys of the points that can be read there.
        objective: the objective's values, once gradients were read; None where it has none.
        size: likewise of what they are made of, see `Respond`; 0 where that is not known.
        dtype: the dtype in which the model computed, once something was read.
        failure: why there are no gradients; None where there are.
    """

    def __init__(self, model: Any, batch: TokenBatch, objective: Any, call: Call | None = None) -> None:
        self._bound = bind(model, call)
        self.model = self._bound.model
        self.batch = batch
        self.given = objective
        self.call = call
        self.backend: Backend = self._bound.backend
        self._task = Task(self._bound, as_objective(objective), GradientOptions(()))
        with explained_errors(self._bound, batch):
            self.points = {point.key: point for point in self._seen()}
        self._turned = self._batch_axes()
        self._places: dict[str, Arrangement] = {}
        self.roles: dict[str, str] = {}
        for role, key in self._named().items():
            try:
                self._places[key] = self._at_role(role, self.points[key])
            except (
                UnsupportedError
            ):  # it is not (example, position, dim) in this model, and so not what others have there
                continue
            self.roles[role] = key
        self.objective: np.ndarray | None = None
        self.size = 0.0
        self.dtype = "float32"
        self.failure: EmbgradError | None = None

    def on(self, batch: TokenBatch) -> Reader:
        """The same for another batch of as many examples and positions, whose points are where they were."""
        other = copy.copy(self)
        other.batch = batch
        return other

    def weights(self) -> list[Weight]:
        """The model's weights; none where the backend cannot tell them."""
        return weights_of(self.model) if "weights" in self.backend.supports else []

    def values(self, keys: Sequence[str]) -> dict[str, Reading]:
        """What goes on at the points with these keys; nothing is pulled back."""
        request = Request(tuple(keys), lambda outputs: [], call=self.call)
        run = self._bound.run(self.batch, request)
        self.dtype = run.compute_dtype
        return {key: self._reading(key, run.points[key]) for key in keys}

    def gradients(self, keys: Sequence[str]) -> dict[str, Reading]:
        """The values and the gradients at the points with these keys, from one pass, and the objective.

        Where the objective cannot be pulled back, or is not finite, `failure` says so, and there are values alone.
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

    # Where things are

    def _seen(self) -> list[Point]:
        seen = self._bound.points(self.batch)
        try:
            return word_resolved(self._bound, self.batch, seen)
        except AmbiguousPointError:  # then no lookup is `word`, and all others are what they are
            return [replace(point, roles=tuple(role for role in point.roles if role != WORD)) for point in seen]

    def _named(self) -> dict[str, str]:
        """By role the point's key; several lookups of the ids are `word#0`, `word#1`, …"""
        words = [key for key, point in self.points.items() if WORD in point.roles]
        found = {f"{WORD}#{number}": key for number, key in enumerate(words)} if len(words) > 1 else {}
        for key, point in self.points.items():
            for role in point.roles:
                if role != WORD or len(words) == 1:
                    found.setdefault(role, key)
        return found

    def _batch_axes(self) -> Mapping[str, int]:
        """Where there are as many examples as positions: by key which of the first two axes is the examples.

        A forward pass with one example less shows it, for all points at once.
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

    def _place(self, key: str) -> Arrangement:
        if key not in self._places:
            point = self.points[key]
            axis = self._turned.get(key)
            self._places[key] = of_module(point.name, point.shape, self.batch, axis, by_role=False)
        return self._places[key]

    def _reading(self, key: str, read: PointValues) -> Reading:
        place = self._place(key)
        gradient = read.gradients[0] if read.gradients else None
        if gradient is not None:
            gradient = gradient.reshape(1, *place.shape[1:]) if place.shared else place.seen(gradient)
        return Reading(place.seen(read.activation), gradient, place.is_batch, place.shared)
