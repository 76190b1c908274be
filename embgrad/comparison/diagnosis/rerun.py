"""Runs of a model in other ways, to test whether it then gives the target's gradient."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.metrics import figures_of
from embgrad.common.tracebacks import errors_of_model
from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import EXACT, Case, objective_of
from embgrad.comparison.findings import Finding
from embgrad.engine.gradients import gradients
from embgrad.engine.weights import substitute
from embgrad.errors import EmbgradError, EmbgradWarning, ObjectiveError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import WORD
from embgrad.objectives.classes import rebuilt
from embgrad.objectives.objectives import Objective
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["Source", "Variant", "random_model", "reproduction_failure", "source_of"]

Made = TypeVar("Made")

#: The most examples on which a cause is tested.
MOST_EXAMPLES: Final = 6

#: The number of runs of a model that is random.
DRAWS: Final = 6


@dataclass(frozen=True, eq=False)
class Variant:
    """Another way to run a model.

    Attributes:
        causes: keys of `embgrad.comparison.findings.CAUSES`.
        text: a description of the change.
        batch: the batch; None for the source's.
        objective: the objective; None for the source's.
        at: the point; None for the source's.
        override: replacements of values by the names of points.
        weights: replacements of weights, by native name.
        moved: whether the batch has its tokens at other positions, so that the result must be aligned by its ids.
        training: whether the model runs in training mode.
        times: the number by which the gradient is multiplied.
    """

    causes: tuple[str, ...]
    text: str
    batch: TokenBatch | None = None
    objective: Objective | None = None
    at: str | None = None
    override: Mapping[str, Any] | None = None
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    moved: bool = False
    training: bool = False
    times: float = 1.0


#: The run without any change.
AS_IT_WAS: Final = Variant((), "")

#: A run in training mode, which advances the random generators; a run in evaluation mode restores them.
TRAINING: Final = Variant((), "", training=True)


class Source:
    """A model with the source's batch, objective and point.

    Args:
        case: the direction of the comparison, over the examples that are run, with the model.
        batch: the batch that is run.
        objective: the objective of these examples.
        target_objective: the target's objective in the order of these examples; None if it is not recorded or has not all.
        examples: the examples of the whole source that are run.

    Attributes:
        at: the point.
        name: the name of the source, "a" or "b".
        target: the name of the target, "a" or "b".
        failure: why the last run failed; empty if it did not.
        failures: by cause the framework's error because of which a variant could not be run.
    """

    def __init__(
        self, case: Case, batch: TokenBatch, objective: Objective, target_objective: Objective | None, examples: slice
    ) -> None:
        self.case, self.batch, self.objective, self.target_objective = case, batch, objective, target_objective
        self.examples = examples
        self.at = str(case.source.provenance.get("point"))
        self.name, self.target = case.names
        self.failures: dict[str, str] = {}
        self.failure = ""

    def asked_of(self, model: Any, call: Call | None, result: EmbeddingGradients) -> Source | None:
        """Return the same request to another model, with its gradient as the source; None if it cannot be run so.

        Args:
            model: the other model.
            call: a function that calls it; None for the usual call.
            result: a result of that model, which shows the form in which it takes a batch.
        """
        form = batch_of_result(result)
        batch = self.batch.replace(convention=form.convention, mask_is_bool=form.mask_is_bool)
        case = replace(self.case, model=model, call=call)
        asked = Source(case, batch, self.objective, self.target_objective, self.examples)
        own = self.attempt("", lambda: asked.result(AS_IT_WAS))
        if own is None or own.values.shape != self.case.source.values.shape:
            return None
        asked.case = replace(case, source=own)
        return asked

    def gives(self, values: np.ndarray) -> bool:
        """Return whether values equal the source's gradient up to the tolerance."""
        own = self.case.values
        return float(np.linalg.norm(values - own)) <= self.case.tolerance * float(np.linalg.norm(own))

    def result(self, variant: Variant) -> EmbeddingGradients:
        """Return the result of a variant.

        Raises:
            EmbgradError: the model cannot be run in this way.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore", EmbgradWarning)  # they were shown when the results were computed
            if variant.weights:
                stack.enter_context(substitute(self.case.model, variant.weights))
            return gradients(
                self.case.model,
                self.batch if variant.batch is None else variant.batch,
                self.objective if variant.objective is None else variant.objective,
                at=self.at if variant.at is None else variant.at,
                call=self.case.call,
                training=variant.training,
                pads=str(self.case.source.provenance.get("pads", "keep")),
                split=bool(self.case.source.provenance.get("split", False)),
                override=variant.override,
            )

    def values(self, variant: Variant) -> np.ndarray | None:
        """Return the gradient of a variant, float64, arranged as the source's; None if the model cannot be run in this way."""
        result = self.attempt(" + ".join(variant.causes), lambda: self.result(variant))
        if result is None:
            return None
        values = result.values.astype(np.float64) * variant.times
        if variant.moved:
            values = aligned(self.case.source, result).arrange(values)
        values = values.reshape(*values.shape[:2], -1)
        return values if values.shape == self.case.values.shape else None  # another point may have another size

    def attempt(self, cause: str, run: Callable[[], Made]) -> Made | None:
        """Return the result of a function; None if it fails.

        An error of embgrad says that the cause does not apply to this model; one of the framework is kept in `failures`.
        """
        self.failure = ""
        try:
            return run()
        except EmbgradError as error:
            self.failure = error.message
        except errors_of_model() as error:
            self.failure = f"{type(error).__name__}: {error}"
            if cause:
                self.failures[cause] = self.failure
        return None


def source_of(case: Case) -> Source | str:
    """Return the source's model on some of the examples, or a message why it cannot be run again."""
    name, provenance = case.names[0], case.source.provenance
    described = objective_of(case.source)
    objective = rebuilt(described)
    if objective is None:
        return (
            f"{name}'s objective was a function ({described.get('name', described.get('class'))}), which results do not "
            "store, so causes that need another run of its model were not tested: expected one of embgrad's objectives"
        )
    unrecorded = [option for option in ("override", "add", "edit", "extras", "captured") if provenance.get(option)]
    if unrecorded:
        return (
            f"{name} was made with {', '.join(unrecorded)}, which results do not store, so causes that need another run of its "
            "model were not tested"
        )
    examples, target = _window(case), None
    recorded, partners = rebuilt(objective_of(case.target)), case.alignment.examples()
    try:
        cut = case.cut(examples)
        batch, own = batch_of_result(cut.source), objective.take(examples, len(case.source.ids))
        if recorded is not None and (partners >= 0).all():
            with contextlib.suppress(ObjectiveError):  # a file may contain what embgrad does not write
                target = recorded.take(partners[examples], len(case.target.ids))
        return Source(cut, batch, own, target, examples)
    except EmbgradError as error:  # likewise
        return f"{name} does not record how it was made, so its model was not run again: {error.message}"


def reproduction_failure(source: Source) -> str | None:
    """Return a message if the source's model does not reproduce the source, so that runs of it prove nothing; None if it does."""
    case, name = source.case, source.name
    base = source.values(AS_IT_WAS)
    if base is None:
        return f"{name}'s model cannot be run again: {source.failure}"
    distance = figures_of(case.values, base).relative_l2
    if distance <= 2 * EXACT * case.tolerance:
        return None
    if source.at != WORD and case.source.vocab is not None:
        return (
            f"{name} was taken at the lookup {source.at!r}, whose ids are not those that the model received. Results do not "
            "store these ids, so other requests were not tested"
        )
    return (
        f"{name}'s model does not reproduce {name} when it is run again (relative L2 {distance:.2e}), so other requests to it "
        f"were not tested: was {name} made with another model, in another mode, or by other code than embgrad.gradients?"
    )


def random_model(source: Source) -> Finding | None:
    """Return a finding if the source's model gives another gradient each time it runs in evaluation mode."""
    case = source.case
    own = case.values[case.matched]
    length, seen = float(np.linalg.norm(own)), float(np.linalg.norm(own - case.wanted[case.matched]))
    if not seen:
        return None
    runs: list[np.ndarray] = []
    distances: list[float] = []
    spread = 0.0
    while len(runs) < DRAWS:
        values = None if source.values(TRAINING) is None else source.values(AS_IT_WAS)
        if values is None:
            return None
        runs.append(values[case.matched])
        distances += [float(np.linalg.norm(runs[-1] - run)) for run in runs[:-1]]
        spread = float(np.mean(distances or np.inf)) / 2**0.5
        if spread <= 2 * EXACT * case.tolerance * length:
            return None
    text = (
        f"dropout: {source.name}'s model gives another gradient each time it is run, in evaluation mode too, "
        f"{spread / length:.2g} off its own mean (over {DRAWS} runs)"
    )
    explained = min(1.0, (spread / seen) ** 2)
    return Finding(("dropout",), text, explained, seen / length * max(0.0, 1 - explained) ** 0.5, source.name)


def batch_of_result(result: EmbeddingGradients) -> TokenBatch:
    """Return the batch that a result was computed from."""
    return TokenBatch(
        result.ids,
        result.mask,
        result.types,
        convention=str(result.provenance.get("convention", "huggingface")),
        mask_is_bool=bool(result.provenance.get("mask_is_bool", False)),
    )


def _window(case: Case) -> slice:
    """Return a slice of neighbouring examples, with padding and with two segments if there are such examples.

    It is all of them where the examples of a batch may meet.
    """
    count, types = len(case.source.ids), case.source.types
    if count <= MOST_EXAMPLES or case.source.provenance.get("split"):
        return slice(0, count)
    scores = (~case.real).any(1).astype(int) + case.matched.any(1)
    scores += 0 if types is None else (types != types[:, :1]).any(1)
    start = int(np.convolve(scores, np.ones(MOST_EXAMPLES, int), "valid").argmax())
    return slice(start, start + MOST_EXAMPLES)
