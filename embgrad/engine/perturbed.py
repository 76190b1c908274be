"""`embgrad.perturbed`: arrays that are added at points inside the user's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from embgrad.backend.protocol import BoundModel
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.engine.descent import with_roles_of_user_pass
from embgrad.engine.interventions import check_option, prepare
from embgrad.engine.user_passes import (
    PassAxes,
    UserPasses,
    batch_of,
    expect_known,
    expect_one_model,
    only_children_called,
)
from embgrad.errors import AmbiguousPointError, PointError, PointNotReachedError, brief, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.names import point_of
from embgrad.model_points.points import WORD, Point
from embgrad.model_points.recorder import PassRecorder

__all__ = ["Perturbation", "perturbed"]


class Perturbation:
    """The arrays that `perturbed` adds in the user's passes.

    Attributes:
        names: the points' names, as the user wrote them.
        passes: the number of forward passes that were perturbed.
    """

    def __init__(self, bound: BoundModel, add: Mapping[str, Any]) -> None:
        self.names = tuple(add)
        self.passes = 0
        self._model = type(bound.model).__name__
        self._add = add
        self._points: dict[str, tuple[str, bool]] | None = (
            None  # by key the name of a point, and whether that is a role
        )
        self._axes = {
            name: PassAxes(
                name, "Perturb a batch with more examples than positions first, or add the same at all positions"
            )
            for name in add
        }
        self._outside: dict[str, None] = {}

    def __repr__(self) -> str:
        return f"Perturbation(of {quote(self.names)}, {self.passes} forward passes)"

    def close(self, *, raised: bool) -> None:
        """See `UserPassListener`.

        Raises:
            PointNotReachedError: only children of the model were called, and nothing was added.
        """
        if self._outside and not self.passes and not raised:
            when, call = "the perturbation was open", "embgrad.perturbed(model.{}, ...)"
            raise PointNotReachedError(only_children_called(self._model, self._outside, when, "perturb", call))

    # Called by a backend

    def begin(self, arguments: Mapping[str, Any], discover: Callable[[TokenBatch], Sequence[Point]]) -> PassRecorder:
        """See `embgrad.backend.PassListener`."""
        batch = batch_of(arguments, word=WORD in self._add)
        if self._points is None:
            self._points = self._locate(batch, discover, arguments)
        return PassRecorder(batch, [*self._points, *([WORD] if WORD in self._add else ())])

    def addition(self, watch: PassRecorder, key: str, value: np.ndarray) -> np.ndarray:
        """See `embgrad.backend.Perturber`."""
        name, by_role = (self._points or {}).get(key, (WORD, True))
        record, axes = watch.record_of(key), self._axes[name]
        arrangement = axes.arrangement(record, value.shape, watch.batch, by_role=by_role, lookups=watch.lookups)
        array = prepare("add", name, self._add[name], arrangement)(value)
        if np.isnan(array).any():
            raise PointError(
                f"add[{name!r}] is NaN in {int(np.isnan(array).sum())} of {array.size} entries: expected numbers. A gradient of "
                "zeros has no direction; divide by its norm only where that is not zero"
            )
        return array

    def end(self, watch: PassRecorder, values: Mapping[str, np.ndarray], compute_dtype: str) -> None:
        """See `embgrad.backend.PassListener`."""
        resolved = watch.resolve()
        keys = {name: key for key, (name, _) in (self._points or {}).items()}
        _expect_each_once(keys | ({WORD: resolved[WORD]} if WORD in self._add else {}))
        self.passes += 1

    def outside(self, path: str) -> None:
        """See `embgrad.backend.PassListener`."""
        self._outside[path] = None

    def _locate(
        self, batch: TokenBatch, discover: Callable[[TokenBatch], Sequence[Point]], arguments: Mapping[str, Any]
    ) -> dict[str, tuple[str, bool]]:
        """Return by key the names of the points other than `word`, which needs no pass in advance."""
        names = [name for name in self.names if name != WORD]
        if not names:
            return {}
        reached = with_roles_of_user_pass(discover(batch), names, arguments)
        words = [point for point in reached if WORD in point.roles]
        located = {name: point_of(name, reached, words, batch) for name in names}
        _expect_each_once({name: point.key for name, (point, _) in located.items()})
        for name in names:
            self._axes[name].look_at(reached, batch)
        return {point.key: (name, by_role) for name, (point, by_role) in located.items()}


def _expect_each_once(keys: Mapping[str, str]) -> None:
    """Refuse two names of one point."""
    twice = [name for name, key in keys.items() if list(keys.values()).count(key) > 1]
    if len(twice) > 1:
        raise AmbiguousPointError(f"add names one point several times, as {quote(twice)}: name it once")


class _Perturbed(UserPasses[Perturbation]):
    """A perturbation, open from its entry to its exit, or until nothing refers to it any more."""

    opened_as = "with embgrad.perturbed(model, ...):"

    def __init__(self, bound: BoundModel, perturbation: Perturbation) -> None:
        name = f"perturbation of {quote(perturbation.names)}"
        super().__init__(name, perturbation, bound.backend.perturb(bound.model, perturbation))


@explain_arguments
def perturbed(model: Any, add: Mapping[str, Any]) -> AbstractContextManager[Perturbation]:
    """Add arrays at points of the user's own forward passes, as a context manager: for adversarial training.

    with embgrad.perturbed(model, {"word": delta}):
        loss(model(ids), labels).backward()
    optimiser.step()

    Each pass of this thread through this model, with or without gradients, continues with the value plus the array; the gradient
    flows on to the weights as if the model added a constant. Everything else is as without it: modes, random numbers, the graph.
    An array belongs to the occurrences of the batch's tokens, (example, position, dim), and not to rows of the table: an id that
    occurs twice has two perturbations. `capture` may be open at the same time, in either order: its `activations` are what goes
    on, the array included, and its gradient at the point is the gradient with respect to the array.

    Passes of `embgrad.gradients` and other functions of embgrad are not perturbed, nor are calls of the model by a function in
    `add`. A point other than "word" takes one more forward pass, in evaluation mode, at the first call of the model.

    Args:
        model: a model of PyTorch, TensorFlow, Keras or MXNet Gluon.
        add: by the names of points, as in `capture`, arrays that broadcast to the point's shape, (example, position, dim), or
            functions that take a copy of the value, (example, position, dim), and return such an array. Arrays are constants,
            cast to the value's dtype: no gradient is stored in a tensor that is passed.

    Returns:
        A context manager; it yields an object whose `passes` counts the perturbed forward passes.

    Raises:
        BackendError: no backend takes the model.
        PointError: there is no such point, a pass does not reach it, two names mean one point, an array does not fit the point
            or holds NaN, or a tensor requires a gradient.
        UnsupportedError: the backend cannot do this for this model, a pass is compiled, or the point lies in a gradient
            checkpoint.
    """
    expect_one_model(model, "perturbed; open one perturbation")
    checked = check_option(add, "add")
    for name, value in add.items():
        _expect_constant(name, value)
    bound = bind(model)
    bound.expect_ability("perturb")
    for name in checked:
        expect_known(name, bound.backend.paths(bound.model))
    return _Perturbed(bound, Perturbation(bound, checked))


def _expect_constant(name: str, value: Any) -> None:
    """Refuse a tensor that requires a gradient, which it would not get: in PyTorch, a variable of TensorFlow, in MXNet."""
    attached = hasattr(value, "asnumpy") and getattr(value, "grad", None) is not None
    if not callable(value) and (
        getattr(value, "requires_grad", False) or getattr(value, "trainable", False) or attached
    ):
        raise PointError(
            f"add[{name!r}] is {brief(value)}, which requires a gradient, and arrays are added as constants. Detach it or pass a "
            "NumPy array, and take the gradient at the point by embgrad.capture, which is the gradient with respect to it"
        )
