"""One side of a bisection: its values and gradients at many points of a forward pass, its weights and its modules."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from embgrad.backend.protocol import Backend, Call, PointValues, Request, Weight
from embgrad.backend.registry import bind
from embgrad.checkpoints.load_bert import LAYER_MODULES
from embgrad.comparison.bisection.records import LAYER, Reading
from embgrad.engine.call_errors import explain_forward
from embgrad.engine.descent import with_certain_roles
from embgrad.engine.options import GradientOptions
from embgrad.engine.probe import order_of, with_layout, word_resolved
from embgrad.engine.question import Question
from embgrad.engine.weights import weights_of
from embgrad.errors import AmbiguousPointError, EmbgradError, NoGradientError, ObjectiveError, UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.axes import Arrangement, axis_of_examples, of_lookup, of_module
from embgrad.model_points.points import OUTPUT, WORD, Point
from embgrad.objectives.objectives import as_objective

__all__ = ["Reader", "Side"]

#: The module in a BERT's layer that contains query, key and value, by Hugging Face's name.
ATTENTION: Final = "attention.self"

#: The modules of a BERT outside its layers that compute the same in each framework.
OUTER: Final = ("embeddings.LayerNorm", "pooler.dense")

#: The time at which the model itself ends: after every module that it calls.
END: Final = float("inf")


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
        size: the magnitude of the numbers that the objective's values are computed from, see `embgrad.backend.Response`; 0 if
            it is not known.
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
        self._question = Question(self._bound, batch, (as_objective(objective),), GradientOptions(()))
        with explain_forward(self._bound, batch):
            self.points = {point.key: point for point in self._seen()}
        self._turned = self._batch_axes()
        self._in_order = order_of(self._bound, batch, list(self.points.values())).is_batch
        self._arrangements: dict[str, Arrangement] = {}
        self.roles: dict[str, str] = {}
        for role, key in self._named().items():
            try:
                self._arrangements[key] = self._at_role(role, self.points[key])
            except UnsupportedError:  # the value is not (example, position, dim), and cannot be compared across models
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
        other._question = replace(self._question, batch=batch)
        return other

    def weights(self) -> list[Weight]:
        """Return the model's weights; an empty list if the backend does not support this."""
        return weights_of(self.model) if "weights" in self.backend.supports else []

    def values(self, keys: Sequence[str]) -> dict[str, Reading]:
        """Return the values at the points with these keys, without a backward pass."""
        request = Request(tuple(keys), call=self.call)
        run = self._bound.run(self.batch, request)
        self.dtype = run.compute_dtype
        return {key: self._reading(key, run.points[key]) for key in keys}

    def gradients(self, keys: Sequence[str]) -> dict[str, Reading]:
        """Return the values and gradients at the points with these keys, from one pass; store the objective's values.

        If the objective has no gradient, or is not finite, set `failure` and return the values alone.
        """
        request = self._question.request(tuple(keys), sized=True)
        try:
            run = self._question.run(request)
            (response,) = run.objectives
            self.objective, self.size = response.values, response.size
        except (NoGradientError, ObjectiveError) as failure:
            self.failure = failure
            return self.values(keys)
        self._question.warn(run.unused, run.masked_id)
        self.dtype = run.compute_dtype
        return {key: self._reading(key, run.points[key]) for key in keys}

    # Points, roles and axes

    def _seen(self) -> list[Point]:
        seen = self._bound.points(self.batch)
        try:
            resolved = word_resolved(self._bound, self.batch, seen)
        except AmbiguousPointError:  # then no lookup has the role `word`; the other roles are unaffected
            resolved = [_without_word(point) for point in seen]
        resolved = [
            _without_word(point) if point.lookup is not None and point.lookup.layout is None else point
            for point in resolved
        ]
        return with_certain_roles(self._bound, self.batch, seen, resolved)

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
            return of_module(role, point.shape, self.batch, axis, by_role=True, in_order=self._in_order)
        lookup = with_layout(self._bound, self.batch, point.lookup)
        axis = None if lookup.layout else axis
        return of_lookup(role, lookup, self.batch, axis, by_role=True, in_order=self._in_order)

    def _arrangement(self, key: str) -> Arrangement:
        if key not in self._arrangements:
            point = self.points[key]
            axis = self._turned.get(key)
            self._arrangements[key] = of_module(
                point.name, point.shape, self.batch, axis, by_role=False, in_order=self._in_order
            )
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


class Side:
    """One of two models that are compared, with its weights and module paths.

    Attributes:
        reader: reads the model's values and gradients.
        weights: the model's weights.
        canonical: the name in a BERT checkpoint, by module path.
        order: the indices of the other side's examples, in the order of this side's; None for the same order.
    """

    def __init__(
        self, reader: Reader, order: Sequence[int] | None = None, weights: Sequence[Weight] | None = None
    ) -> None:
        self.reader = reader
        self.weights = reader.weights() if weights is None else list(weights)
        self.canonical = _canonical(self.weights)
        self.order = order
        self._callers: dict[str, str] = {}
        # A path inside a module begins with that module's path and a mark; in a symbol's scopes the mark is an underscore.
        flat = any(weight.module and weight.name.startswith(f"{weight.module}_") for weight in self.weights)
        self._marks = (".", "/", "_") if flat else (".", "/")
        self._ended: dict[str, list[float]] = defaultdict(list)
        for point in reader.points.values():
            if point.side == OUTPUT:
                self._ended[point.path].append(point.time)
        self._ended[""].append(END)

    @property
    def points(self) -> Mapping[str, Point]:
        """The points that the forward pass reaches, by key."""
        return self.reader.points

    def between(self, low: float, high: float) -> list[Point]:
        """Return the inputs and outputs of modules that are computed after one time and up to another, in order."""
        inside = [point for point in self.points.values() if point.lookup is None and low < point.time <= high]
        return sorted((point for point in inside if not self._is_operation(point)), key=lambda point: point.time)

    def owned(self, low: float, high: float) -> list[Weight]:
        """Return the weights of those modules that end between two times."""
        return [
            weight
            for weight in self.weights
            if any(low < end <= high for end in self._ended.get(self.caller(weight), ()))
        ]

    def of_module(self, path: str) -> list[Weight]:
        """Return the weights of a module itself, and of its submodules that are not called."""
        return [weight for weight in self.weights if self.caller(weight) == path]

    def holder(self, path: str) -> str:
        """Return the path itself; for a scope in a compiled program, such as an operation's, the enclosing layer with weights."""
        scope = path
        while "/" in scope and not self.of_module(scope):
            scope = scope.rpartition("/")[0]
        return scope if "/" in path and self.of_module(scope) else path

    def around(self, path: str) -> str:
        """Return the path of the innermost called module that contains the module with this path; "" for the model itself."""
        fitting = [outer for outer in self._ended if path.startswith(tuple(outer + mark for mark in self._marks))]
        return max(fitting, key=len, default="")

    def known_in(self, path: str) -> list[str]:
        """Return the checkpoint names of the BERT modules that lie in the module with this path."""
        marked = tuple(path + mark for mark in self._marks)
        return [name for inner, name in self.canonical.items() if inner.startswith(marked)]

    def caller(self, weight: Weight) -> str:
        """Return the path of the innermost called module that contains the weight; "" for the model itself."""
        if weight.name not in self._callers:
            self._callers[weight.name] = self._caller(weight.module)
        return self._callers[weight.name]

    def _caller(self, path: str) -> str:
        if path in self._ended or not path:
            return path
        # A saved model's scopes have a prefix before the path that its weights' names contain.
        scopes = (scope for scope in self._ended if scope.endswith(f"/{path}"))
        return min(scopes, key=len, default=None) or self.around(path)

    def _is_operation(self, point: Point) -> bool:
        """Return whether the point belongs to an operation in a compiled program, whose recorded time has no meaning."""
        around = point.path.rpartition("/")[0]
        return "/" in point.path and around in self._ended and max(self._ended[around]) < point.time


def _canonical(weights: Sequence[Weight]) -> dict[str, str]:
    """Return the name of a BERT's module, by module path."""
    names_of: dict[str, set[str]] = defaultdict(set)
    for weight in weights:
        if weight.canonical is not None:
            names_of[weight.module].add(weight.canonical.rpartition(".")[0])
    unique = {path: next(iter(names)) for path, names in names_of.items() if len(names) == 1}
    known = {path: name for path, name in unique.items() if _is_known(name)}
    return {**known, **_attentions(names_of)}


def _is_known(name: str) -> bool:
    layer = LAYER.fullmatch(name)
    return name in OUTER or (layer is not None and layer[1] in LAYER_MODULES)


def _attentions(names_of: Mapping[str, set[str]]) -> dict[str, str]:
    """Return the modules that contain query, key and value: one module with all three weights, or the parent of three modules."""
    around: dict[str, set[str]] = defaultdict(set)
    for path, names in names_of.items():
        for name in names:
            module, _, leaf = name.rpartition(".")
            if module.endswith(ATTENTION) and leaf in ("query", "key", "value"):
                around[module].add(path if len(names) > 1 else path.rpartition(".")[0])
    return {next(iter(paths)): module for module, paths in around.items() if len(paths) == 1}


def _without_word(point: Point) -> Point:
    return replace(point, roles=tuple(role for role in point.roles if role != WORD))
