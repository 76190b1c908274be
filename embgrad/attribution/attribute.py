"""`embgrad.attribute`: how much each position contributes to the objective, by any method, in any framework."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, overload

import numpy as np

from embgrad.attribution.discretized import DiscretizedIntegratedGradients
from embgrad.attribution.gradient_methods import InputXGradient, Saliency, SmoothGrad
from embgrad.attribution.method import Method, choose_method
from embgrad.attribution.passes import Passes, passes_of
from embgrad.attribution.path_methods import GradientShap, IntegratedGradients, SequentialIntegratedGradients
from embgrad.attribution.perturbation_methods import KernelShap, Lime, Occlusion
from embgrad.attribution.scores import are_several, by_name, snake_case
from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.engine.call_errors import explain_errors
from embgrad.engine.options import expect_pads
from embgrad.inputs.conventions import tokenizer_of
from embgrad.model_points.points import WORD
from embgrad.results.attribution import Attribution, Attributions

__all__ = ["METHODS", "attribute", "attribute_by", "method_from"]


#: The methods by their names in snake case.
METHODS: Final[dict[str, type[Method]]] = {
    snake_case(cls.__name__): cls
    for cls in (
        Saliency,
        InputXGradient,
        IntegratedGradients,
        SmoothGrad,
        GradientShap,
        SequentialIntegratedGradients,
        DiscretizedIntegratedGradients,
        Occlusion,
        Lime,
        KernelShap,
    )
}


@overload
def attribute(
    model: Any,
    batch: Any,
    objective: Any,
    method: Method | str,
    *,
    at: str = ...,
    tokenizer: Any = ...,
    max_length: int | None = ...,
    call: Call | None = ...,
    training: bool = ...,
    pads: str = ...,
    batch_size: int | None = ...,
) -> Attribution: ...


@overload
def attribute(
    model: Any,
    batch: Any,
    objective: Any,
    method: Mapping[str, Method | str] | Sequence[Method | str],
    *,
    at: str = ...,
    tokenizer: Any = ...,
    max_length: int | None = ...,
    call: Call | None = ...,
    training: bool = ...,
    pads: str = ...,
    batch_size: int | None = ...,
) -> Attributions: ...


@explain_arguments
def attribute(
    model: Any,
    batch: Any,
    objective: Any,
    method: Any,
    *,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    pads: str = "keep",
    batch_size: int | None = None,
) -> Attribution | Attributions:
    """Return how much each position contributes to each example's objective.

    Each method is computed in NumPy from gradients and forward passes, the same in every framework. Its steps and samples are run
    as examples of larger batches.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length` and `call`.
        method: a method, such as `embgrad.methods.IntegratedGradients(steps=50)`, or its name in snake case, which takes its
            defaults; or several, as a list or as a mapping of names to methods.
        at: the point whose values are the inputs, with axes (example, position, dim): "word", or a hidden state like "layer.3".
        training: run the model in training mode, see `gradients`. Each pass draws random numbers of its own, if the model does,
            so that the steps of a path are of different functions, and contributions do not add up.
        pads: see `gradients`.
        batch_size: how many examples or steps one pass runs at most; None for as many as have 2,048 positions. Give the number of
            examples where the model takes no other. With a function as objective one pass runs the whole batch at one step, since
            the function may know the batch's labels.

    Returns:
        An `Attribution`, whose `scores` are (example, position); for several methods `Attributions`, by the names of the mapping,
        or by the methods' names as listed, a repeated one with `#1`, `#2` and so on.

    Raises:
        EmbgradError: there is no such method; or as `gradients` raises.
        BatchError: a baseline needs the id of the mask or the padding, and it is not known.
        UnsupportedError: the objective is a `Scalar`, the point has other axes, or the backend cannot override its value.
    """
    chosen = _methods(method)
    expect_pads(pads)
    passes = passes_of(
        model, batch, objective, at, tokenizer, max_length, call, batch_size, pads=pads, training=training
    )
    tokenizer = tokenizer_of(model, tokenizer)
    with explain_errors(passes.bound, passes.batch):
        results = {name: attribute_by(passes, entry, tokenizer) for name, entry in chosen.items()}
    return Attributions(results) if are_several(method) else results[""]


def attribute_by(passes: Passes, method: Method, tokenizer: Any) -> Attribution:
    """Return the attribution of a batch by one method, see `attribute`."""
    made = method.mean_contributions(passes, tokenizer)
    result = passes.state
    return Attribution(
        values=None if made.values is None else np.array(made.values, result.activations.dtype, order="C"),
        scores=np.array(made.scores, np.float64, order="C"),
        objective=np.array(result.objective),
        baseline_objective=made.baseline_objective,
        delta=made.delta,
        error=made.error if made.error is not None or made.delta is None else np.abs(made.delta),
        ids=result.ids.copy(),
        mask=None if result.mask is None else result.mask.copy(),
        types=None if result.types is None else result.types.copy(),
        tokens=result.tokens,
        words_of=None if result.words_of is None else result.words_of.copy(),
        provenance={
            **copy.deepcopy(dict(result.provenance)),
            "method": {**method.describe(), **made.notes},
            "batch_size": passes.size,
            **({"random": passes.is_random} if passes.training and passes.bound.supports("override") else {}),
        },
        texts=passes.batch.texts,
        offsets=None if passes.batch.offsets is None else passes.batch.offsets.copy(),
        parts=None if passes.batch.parts is None else passes.batch.parts.copy(),
    )


def _methods(method: Any) -> dict[str, Method]:
    """Return the methods by name; a single one by the empty name."""
    if not are_several(method):
        return {"": method_from(method)}
    if isinstance(method, Mapping):
        return {name: method_from(entry) for name, entry in by_name(method, "method", str).items()}
    return by_name([method_from(entry) for entry in method], "method", lambda made: snake_case(type(made).__name__))


def method_from(method: Any) -> Method:
    """Return a method, or the method of a name in snake case with its defaults."""
    return choose_method(method, Method, METHODS, "embgrad.methods.IntegratedGradients()")
