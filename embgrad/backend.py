"""What a backend is: it supplies values and pullbacks at named points of a forward pass, as NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from embgrad.batch import TokenBatch
from embgrad.points import Lookup, Point

__all__ = ["Backend", "Call", "NativeObjective", "Point", "PointValues", "Request", "Respond", "Run"]

#: Calls the model in the user's own way: `call(model, inputs) -> outputs`.
Call = Callable[[Any, Any], Any]

#: Outputs by the names under which they were asked for → one or several sets of cotangents, by the same names.
#: A cotangent has its output's shape and is float64; the backend casts it to the output's dtype.
Respond = Callable[[Mapping[str | None, np.ndarray]], Sequence[Mapping[str | None, np.ndarray]]]


@dataclass(frozen=True)
class NativeObjective:
    """An objective of the user's, computed by the framework on the model's own return value.

    Attributes:
        function: takes what the model returned; gives a native tensor, of shape (example,), or () with `scalar`.
        scalar: whether the user reduces over the examples.
    """

    function: Callable[[Any], Any]
    scalar: bool


@dataclass(frozen=True)
class Request:
    """What is asked of a forward and backward pass, in names and NumPy.

    Attributes:
        points: the names of the points to read: "word", a table's path, either with `#occurrence`.
        respond: the objective: either a callback between forward and backward, on outputs in NumPy, or the
            user's own on native outputs.
        outputs: the names of the outputs that `respond` reads, roles or native; None is the default output.
            Only these cross to NumPy. Empty with a native objective.
        training: run as in training; else in evaluation mode.
        several: `respond` gives several sets of cotangents, so that the graph must outlive the first pullback.
        call: calls the model in place of the backend's own way: `call(model, inputs) -> outputs`.
    """

    points: tuple[str, ...]
    respond: Respond | NativeObjective
    outputs: tuple[str | None, ...] = ()
    training: bool = False
    several: bool = False
    call: Call | None = None


@dataclass(frozen=True)
class PointValues:
    """What was read at one point, in the framework's own axes.

    Attributes:
        activation: the value that went on, indices' shape + (dim,).
        gradients: its gradient, one for each set of cotangents; None where the graph has no way from the
            objective to the point.
        lookup: the lookup that was made there.
    """

    activation: np.ndarray
    gradients: tuple[np.ndarray | None, ...]
    lookup: Lookup


@dataclass(frozen=True)
class Run:
    """What a forward and backward pass gave.

    Attributes:
        points: by the names under which they were asked for.
        compute_dtype: the dtype in which the model computed the first point, such as "float32" or "bfloat16".
        unused: what the batch held and the model could not take: of "mask", "types" and the extras' names.
        objective: the values of a native objective, shape (example,) or (); else None.
    """

    points: Mapping[str, PointValues]
    compute_dtype: str
    unused: tuple[str, ...] = ()
    objective: np.ndarray | None = None


@runtime_checkable
class Backend(Protocol):
    """One framework. A class of this shape, without arguments, is what an entry point names.

    Its module imports the framework only inside the functions that need it.

    Attributes:
        name: the name under which users ask for it.
        package: the framework's import name, such as "torch".
        extra: the extra of embgrad that installs the framework; None where nothing is to install.
        supports: abilities, see `embgrad.testing.ABILITIES`; what is absent raises UnsupportedError.
    """

    name: str
    package: str
    extra: str | None
    supports: frozenset[str]

    def owns(self, part: object) -> bool:
        """Whether the object is a model of this framework, told by its type, without importing the framework."""
        ...

    def versions(self) -> Mapping[str, str]:
        """The versions of the framework and of the libraries that take part, for the provenance."""
        ...

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """The points that a forward pass on the batch reaches, in the order in which it reaches them."""
        ...

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """One forward pass, and a pullback for each set of cotangents; leaves the model as it was, also on errors.

        Returned arrays are the caller's own, never a view of the framework's memory.
        """
        ...
