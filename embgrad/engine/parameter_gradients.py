"""The gradient of an objective with respect to every trainable parameter, by name, as NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.backend.objective_callback import objective_values
from embgrad.backend.protocol import Call
from embgrad.backend.registry import backend_for, model_in
from embgrad.backend.signature import as_parts, expect_callable
from embgrad.checkpoints.load_bert import WeightTarget, canonical_names
from embgrad.common.keywords import explained
from embgrad.engine.length_errors import expecting_inputs
from embgrad.engine.locate import expect_ability
from embgrad.engine.run import Task
from embgrad.errors import BatchError, NoGradientError, UnsupportedError, did_you_mean, listed
from embgrad.inputs.conventions import batch_of
from embgrad.objectives.native import as_objective

__all__ = ["ParameterGradients", "parameter_gradients"]


class ParameterGradients(Mapping[str, np.ndarray]):
    """∂ΣL/∂θ of every trainable parameter by name, in the model's order, each of the parameter's shape.

    Attributes:
        unreached: the names of the parameters that the objective does not depend on; they are zeros here.
        objective: L of each example, float64, shape (example,); () where the reduction was the user's.
        provenance: as of `EmbeddingGradients`.
    """

    def __init__(
        self,
        gradients: Mapping[str, np.ndarray],
        unreached: tuple[str, ...],
        objective: np.ndarray,
        provenance: Mapping[str, Any],
    ) -> None:
        self._gradients = dict(gradients)
        self.unreached = unreached
        self.objective = objective
        self.provenance = provenance

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._gradients:
            raise KeyError(f"no parameter {name!r}.{did_you_mean(name, self._gradients)}")
        return self._gradients[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._gradients)

    def __len__(self) -> int:
        return len(self._gradients)

    def __repr__(self) -> str:
        numbers = sum(one.size for one in self._gradients.values())
        source = self.provenance
        return (
            f"ParameterGradients({len(self)} parameters, {numbers} numbers, {len(self.unreached)} unreached, of "
            f"{source.get('model')} ({source.get('backend')}))"
        )


@explained
def parameter_gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    names: str = "native",
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
) -> ParameterGradients:
    """The gradient of ΣL with respect to every trainable parameter. The model stays as it was, gradient buffers included.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and
            `training`.
        names: "native" for the framework's spelling: attribute paths in PyTorch and Gluon, `name` in Keras 2, `path` in Keras
            3, repeats with `#1`; "canonical" for one spelling, and one orientation of matrices, over the frameworks, for a
            BERT as `load_bert` makes it: those of Hugging Face's checkpoints.

    Raises:
        NoGradientError: the objective depends on no parameter, or a gradient is not finite.
        UnsupportedError: the backend cannot do this for this model, or the model has no canonical names.
        EmbgradError: as `gradients` raises.
    """
    if not isinstance(names, str) or names not in ("native", "canonical"):
        raise BatchError(
            f"names is {names!r}: expected 'native' or 'canonical'.{did_you_mean(str(names), ('native', 'canonical'))}"
        )
    expect_callable(call)
    tokens = batch_of(batch, tokenizer, max_length, model)
    model = model_in(model)
    backend = backend_for(model)
    task = Task(backend, model, as_objective(objective), (), call, training)
    task.check()
    expect_ability(backend, "parameters")
    spelled = canonical_names(backend, model) if names == "canonical" else None
    respond = task.respond(tokens)
    with expecting_inputs(backend, model, tokens, call):
        run = backend.run(model, tokens, replace(task.request(respond), parameters=True))
    found = run.parameters or {}
    unreached = [name for name, one in found.items() if one.gradient is None]
    if len(unreached) == len(found):
        parts = ", ".join(type(part).__qualname__ for part in as_parts(model))
        raise NoGradientError(
            f"the objective depends on none of the {len(found)} trainable parameters of {parts}: expected some; are they "
            "frozen, or is the output detached?"
        )
    gradients = {name: _finite(name, one.filled()) for name, one in found.items()}
    if spelled is not None:
        gradients = _renamed(gradients, spelled)
        unreached = [spelled[name].source for name in unreached]
    task.warn(tokens, run.unused, run.masked_id)
    return ParameterGradients(
        gradients,
        tuple(unreached),
        objective_values(respond, run),
        {**task.provenance(tokens, run, respond), "names": names},
    )


def _finite(name: str, gradient: np.ndarray) -> np.ndarray:
    wrong = np.argwhere(~np.isfinite(gradient))
    if wrong.size:
        place = tuple(int(i) for i in wrong[0])
        raise NoGradientError(
            f"the gradient of the parameter {name!r} is {gradient[place]} at {place}, and in {len(wrong)} of {gradient.size} "
            "entries: expected finite numbers; look at the model's inputs, its mask and its dtype"
        )
    return gradient


def _renamed(gradients: Mapping[str, np.ndarray], spelled: Mapping[str, WeightTarget]) -> dict[str, np.ndarray]:
    """Under the checkpoint's names, and turned as it holds them."""
    without = [name for name in gradients if name not in spelled]
    if without:
        raise UnsupportedError(
            f"names='canonical' has no name for {len(without)} of the {len(gradients)} trainable parameters, {listed(without)}: "
            "expected those of a BERT encoder; leave it out for the framework's own names"
        )
    return {spelled[name].source: _turned(one, spelled[name].transposed) for name, one in gradients.items()}


def _turned(gradient: np.ndarray, transposed: bool) -> np.ndarray:
    return np.ascontiguousarray(gradient.T) if transposed else gradient
