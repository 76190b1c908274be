"""The part of `check=True` that runs examples again: alone, in another order, beside others, and without padding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np

from embgrad.common.metrics import lengths
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.company import differs, tolerance_of
from embgrad.engine.question import Question
from embgrad.errors import CertificationError, UnsupportedError, brief, quote
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.resized import resize
from embgrad.model_points.axes import Located
from embgrad.objectives.native import NativeObjective
from embgrad.results.certificate import Certificate
from embgrad.results.gradients import EmbeddingGradients
from embgrad.toolkit.recorded_changes import changes_recorded

__all__ = ["Reruns", "rerun", "warning_of"]

#: The shortest gradient of an example by which a difference is divided, as a share of the longest in the batch.
SHORTEST: Final = 1e-3

#: Returns for each objective of a question the results by the points' names.
RunQuestion = Callable[[Question], list[dict[str, EmbeddingGradients]]]

#: The names of the tests.
ORDER, NEIGHBOURS, PADDING, ALONE = "order", "neighbours", "padding", "independence"


@dataclass
class Reruns:
    """The figures of the tests that run examples again.

    Attributes:
        figures: by the names of the tests, the largest relative difference of an example's gradient.
        unrun: by the names of those that were not run the reasons.
        changed: what a pass changed in the model, such as a state that is carried from call to call.
        misplaced: the reason why the rows of the result are not those of the batch; None where they are.
    """

    figures: dict[str, float] = field(default_factory=dict)
    unrun: dict[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    misplaced: str | None = None

    def expect_placed(self, name: str, certificate: Certificate) -> None:
        """Refuse a result whose rows are those of others."""
        if self.misplaced is not None:
            raise CertificationError(
                f"the rows at {name!r} are not those of the batch's examples and positions: {self.misplaced}. The model sorts or "
                "moves the ids or their values before this point: name a point where they are as in the batch",
                certificate,
            )


@dataclass(frozen=True)
class _Trial:
    """One point's result, and the passes that are compared with it."""

    question: Question
    located: Located
    name: str
    result: EmbeddingGradients
    far: float
    run_question: RunQuestion

    @property
    def batch(self) -> TokenBatch:
        """The batch."""
        return self.question.batch

    @property
    def count(self) -> int:
        """The number of examples."""
        return len(self.batch)

    def run(self, batch: TokenBatch, examples: np.ndarray, objective: object = None) -> EmbeddingGradients:
        """Return the result of some examples of the batch, or of versions of them."""
        own = self.question.objective
        if objective is None:
            objective = own if isinstance(own, NativeObjective) else own.take(examples, self.count)
        question = replace(
            self.question,
            batch=batch,
            objectives=(objective,),  # type: ignore[arg-type]
            options=replace(self.question.options, names=(self.name,)),
            quiet=True,
        )
        return self.run_question(question)[0][self.name]

    def apart(self, values: np.ndarray, own: np.ndarray) -> float:
        """Return the largest difference of an example's gradient, relative to its length, (example, …) both."""
        longest = float(self._lengths(self.result.values).max())
        scale = np.maximum(self._lengths(own), SHORTEST * longest)
        difference = self._lengths(values.astype(np.float64) - own)
        return float((difference / np.where(scale > 0, scale, 1.0)).max())

    def apart_in_objective(self, objective: np.ndarray, examples: np.ndarray) -> float:
        """Return the largest difference of the objectives of these examples, relative to the objectives and to their slopes."""
        own, result = np.asarray(self.result.objective, np.float64), self.result
        slopes = self._lengths(result.values) * self._lengths(result.activations)
        scale = max(float(np.abs(own).max()), float(slopes.max()))
        difference = float(np.abs(np.asarray(objective) - own[examples]).max())
        return difference / scale if scale else difference

    def objectives_differ(self, values: np.ndarray, examples: np.ndarray) -> bool:
        """Return whether the objectives of these examples are others than in the result."""
        own = np.asarray(self.result.objective)[examples]
        tolerance = tolerance_of(self.result.provenance["compute_dtype"])
        return differs(np.asarray(values), own, np.zeros(len(own), bool), tolerance)

    @property
    def _reads_ids(self) -> bool:
        """Return whether the point is a lookup of the batch's ids, in whatever order."""
        lookup = self.located.lookup
        return lookup is not None and np.array_equal(np.sort(lookup.indices, None), np.sort(self.batch.ids, None))

    def _lengths(self, array: np.ndarray) -> np.ndarray:
        return lengths(array.astype(np.float64).reshape(len(array), -1))

    # The tests

    def order(self, made: Reruns) -> None:
        """Run the batch from the last example to the first."""
        back = np.arange(self.count)[::-1]
        other = self.run(self.batch.take(back), back)
        made.figures[ORDER] = max(
            self.apart(other.values[back], self.result.values), self.apart_in_objective(other.objective, back)
        )
        if made.figures[ORDER] > self.far and not self.objectives_differ(other.objective[back], np.arange(self.count)):
            made.misplaced = "with the examples in another order, their objectives are the same and their rows are not"

    def neighbours(self, made: Reruns) -> None:
        """Run the batch with other ids in every second example."""
        moved = np.arange(self.count) % 2 == 1
        ids = np.where(moved[:, None], _other_ids(self.batch), self.batch.ids)
        if np.array_equal(ids, self.batch.ids):
            made.unrun[NEIGHBOURS] = "all examples hold the same ids"
            return
        other = self.run(self.batch.replace(ids=ids, tokens=None, words=None), np.arange(self.count))
        kept = np.flatnonzero(~moved)
        made.figures[NEIGHBOURS] = max(
            self.apart(other.values[kept], self.result.values[kept]),
            self.apart_in_objective(np.asarray(other.objective)[kept], kept),
        )
        own = self.result.activations
        if own.shape[:2] == self.batch.shape and np.array_equal(self.result.ids, self.batch.ids):
            change = np.abs(other.activations.astype(np.float64) - own).reshape(*self.batch.shape, -1).max(-1)
            moves = change > self.far * np.abs(own).max()
            others = moves & (ids == self.batch.ids)
            is_wrong = moves[~moved].any() and not moves[moved].any(1).all()
            if self._reads_ids and others.any():
                example, position = np.argwhere(others)[0]
                made.misplaced = f"the row of example {example}, position {position} changes with another's id"
            elif is_wrong and not self.objectives_differ(other.objective[kept], kept):
                made.misplaced = "with other ids in some examples, the rows of others change"

    def padding(self, made: Reruns) -> None:
        """Run the example with the most padding alone, without it."""
        real = self.batch.real
        objective = own = self.question.objective
        is_native = isinstance(objective, NativeObjective)
        example = 0 if is_native else int(np.where(real.any(1), real.sum(1), real.shape[1]).argmin())
        columns, examples = np.flatnonzero(real[example]), np.array([example])
        if len(columns) in (0, real.shape[1]):
            if is_native:
                made.unrun[PADDING] = (
                    "the objective is a function, which is tested on the first example, and that has no padding"
                )
            return
        if not isinstance(objective, NativeObjective):
            labels = getattr(objective, "labels", None)
            if isinstance(labels, np.ndarray) and labels.ndim == 2 and not getattr(objective, "at_end", False):
                made.unrun[PADDING] = "the objective has a label for each position"
                return
            own = objective.take(examples, self.count)
            if own.position is not None:
                position = np.broadcast_to(own.position, (1,))
                own.position = np.where(position < 0, position, (columns < position).sum())
        types = None if self.batch.types is None else self.batch.types[examples][:, columns]
        shorter = resize(
            self.batch,
            examples,
            self.batch.ids[examples][:, columns],
            np.ones((1, len(columns)), bool),
            types,
            "pass the example without padding",
        )
        other = self.run(shorter, examples, own)
        whole = self.result.values[examples][:, columns]
        made.figures[PADDING] = max(self.apart(other.values, whole), self.apart_in_objective(other.objective, examples))

    def alone(self, made: Reruns) -> None:
        """Run the first example alone."""
        options = replace(self.question.options, names=(self.name,))
        alone = replace(self.question.part(0, 1), options=options, quiet=True)
        values = self.run_question(alone)[0][self.name].values
        made.figures[ALONE] = self.apart(values, self.result.values[:1])


def rerun(
    question: Question,
    located: Located,
    name: str,
    result: EmbeddingGradients,
    far: float,
    run_question: RunQuestion,
) -> Reruns:
    """Return the figures of one point's result, and the reasons of tests that were not run.

    Args:
        far: the relative difference from which on a gradient is another.
    """
    trial, made = _Trial(question, located, name, result, far, run_question), Reruns()
    tests: dict[str, Callable[[Reruns], None]] = {PADDING: trial.padding} if not question.batch.real.all() else {}
    if len(question.batch) > 1:
        tests |= {ALONE: trial.alone, NEIGHBOURS: trial.neighbours, ORDER: trial.order}
    if question.is_scalar:
        made.unrun.update(dict.fromkeys(tests, "a Scalar objective reduces over the batch"))
        return made
    if not located.arrangement.is_batch:
        made.unrun.update(dict.fromkeys(tests, "the point is not seen as (example, position, dim)"))
        return made
    for test, measure in tests.items():
        if test != ALONE and question.options.changed:
            made.unrun[test] = "override=... and add=... give values for the batch as it is"
        elif test == ORDER and isinstance(question.objective, NativeObjective):
            made.unrun[test] = "the objective is a function, which may know the order of the examples"
        else:
            _measure(test, partial(measure, made), made)
    return made


def _measure(test: str, measure: Callable[[], None], made: Reruns) -> None:
    """Run a test, or record why the model or the objective does not accept it."""
    try:
        with changes_recorded() as changes:
            measure()
    except UnsupportedError as error:
        made.unrun[test] = str(error.message)
    except errors_of_model() as error:  # of any class: the model may accept no other batch
        made.unrun[test] = f"{type(error).__name__}: {brief(str(error), 120)}"
    made.changed = tuple(dict.fromkeys((*made.changed, *changes.names)))


def warning_of(name: str, made: Reruns, certificate: Certificate, far: float, *, split: bool) -> str | None:
    """Return the warning of a gradient that is right, but depends on other examples or on padding; None where it does not."""
    if certificate.padding is not None and certificate.padding > far:
        return (
            f"check=True: without its padding an example has another gradient at {name!r} (relative difference "
            f"{certificate.padding:.2g}): the model or the objective reads padding. Check the mask, or run texts of one length "
            "together"
        )
    figures = {
        "run alone": certificate.independence,
        "beside other examples": certificate.neighbours,
        "in another order of the batch": certificate.order,
    }
    apart = {how: figure for how, figure in figures.items() if figure is not None and figure > far}
    if not apart or split:
        return None
    how, figure = max(apart.items(), key=lambda item: item[1])
    kept = f", or on {quote(made.changed)}, which the model keeps from call to call" if made.changed else ""
    return (
        f"check=True: {how}, an example has another gradient at {name!r} (relative difference {figure:.2g}): examples depend on "
        f"one another{kept}. Give split=True for the gradient of each example's own objective, or run examples one at a time"
    )


def _other_ids(batch: TokenBatch) -> np.ndarray:
    """Return the batch's ids with each replaced by the next larger one; ids that all examples hold, special ones, stay."""
    shared = set.intersection(*({*ids[real].tolist()} for ids, real in zip(batch.ids, batch.real, strict=True)))
    distinct = np.setdiff1d(batch.ids[batch.real], [*shared])
    if len(distinct) < 2:
        distinct = np.unique(batch.ids[batch.real])
    exchanged = batch.real & np.isin(batch.ids, distinct)
    ids = batch.ids.copy()
    ids[exchanged] = np.roll(distinct, -1)[np.searchsorted(distinct, ids[exchanged])]
    return np.asarray(ids)
