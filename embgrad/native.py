"""The objective as users give it: one of embgrad's, or a function of theirs on native outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from embgrad.backend import NativeObjective
from embgrad.errors import ObjectiveError
from embgrad.objective import CrossEntropy, Logit, Margin, Objective, Projection, Scalar, Sum

__all__ = ["as_objective", "described", "native_values", "rebuilt"]


#: The objectives that a result remembers whole.
CLASSES: Final = {one.__name__: one for one in (CrossEntropy, Logit, Margin, Projection, Sum)}


def as_objective(given: Any) -> Objective | NativeObjective:
    """The objective as it was given, or what wraps a function of the user's.

    Raises:
        ObjectiveError: it is none.
    """
    if isinstance(given, Objective):
        return given
    if isinstance(given, Scalar):
        return NativeObjective(given.function, scalar=True)
    if isinstance(given, type) and issubclass(given, (Objective, Scalar)):
        raise ObjectiveError(
            f"the objective is the class {given.__name__}: expected an instance; write {given.__name__}(...)"
        )
    if callable(given):
        return NativeObjective(given, scalar=False)
    raise ObjectiveError(
        f"the objective is {given!r}: expected CrossEntropy, Logit, Margin, Sum, Projection, Scalar, or a function of the "
        "model's output that gives one number an example"
    )


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
