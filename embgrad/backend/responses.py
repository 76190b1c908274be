"""The objectives that a backend calls with outputs in NumPy, and what they return: values, and cotangents to pull back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

__all__ = ["Callback", "Respond", "Response"]


@dataclass(frozen=True)
class Response:
    """The values and cotangents that an objective returns for the outputs of a model.

    Attributes:
        values: the objective's values, float64, of shape (example,); () for a native objective of the whole batch.
        sets: sets of cotangents by the outputs' names: one set, several, or none if only the values are needed. A cotangent has
            its output's shape and is float64; the backend casts it to the output's dtype.
        shape: the shape of the output that the objective read; None if it is not known.
        size: Σ|output × cotangent|: to first order the change of Σ|values| when every output changes by its own magnitude.
            0 if it was not computed.
    """

    values: np.ndarray
    sets: Sequence[Mapping[str | None, np.ndarray]] = ()
    shape: tuple[int, ...] | None = None
    size: float = 0.0


class Respond(Protocol):
    """An objective in NumPy, which a backend calls between the forward pass and the pullback.

    Attributes:
        outputs: the names of the outputs that it reads, roles or native names; None is the default output. Only these are
            converted to NumPy.
    """

    @property
    def outputs(self) -> tuple[str | None, ...]:
        """The names of the outputs that it reads."""
        ...

    def reads(self, name: str | None, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows of an output that it reads; None for the whole output.

        Args:
            name: the name under which the output is requested.
            shape: the output's shape.

        Returns:
            (examples, positions), two integer arrays of equal length, if it takes only `output[examples, positions]`, with a
            cotangent of that shape.
        """
        ...

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        """Return the objective's response to the outputs, or to the rows of them that it reads."""
        ...


@dataclass(frozen=True)
class Callback:
    """An objective that is a function of whole outputs, such as one that only reads them.

    Attributes:
        function: takes the outputs by name, and returns sets of cotangents.
        outputs: the names of the outputs.
    """

    function: Callable[[Mapping[str | None, np.ndarray]], Sequence[Mapping[str | None, np.ndarray]]]
    outputs: tuple[str | None, ...] = (None,)

    def reads(self, name: str | None, shape: tuple[int, ...]) -> None:
        """Return None: the function takes whole outputs."""
        return

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Response:
        """Return the function's cotangents, without values."""
        return Response(np.zeros(0), self.function(outputs))
