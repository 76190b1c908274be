"""Explain unknown and missing arguments: a decorator whose errors say what to use instead."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from embgrad.common.tracebacks import without_own_frames
from embgrad.errors import EmbgradError, did_you_mean, quote

__all__ = ["ArgumentError", "explain_arguments"]

P = ParamSpec("P")
T = TypeVar("T")

_GRAPH: Final = (
    "the gradients are NumPy arrays without a graph, and the model is left unchanged; omit it, and differentiate your own "
    "forward pass for second-order gradients"
)
_LABELS: Final = "labels go into the objective, embgrad.CrossEntropy(labels)"
_INPUTS: Final = "the model's inputs go into the batch, {'input_ids': ids, 'attention_mask': mask}"

#: Advice for arguments that other libraries' functions have.
INSTEAD: Final = {
    **dict.fromkeys(("create_graph", "retain_graph", "persistent"), _GRAPH),
    **dict.fromkeys(("labels", "label", "target", "targets", "y"), _LABELS),
    **dict.fromkeys(("input_ids", "attention_mask", "token_type_ids", "position_ids", "mask", "ids"), _INPUTS),
    "inputs_embeds": "pass the ids, and replace their embeddings with override={'word': array}",
    "internal_batch_size": "batch_size=... is the number of examples that are run at once, steps included",
    "device": "the inputs go to the model's own device; move the model",
}

#: By the beginning of a function's name, of which the first counts, a method to which further arguments may belong.
OF_METHODS: Final = {
    "attribute_pairs": "IntegratedJacobians(steps=50)",
    "attribute": "IntegratedGradients(steps=50)",
    "search": "GCG(steps=250)",
}


class ArgumentError(EmbgradError, TypeError):
    """A function was called with an argument that it does not have, or without one that it needs."""


def explain_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with errors that explain unknown and missing arguments, and whose tracebacks are short."""
    known = inspect.signature(function).parameters
    needed = [name for name, parameter in known.items() if parameter.default is parameter.empty]

    @functools.wraps(function)
    def check(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                raise ArgumentError(_unknown(function.__name__, name, list(known)))
        for name in needed[len(args) :]:
            if name not in kwargs:
                raise ArgumentError(_missing(function.__name__, name, needed))
        try:
            return function(*args, **kwargs)
        except EmbgradError as error:
            raise without_own_frames(error) from error.__cause__

    return check


def _unknown(function: str, name: str, known: list[str]) -> str:
    instead = INSTEAD.get(name)
    if instead is not None:
        return f"{function} takes no {name!r}: {instead}"
    method = next((method for start, method in OF_METHODS.items() if function.startswith(start)), None)
    of_method = "" if method is None else f" A method's own arguments go into it, method=embgrad.methods.{method}."
    return f"{function} takes no {name!r}: expected one of {quote(known, 20)}.{did_you_mean(name, known) or of_method}"


def _missing(function: str, name: str, needed: list[str]) -> str:
    such = ", such as embgrad.Sum() or embgrad.CrossEntropy(labels)" if name == "objective" else ""
    return f"{function} was called without its {name!r}: expected {function}({', '.join(needed)}){such}"
