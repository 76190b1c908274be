"""Hypotheses that one gradient is the other times a number, the same for all examples or one per example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import numpy as np

from embgrad.comparison.diagnosis.case import Case, objective_of
from embgrad.inputs.checks import IGNORED
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["LEAST_DIM", "Factor", "fitted_factor", "fitted_factors", "known_factors"]

#: Counts that a mean may be taken over, float64, (example,), each with a description of what is counted.
Counts: TypeAlias = Iterator[tuple[np.ndarray, str]]


@dataclass(frozen=True, eq=False)
class Factor:
    """The numbers by which the source is multiplied.

    Attributes:
        cause: a key of `embgrad.comparison.findings.CAUSES`.
        text: a description.
        numbers: one for each example, float64, (example,).
        fitted: whether it was fitted to the target, rather than known beforehand.
        mean_on: "target" or "source", the side that took a mean; "" for neither.
        whole: whether it is a whole number, or one over it, that is not a count: together with a mean it may match any number by
            chance.
    """

    cause: str
    text: str
    numbers: np.ndarray
    fitted: bool = False
    mean_on: str = ""
    whole: bool = False

    def cut(self, examples: slice) -> Factor:
        """Return the factor for some of the examples."""
        return replace(self, numbers=self.numbers[examples])


#: The smallest factor that is described as one over a count.
SMALLEST_SHARE: Final = 1e-9

#: The least dimension whose root is tested: the root of a smaller one may match by chance.
LEAST_DIM: Final = 8


def known_factors(case: Case, whole: Case | None = None, examples: slice = slice(None)) -> list[Factor]:
    """Return the known factors by which the source may be multiplied.

    Args:
        case: the direction of the comparison.
        whole: the direction with all examples, over which means are taken; None if `case` has them all.
        examples: those of the whole that `case` has.
    """
    counted = whole or case
    means = [factor.cut(examples) for cause, counts in MEANS.items() for factor in _means(counted, cause, counts)]
    sign = Factor("sign", "the sign", _all(case.source, -1.0))
    return [*means, sign, *_label_factors(case), *_lookup_factors(case)]


def _means(case: Case, cause: str, counts_of: Callable[[EmbeddingGradients], Counts]) -> Iterator[Factor]:
    """Yield one over the count, if the target took the mean, and the count, if the source did."""
    source, target = case.names
    aligned = case.alignment.examples()
    for counts, what in counts_of(_with_labels(case)):
        aligned_counts = counts[np.maximum(aligned, 0)]
        if _is_informative(aligned_counts):
            text = f"a factor {_reciprocal(aligned_counts)}: {target} took the mean over {what}"
            yield Factor(cause, text, 1 / aligned_counts, mean_on="target")
    for counts, what in counts_of(case.source):
        if _is_informative(counts):
            text = f"a factor {_times(counts)}: {source} took the mean over {what}"
            yield Factor(cause, text, counts, mean_on="source")


def _is_informative(counts: np.ndarray) -> bool:
    """Return whether a mean over these counts differs from a sum; an example of only padding, with a count of 0, has no mean."""
    return bool((counts > 0).all() and (counts != 1).any())


def _example_counts(result: EmbeddingGradients) -> Counts:
    """Yield the number of examples."""
    examples = len(result.ids)
    yield _all(result, examples), f"the batch of {examples} examples"


def _token_counts(result: EmbeddingGradients) -> Counts:
    """Yield the numbers of tokens over which a mean is commonly taken, of each example or of all."""
    examples, positions = result.ids.shape
    lengths = result.real.sum(1).astype(np.float64)
    yield lengths, "each example's own tokens"
    yield _all(result, lengths.sum()), f"all {lengths.sum():.0f} real tokens"
    yield _all(result, positions), f"the {positions} positions, padding included"
    yield _all(result, examples * positions), f"all {examples * positions} positions, padding included"
    if lengths.min() > 1:
        yield lengths - 1, "each example's tokens but one, as where each token predicts the next"
        yield _all(result, (lengths - 1).sum()), f"the {(lengths - 1).sum():.0f} tokens that have a next one"
    followed = f"the {examples} × {positions - 1} positions that have a next one"
    yield _all(result, examples * (positions - 1 or 1)), followed
    labels = np.asarray(objective_of(result).get("labels"))
    if labels.shape == result.ids.shape:
        labelled = ((labels != IGNORED) & result.real).sum(1)
        if labelled.min() > 0:
            yield labelled.astype(np.float64), "each example's tokens that have a label"
        yield _all(result, labelled.sum()), f"the {labelled.sum()} tokens that have a label"


def _entry_counts(result: EmbeddingGradients) -> Counts:
    """Yield the numbers of the output's entries, of the batch and of an example, over which mean-squared losses take the mean."""
    shape = result.provenance.get("output_shape")
    if not isinstance(shape, (list, tuple)) or len(shape) < 2 or not all(isinstance(n, int) for n in shape):
        return
    examples, *rest = (int(n) for n in shape)
    spelled = " × ".join(map(str, rest))
    entries = int(np.prod(rest))
    yield _all(result, examples * entries), f"the {examples} examples × {spelled} entries of the output"
    yield _all(result, entries), f"an example's {spelled} entries of the output"
    if len(rest) == 2 and result.mask is not None:
        real = int(result.mask.sum()) * rest[1]
        yield _all(result, real), f"the {int(result.mask.sum())} real tokens × {rest[1]} entries of the output"


#: The functions that yield the counts over which a mean may be taken, by cause.
MEANS: Final[Mapping[str, Callable[[EmbeddingGradients], Counts]]] = {
    "mean-over-batch": _example_counts,
    "mean-over-tokens": _token_counts,
    "mean-over-batch-and-classes": _entry_counts,
}


def _label_factors(case: Case) -> Iterator[Factor]:
    """Yield the factors between the label's cross-entropy −log p and p itself, and the other label's, with two classes."""
    losses, target = _losses(case), case.names[1]
    if losses is None:
        return
    text = (
        f"a factor −p for each example: {target} is the gradient of the label's probability, not of its cross-entropy"
    )
    yield Factor("probability-objective", text, -np.exp(-losses))
    shape = case.source.provenance.get("output_shape")
    if isinstance(shape, (list, tuple)) and len(shape) == 2 and shape[1] == 2 and losses.all():
        text = f"a factor −p/(1 − p) for each example: {target} has the other label of the two"
        yield Factor("label-shift", text, -np.exp(-losses) / -np.expm1(-losses))


def _lookup_factors(case: Case) -> Iterator[Factor]:
    """Yield √dim, by which many models multiply the rows that they look up, and one over it."""
    dim = case.values.shape[-1]
    root = float(np.sqrt(dim))
    if dim < LEAST_DIM:
        return
    source, target = case.names
    for number, name, side in ((root, f"√{dim}", source), (1 / root, f"1/√{dim}", target)):
        text = f"a factor {number:.6g} = {name}: {side} was differentiated after the lookup's scaling by √dim"
        yield Factor("scaled-lookup", text, _all(case.source, number), whole=root.is_integer())


def fitted_factor(case: Case, number: float) -> Factor:
    """Return the factor that fits best, as a hypothesis."""
    spelled = f"{number:.6g}"
    near = round(1 / number) if abs(number) > SMALLEST_SHARE else 0
    if abs(near) > 1 and abs(near * number - 1) < 1e-4:
        spelled += f" = 1/{near}"
    return Factor("constant-factor", f"a factor {spelled}", _all(case.source, number), fitted=True)


def fitted_factors(numbers: np.ndarray) -> Factor:
    """Return fitted factors, one per example, as a hypothesis."""
    shown = ", ".join(f"{number:.4g}" for number in numbers[:6]) + (", …" if len(numbers) > 6 else "")
    return Factor("constant-factor", f"a factor of its own for each example ({shown})", numbers, fitted=True)


def _losses(case: Case) -> np.ndarray | None:
    """Return the source's cross-entropy of each example, with one label each; None if its objective is another."""
    objective, described = case.source.objective, objective_of(case.source)
    if described.get("class") != "CrossEntropy" or np.ndim(described.get("labels", 0)) > 1:
        return None
    if objective is None or np.shape(objective) != case.source.ids.shape[:1]:
        return None
    return np.asarray(objective, np.float64)


def _with_labels(case: Case) -> EmbeddingGradients:
    """Return the target, with the source's labels if its objective was a function, of which no labels are recorded."""
    target, objectives = case.target, [objective_of(result) for result in (case.source, case.target)]
    if "labels" in objectives[1] or "labels" not in objectives[0] or not case.alignment.trivial:
        return target
    return replace(target, provenance={**target.provenance, "objective": objectives[0]})


def _all(result: Any, number: float) -> np.ndarray:
    return np.full(len(result.ids), float(number))


def _reciprocal(counts: np.ndarray) -> str:
    return f"{1 / counts[0]:.6g} = 1/{counts[0]:g}" if (counts == counts[0]).all() else "1/n for each example"


def _times(counts: np.ndarray) -> str:
    return f"{counts[0]:.2f}" if (counts == counts[0]).all() else "n for each example"
