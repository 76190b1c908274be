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

#: By the names that arguments of attribution methods have here or in other libraries, the method that takes them.
OF_METHODS: Final = {
    **dict.fromkeys(("steps", "n_steps"), "embgrad.methods.IntegratedGradients(steps=...)"),
    **dict.fromkeys(("baseline", "reference"), "embgrad.methods.IntegratedGradients(baseline=...)"),
    **dict.fromkeys(("rule", "tolerance"), "embgrad.methods.IntegratedGradients({}=...)"),
    "baselines": "embgrad.methods.IntegratedGradients(baseline=...), or embgrad.methods.GradientShap(baselines=...)",
    **dict.fromkeys(
        ("samples", "n_samples", "nt_samples", "seed"), "embgrad.methods.SmoothGrad({}=...), or another that draws"
    ),
    **dict.fromkeys(("sigma", "stdevs"), "embgrad.methods.SmoothGrad(sigma=...)"),
    "replacement": "embgrad.methods.Occlusion(replacement=...)",
    "keep_special": "embgrad.methods.IntegratedGradients(keep_special=...), or another with a baseline",
}

#: The same of the method of pairs.
OF_PAIRS: Final = {
    **dict.fromkeys(("steps", "n_steps"), "embgrad.methods.IntegratedJacobians(steps=...)"),
    **dict.fromkeys(("baseline", "baselines", "reference"), "embgrad.methods.IntegratedJacobians(baseline=...)"),
    **dict.fromkeys(("rule", "keep_special"), "embgrad.methods.IntegratedJacobians({}=...)"),
}

#: The same of the methods of a search.
OF_SEARCHES: Final = {
    **dict.fromkeys(("seed", "steps", "candidates"), "embgrad.methods.GCG({}=...), or another that has it"),
    **dict.fromkeys(("beam", "insert", "delete"), "embgrad.methods.HotFlip({}=...)"),
    **dict.fromkeys(("length", "place", "initial", "examples"), "embgrad.methods.UniversalTrigger({}=...)"),
    **dict.fromkeys(("learning_rate", "weight_decay"), "embgrad.methods.PEZ({}=...)"),
    "top": "embgrad.methods.GCG(top=...)",
}


#: These tables by the beginning of the function's name, of which the first counts.
BY_FUNCTION: Final = {"attribute_pairs": OF_PAIRS, "attribute": OF_METHODS, "search": OF_SEARCHES}


class ArgumentError(EmbgradError, TypeError):
    """A function was called with an argument that it does not have, or without one that it needs."""


def explain_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function with errors that explain unknown and missing arguments, and whose tracebacks are short.

    Raises:
        ArgumentError: by the returned function, when called with an unknown argument or without a required one.
    """
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
    of_methods = next((table for start, table in BY_FUNCTION.items() if function.startswith(start)), {})
    if name in of_methods:
        own = "samples" if name in ("n_samples", "nt_samples") else name
        return f"{function} takes no {name!r}, which belongs to the method: pass method={of_methods[name].format(own)}"
    return f"{function} takes no {name!r}: expected one of {quote(known, 20)}.{did_you_mean(name, known)}"


def _missing(function: str, name: str, needed: list[str]) -> str:
    such = ", such as embgrad.Sum() or embgrad.CrossEntropy(labels)" if name == "objective" else ""
    return f"{function} was called without its {name!r}: expected {function}({', '.join(needed)}){such}"
