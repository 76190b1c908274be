"""`embgrad.tables.parameter_gradients`: the gradient of an objective with respect to every trainable parameter, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.checkpoints.load_bert import WeightTarget, canonical_names
from embgrad.common.finite import not_finite
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import expect_flag
from embgrad.engine.call_errors import explain_forward
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.errors import BatchError, NoGradientError, UnsupportedError, did_you_mean, quote
from embgrad.inputs.conventions import batch_of
from embgrad.objectives.objectives import as_objective
from embgrad.toolkit.signature import as_parts

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
        numbers = sum(gradient.size for gradient in self._gradients.values())
        source = self.provenance
        return (
            f"ParameterGradients({len(self)} parameters, {numbers} numbers, {len(self.unreached)} unreached, of "
            f"{source.get('model')} ({source.get('backend')}))"
        )


@explain_arguments
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
    """Return the gradient of ΣL with respect to every trainable parameter. The model and its gradient buffers are restored.

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
    expect_flag(training, "training")
    tokens = batch_of(batch, tokenizer, max_length, model)
    bound = bind(model, call)
    question = Question(bound, tokens, (as_objective(objective),), GradientOptions((), training=training))
    bound.expect_ability("parameters")
    canonical = canonical_names(bound.backend, bound.model) if names == "canonical" else None
    with explain_forward(bound, tokens):
        run = question.run(replace(question.request(), parameters=True))
    parameters = run.parameters or {}
    unreached = [name for name, parameter in parameters.items() if parameter.gradient is None]
    if len(unreached) == len(parameters):
        models = ", ".join(type(part).__qualname__ for part in as_parts(bound.model))
        raise NoGradientError(
            f"the objective depends on none of the {len(parameters)} trainable parameters of {models}: check "
            "whether they are frozen, or the output is detached"
        )
    gradients = {name: _expect_finite(name, parameter.fill()) for name, parameter in parameters.items()}
    if canonical is not None:
        gradients = _rename(gradients, canonical)
        unreached = [canonical[name].source for name in unreached]
    question.warn(run.unused, run.masked_id)
    return ParameterGradients(
        gradients,
        tuple(unreached),
        run.objectives[0].values,
        {**question.provenance(run), "names": names},
    )


def _expect_finite(name: str, gradient: np.ndarray) -> np.ndarray:
    wrong = not_finite(gradient)
    if wrong is not None:
        raise NoGradientError(
            f"the gradient of the parameter {name!r} is {wrong.at()}: expected finite numbers. Check the model's inputs, mask "
            "and dtype"
        )
    return gradient


def _rename(gradients: Mapping[str, np.ndarray], canonical: Mapping[str, WeightTarget]) -> dict[str, np.ndarray]:
    """Return the gradients under the checkpoint's names, with matrices oriented as in the checkpoint."""
    nameless = [name for name in gradients if name not in canonical]
    if nameless:
        raise UnsupportedError(
            f"names='canonical' has no name for {len(nameless)} of the {len(gradients)} trainable parameters, "
            f"{quote(nameless)}: expected those of a BERT encoder; omit it for the framework's own names"
        )
    return {canonical[name].source: canonical[name].as_in_checkpoint(gradient) for name, gradient in gradients.items()}
