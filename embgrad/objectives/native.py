"""Objectives that the framework computes: functions of the model's native outputs, and their values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Final

import numpy as np

from embgrad.common.finite import not_finite
from embgrad.errors import ObjectiveError, quote

__all__ = ["NativeObjective", "expect_of_outputs", "native_values"]


#: The modules of the frameworks' losses, both functions and classes.
LOSSES: Final = re.compile(r"(torch|tf_keras|keras|tensorflow|mxnet)\.(.*\.)?(loss|losses)(\..*)?")

#: The module of PyTorch's functions, some of which are losses.
FUNCTIONAL: Final = "torch.nn.functional"


@dataclass(frozen=True)
class NativeObjective:
    """An objective that the framework computes from the model's own return value.

    Attributes:
        function: the user's function. It takes the model's return value and returns a native tensor of shape (example,), or
            of shape () with `scalar`.
        scalar: whether the function reduces over the examples.
    """

    function: Callable[[Any], Any]
    scalar: bool


def expect_of_outputs(function: Any) -> None:
    """Raise an error if a function takes more than the model's output, as the frameworks' losses do."""
    cls = function if isinstance(function, (type, FunctionType)) else type(function)
    name = getattr(cls, "__qualname__", str(cls))
    needed = _find_needed(function)
    if LOSSES.fullmatch(str(cls.__module__)) or (cls.__module__ == FUNCTIONAL and len(needed) > 1):
        raise ObjectiveError(
            f"the objective is {name}, a loss of the framework's own, which needs a target beside the output: expected "
            "embgrad.CrossEntropy(labels) for a cross-entropy, or a function of the model's output alone that gives one number "
            "for each example, lambda output: loss(output, target) with reduction='none'"
        )
    if isinstance(function, type):
        raise ObjectiveError(f"the objective is the class {name}: expected an instance, or a function")
    if len(needed) > 1:
        raise ObjectiveError(
            f"the objective {name} takes {len(needed)} arguments, {quote(needed)}: expected a function of what the model "
            f"returned alone, as lambda output: {name}(output, ...)"
        )


def _find_needed(function: Any) -> list[str]:
    """Return the names of a function's parameters without defaults, as far as its signature is known."""
    try:
        parameters = inspect.signature(
            getattr(function, "forward", function)
        ).parameters  # PyTorch's modules take anything
    except (TypeError, ValueError):  # functions written in C have no signature
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty and parameter.kind in positional
    ]


def native_values(values: np.ndarray) -> np.ndarray:
    """Return the values of a native objective as float64."""
    array = np.asarray(values, np.float64)
    wrong = not_finite(array)
    if wrong is not None:
        where = f" for example {wrong.index[0]}" if wrong.index else ""
        raise ObjectiveError(
            f"the objective is {wrong.value}{where}: expected finite numbers; look at the function and at the model's outputs"
        )
    return array
