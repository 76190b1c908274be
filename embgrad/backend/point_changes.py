"""The changes that a request makes at points: `override` and `add` in the forward pass, `edit` in the backward pass.

`additions` is a request for a pass of the user's, with what `perturbed` adds there.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import numpy as np

from embgrad.backend.protocol import Change, Perturber, Request
from embgrad.model_points.recorder import PassRecorder

__all__ = ["PointChanges", "additions"]

Tensor = TypeVar("Tensor")


class PointChanges(Generic[Tensor]):
    """The changes of one request, applied to a framework's tensors.

    Args:
        request: the request with the changes.
        to_numpy: returns a copy of a tensor as an array, with half precision widened to float32.
        like: takes an array and a tensor, and returns the array as a tensor of the same dtype and on the same device.
        aside: returns a context manager that is entered while a user's function runs, since that may call the model itself.

    Attributes:
        before: the gradients that `edit` replaced in the current pullback, by key.
    """

    def __init__(
        self,
        request: Request,
        to_numpy: Callable[[Tensor], np.ndarray],
        like: Callable[[np.ndarray, Tensor], Tensor],
        aside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> None:
        self.before: dict[str, np.ndarray] = {}
        self._request = request
        self._to_numpy = to_numpy
        self._like = like
        self._aside = aside

    def overrides(self, key: str) -> bool:
        """Return whether the value at a point is replaced, so that no gradient flows to anything before it."""
        return key in self._request.override

    def edits(self, key: str) -> bool:
        """Return whether the gradient at a point is replaced."""
        return key in self._request.edit

    def parts(self, key: str, tensor: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the tensor that replaces a value and the tensor to add to it, each None if there is no such change."""
        override = addition = None
        if key in self._request.override:
            override = self._call_function(self._request.override[key], tensor, tensor)
        if key in self._request.add:
            addition = self._call_function(self._request.add[key], tensor if override is None else override, tensor)
        return override, addition

    def value(self, key: str, tensor: Tensor) -> Tensor:
        """Return the value with which the model continues: the override, or else the tensor, plus the addition."""
        override, addition = self.parts(key, tensor)
        value = tensor if override is None else override
        return value if addition is None else value + addition  # type: ignore[operator]

    def gradient(self, key: str, gradient: Tensor, value: Tensor | None = None) -> Tensor:
        """Return the gradient with which the backward pass continues; store in `before` a gradient that `edit` replaces.

        Args:
            key: the point's key.
            gradient: the gradient that arrived at the point.
            value: the point's value, whose dtype and device the edited gradient gets; None for those of the gradient.
        """
        if key not in self._request.edit:
            return gradient
        self.before[key] = self._to_numpy(gradient)
        return self._call_function(self._request.edit[key], gradient, gradient if value is None else value)

    def _call_function(self, function: Callable[[np.ndarray], np.ndarray], tensor: Tensor, like: Tensor) -> Tensor:
        with self._aside():
            array = function(self._to_numpy(tensor))
        return self._like(array, like)


class _AtEachPoint(dict[str, Change]):
    """A change for every key: which points a pass reaches shows only while it runs."""

    def __init__(self, change: Callable[[str, np.ndarray], np.ndarray]) -> None:
        super().__init__()
        self._change = change

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> Change:
        return functools.partial(self._change, key)


def additions(perturber: Perturber, watch: PassRecorder) -> Request:
    """Return the changes of a pass of the user's, for `PointChanges`: what the perturber adds at each point of the watch."""
    return Request(add=_AtEachPoint(functools.partial(perturber.addition, watch)))
