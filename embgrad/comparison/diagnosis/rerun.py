"""Runs of the source's model in other ways, to test whether it then gives the target's gradient."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np

from embgrad.common.metrics import figures_of
from embgrad.common.tracebacks import errors_of_model
from embgrad.comparison.align import aligned
from embgrad.comparison.diagnosis.case import EXACT, Case, objective_of
from embgrad.engine.weights import substitute
from embgrad.errors import EmbgradError, EmbgradWarning, ObjectiveError
from embgrad.inputs.batch import TokenBatch
from embgrad.model_points.points import WORD
from embgrad.objectives.classes import rebuilt
from embgrad.objectives.objectives import Objective
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["MOST_EXAMPLES", "Source", "Variant", "failures_of", "reproduction_failure", "source_of"]

Made = TypeVar("Made")

#: The most examples on which a cause is tested.
MOST_EXAMPLES: Final = 6

#: The name of a run without any change.
AS_IT_WAS: Final = "the model as it was"


@dataclass(frozen=True, eq=False)
class Variant:
    """Another way to run a model.

    Attributes:
        causes: keys of `embgrad.comparison.diagnosis.findings.CAUSES`.
        text: a description of the change.
        batch: functions that are applied to the source's batch, one after the other.
        objective: the objective; None for the source's.
        at: the point; None for the source's.
        changes: by option ("override", "add", "edit") changes by the names of points.
        weights: replacements of weights, by native name.
        moved: whether the batch has its tokens at other positions, so that the result must be aligned by its ids.
        fitted: whether something in it was fitted to the target.
        training: whether the model runs in training mode.
        times: the number by which the gradient is multiplied.
        number: the number that is changed, if it is one.
    """

    causes: tuple[str, ...]
    text: str
    batch: tuple[Callable[[TokenBatch], TokenBatch], ...] = ()
    objective: Objective | None = None
    at: str | None = None
    changes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    moved: bool = False
    fitted: bool = False
    training: bool = False
    times: float = 1.0
    number: float = 0.0

    def combined_with(self, other: Variant) -> Variant | None:
        """Return both variants together; None if they change the same thing, or have a cause in common."""
        one_of_each = [(getattr(self, name), getattr(other, name)) for name in ("objective", "at")]
        same_names = any(self.changes.get(option, {}).keys() & named.keys() for option, named in other.changes.items())
        clash = any(first is not None and second is not None for first, second in one_of_each) or same_names
        if clash or self.weights.keys() & other.weights.keys() or set(self.causes) & set(other.causes):
            return None
        objective, at = (second if first is None else first for first, second in one_of_each)
        options = {*self.changes, *other.changes}
        return Variant(
            (*self.causes, *other.causes),
            f"{self.text}, and {other.text}",
            self.batch + other.batch,
            objective,
            at,
            {option: {**self.changes.get(option, {}), **other.changes.get(option, {})} for option in options},
            {**self.weights, **other.weights},
            self.moved or other.moved,
            self.fitted or other.fitted,
            times=self.times * other.times,
        )


class Source:
    """The source's model with its batch, objective and point.

    Args:
        case: the direction of the comparison, with all examples.
        examples: the examples that are run.
        objective: the source's objective, of all examples.
        gradients: the function `embgrad.gradients`.

    Attributes:
        examples: the examples that are run.
        case: the direction of the comparison, over these examples.
        batch: the batch that is run.
        objective: the objective of these examples.
        at: the point.
        name: the name of the source, "a" or "b".
        target: the name of the target, "a" or "b".
        target_objective: the target's objective in the order of the source's examples; None if it is not recorded or has not all.
        refused: the message of embgrad's error in the last run that failed with one.
        failures: by cause the framework's error because of which a variant could not be run.
    """

    def __init__(
        self, case: Case, examples: slice, objective: Objective, gradients: Callable[..., EmbeddingGradients]
    ) -> None:
        self._gradients = gradients
        self.examples = examples
        self.case = case.cut(examples)
        self.batch = batch_of_result(self.case.source)
        self.objective = objective.take(examples, len(case.source.ids))
        self.at = str(case.source.provenance.get("point"))
        self.name, self.target = case.names
        recorded = rebuilt(objective_of(case.target))
        partners = case.alignment.examples()
        self.target_objective: Objective | None = None
        if recorded is not None and (partners >= 0).all():
            with contextlib.suppress(ObjectiveError):  # a file may contain what embgrad does not write
                self.target_objective = recorded.take(partners[examples], len(case.target.ids))
        self.failures: dict[str, str] = {}
        self.refused = ""

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
            return self._gradients(
                self.case.model,
                functools.reduce(lambda batch, change: change(batch), variant.batch, self.batch),
                self.objective if variant.objective is None else variant.objective,
                at=self.at if variant.at is None else variant.at,
                call=self.case.call,
                training=variant.training,
                pads=str(self.case.source.provenance.get("pads", "keep")),
                split=bool(self.case.source.provenance.get("split", False)),
                override=variant.changes.get("override"),
                add=variant.changes.get("add"),
                edit=variant.changes.get("edit"),
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
        """Return the result of a function; None if it fails, with the framework's error in `failures`."""
        try:
            return run()
        except EmbgradError as error:  # the cause does not apply to this model
            self.refused = error.message
        except errors_of_model() as error:  # the framework cannot run this variant: reported in the notes
            self.failures[cause] = f"{type(error).__name__}: {error}"
        return None


def source_of(case: Case, gradients: Callable[..., EmbeddingGradients]) -> Source | str:
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
    try:
        return Source(case, _window(case), objective, gradients)
    except EmbgradError as error:  # a file may contain what embgrad does not write
        return f"{name} does not record how it was made, so its model was not run again: {error.message}"


def reproduction_failure(source: Source) -> str | None:
    """Return a message if the source's model does not reproduce the source, so that runs of it prove nothing; None if it does."""
    case, name = source.case, source.name
    base = source.values(Variant((AS_IT_WAS,), ""))
    if base is None:
        return f"{name}'s model cannot be run again: {source.failures.pop(AS_IT_WAS, None) or source.refused}"
    distance = figures_of(case.values, base).relative_l2
    if distance <= 2 * EXACT * case.tolerance:
        return None
    if source.at != WORD and case.source.vocab is not None:
        return (
            f"{name} was taken at the lookup {source.at!r}, whose ids are not those that the model received. Results do not "
            "store these ids, so causes inside the model were not tested"
        )
    return (
        f"{name}'s model does not reproduce {name} when it is run again (relative L2 {distance:.2e}), so causes inside it were "
        f"not tested: was {name} made with another model, in another mode, or by other code than embgrad.gradients?"
    )


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
    """Return a slice of neighbouring examples, with padding and with two segments if there are such examples."""
    count = len(case.source.ids)
    if count <= MOST_EXAMPLES:
        return slice(0, count)
    types = case.source.types
    informative = (~case.real).any(1).astype(int) + (0 if types is None else (types != types[:, :1]).any(1))
    matched = case.matched.any(1)
    scores = [
        int((informative + matched)[start : start + MOST_EXAMPLES].sum()) for start in range(count - MOST_EXAMPLES + 1)
    ]
    start = int(np.argmax(scores))
    return slice(start, start + MOST_EXAMPLES)


def failures_of(source: Source) -> Iterator[str]:
    """Yield a note for each cause that could not be tested because of the framework, without those that do not apply."""
    for cause, why in source.failures.items():
        yield f"{cause} could not be tested: {why}"
