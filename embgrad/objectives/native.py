"""The objective as users give it: one of embgrad's, or a function of theirs on native outputs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np

from embgrad.errors import ObjectiveError, listed
from embgrad.objectives.objectives import CrossEntropy, Logit, Margin, Objective, Projection, Scalar, Sum

__all__ = ["NativeObjective", "as_objective", "described", "native_values", "rebuilt"]


#: The modules of the frameworks' own losses, as functions and as classes.
LOSSES: Final = re.compile(r"(torch|tf_keras|keras|tensorflow|mxnet)\.(.*\.)?(loss|losses)(\..*)?")

#: The module of PyTorch's functions, of which some are losses.
FUNCTIONAL: Final = "torch.nn.functional"

#: The objectives that a result remembers whole.
CLASSES: Final = {one.__name__: one for one in (CrossEntropy, Logit, Margin, Projection, Sum)}


@dataclass(frozen=True)
class NativeObjective:
    """An objective that the framework computes on the model's own return value.

    Attributes:
        function: the user's function. Takes the model's return value, and returns a native tensor of shape (example,), or () with
            `scalar`.
        scalar: whether the function reduces over the examples.
    """

    function: Callable[[Any], Any]
    scalar: bool


def as_objective(given: Any) -> Objective | NativeObjective:
    """The objective as it was given, or what wraps a function of the user's.

    Raises:
        ObjectiveError: it is none.
    """
    if isinstance(given, Objective):
        return given
    if isinstance(given, Scalar):
        _expect_of_outputs(given.function)
        return NativeObjective(given.function, scalar=True)
    if isinstance(given, type) and issubclass(given, (Objective, Scalar)):
        raise ObjectiveError(
            f"the objective is the class {given.__name__}: expected an instance; write {given.__name__}(...)"
        )
    if callable(given):
        _expect_of_outputs(given)
        return NativeObjective(given, scalar=False)
    raise ObjectiveError(
        f"the objective is {given!r}: expected CrossEntropy, Logit, Margin, Sum, Projection, Scalar, or a function of the "
        f"model's output that gives one number an example{_instead(given)}"
    )


def _instead(given: Any) -> str:
    """Return what a message advises in place of labels, and of several objectives."""
    if isinstance(given, (list, tuple)) and given and all(isinstance(one, Objective) for one in given):
        return "; make one call for each of several"
    is_array = hasattr(given, "shape") or isinstance(given, (list, tuple))
    return "; labels go into one, embgrad.CrossEntropy(labels)" if is_array or isinstance(given, Mapping) else ""


def _expect_of_outputs(function: Any) -> None:
    """Refuse a function that takes more than the model's output, as the frameworks' losses do.

    Raises:
        ObjectiveError: it does.
    """
    kind = function if isinstance(function, (type, FunctionType)) else type(function)
    name = getattr(kind, "__qualname__", str(kind))
    needed = _needed(function)
    if LOSSES.fullmatch(str(kind.__module__)) or (kind.__module__ == FUNCTIONAL and len(needed) > 1):
        raise ObjectiveError(
            f"the objective is {name}, a loss of the framework's own, which needs a target beside the output: expected "
            "embgrad.CrossEntropy(labels) for a cross-entropy, or a function of the model's output alone that gives one number "
            "an example, lambda output: loss(output, target) with reduction='none'"
        )
    if isinstance(function, type):
        raise ObjectiveError(f"the objective is the class {name}: expected an instance, or a function")
    if len(needed) > 1:
        raise ObjectiveError(
            f"the objective {name} takes {len(needed)} arguments, {listed(needed)}: expected a function of what the model "
            f"returned alone, as lambda output: {name}(output, ...)"
        )


def _needed(function: Any) -> list[str]:
    """The parameters of a function without defaults, as far as it says."""
    try:
        parameters = inspect.signature(
            getattr(function, "forward", function)
        ).parameters  # PyTorch's modules take anything
    except (TypeError, ValueError):  # one written in C does not say
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [name for name, one in parameters.items() if one.default is one.empty and one.kind in positional]


def native_values(values: np.ndarray | None) -> np.ndarray:
    """The values of a native objective, float64.

    Raises:
        ObjectiveError: one is not finite.
    """
    assert values is not None, "a backend returns the values of a native objective"
    array = np.asarray(values, np.float64)
    wrong = np.flatnonzero(~np.isfinite(np.atleast_1d(array)))
    if wrong.size:
        where = f" for example {wrong[0]}" if array.ndim else ""
        raise ObjectiveError(
            f"the objective is {np.atleast_1d(array)[wrong[0]]}{where}: expected finite numbers; look at the function and at "
            "the model's outputs"
        )
    return array


def described(objective: Objective | NativeObjective) -> dict[str, Any]:
    """What the provenance says of an objective."""
    if isinstance(objective, Objective):
        return objective.describe()
    function = objective.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"class": "Scalar" if objective.scalar else "callable", "name": name}


def rebuilt(description: Mapping[str, Any]) -> Objective | None:
    """The objective that a provenance describes; None for a function of the user's, or what is none of embgrad's."""
    arguments = {name: value for name, value in description.items() if name != "class"}
    kind = CLASSES.get(str(description.get("class")))
    if kind is None:
        return None
    try:
        return kind(**arguments)
    except (TypeError, ObjectiveError):  # of a file that says otherwise than embgrad writes it
        return None
