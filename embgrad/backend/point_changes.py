"""Applies the changes that a request makes at its points: override and add on the way forward, edit on the way back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

import numpy as np

from embgrad.backend.protocol import Request

__all__ = ["PointChanges"]

Tensor = TypeVar("Tensor")


class PointChanges(Generic[Tensor]):
    """The changes of one request, on a framework's tensors.

    Args:
        request: says what is changed where.
        to_numpy: copies a tensor to an array of its own; half precision becomes float32.
        like: takes an array and a tensor, and returns the array as a tensor of that one's dtype, on its device.
        aside: is entered while a function of the user runs, which may call the model itself.

    Attributes:
        before: by key the gradients that `edit` replaced in the current pullback.
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
        """Return whether the value at a point is replaced, so that nothing before it is reached."""
        return key in self._request.override

    def edits(self, key: str) -> bool:
        """Return whether the gradient at a point is replaced."""
        return key in self._request.edit

    def parts(self, key: str, tensor: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return the tensor that takes a value's place and the tensor that is added to it, each None where there is none."""
        override = addition = None
        if key in self._request.override:
            override = self._called(self._request.override[key], tensor, tensor)
        if key in self._request.add:
            addition = self._called(self._request.add[key], tensor if override is None else override, tensor)
        return override, addition

    def value(self, key: str, tensor: Tensor) -> Tensor:
        """Return the value that goes on from a point: the override in place of the tensor, plus the addition."""
        override, addition = self.parts(key, tensor)
        value = tensor if override is None else override
        return value if addition is None else value + addition  # type: ignore[operator]

    def gradient(self, key: str, gradient: Tensor, value: Tensor | None = None) -> Tensor:
        """Return the gradient that goes on from a point, and keep in `before` the one that an edit replaced.

        Args:
            key: of the point.
            gradient: the gradient that has come there.
            value: the point's value, which the edited gradient is made like; the gradient itself where None.
        """
        if key not in self._request.edit:
            return gradient
        self.before[key] = self._to_numpy(gradient)
        return self._called(self._request.edit[key], gradient, gradient if value is None else value)

    def _called(self, function: Callable[[np.ndarray], np.ndarray], tensor: Tensor, like: Tensor) -> Tensor:
        with self._aside():
            array = function(self._to_numpy(tensor))
        return self._like(array, like)
