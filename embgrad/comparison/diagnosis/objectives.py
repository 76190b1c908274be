"""Hypotheses that the two are gradients of different objectives, with objectives that reproduce common faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from embgrad.comparison.diagnosis.rerun import Source, Variant
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED
from embgrad.objectives.objectives import CrossEntropy, Logit, Objective, Sum
from embgrad.objectives.selection import Rows

__all__ = ["OtherMask", "other_objectives"]


class OtherMask(Objective):
    """An objective that uses another mask than the model.

    Args:
        inner: the objective.
        mask: the mask that the objective uses; None for no mask.
    """

    any_shape = True

    def __init__(self, inner: Objective, mask: np.ndarray | None) -> None:
        super().__init__(output=inner.output)
        self._inner = inner
        self._mask = mask

    def evaluate(self, output: np.ndarray, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the inner objective's values and cotangents, with the objective's mask."""
        inner = self._inner if self.axes is None else self._inner.with_axes(self.axes)
        return inner.evaluate(output, batch.replace(mask=self._mask))

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        return self._inner._rows(rows)


class Probability(Logit):
    """The softmax probability of one entry of the output."""

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        _, one_hot = super()._rows(rows)
        raised = np.exp(rows.values - rows.values.max(1, keepdims=True))
        probabilities = raised / raised.sum(1, keepdims=True)
        chosen = (probabilities * one_hot).sum(1)
        return chosen, chosen[:, None] * (one_hot - probabilities)


def other_objectives(source: Source) -> Iterator[Variant]:
    """Yield the sum; the logit, probability and cross-entropy of the same entry; shifted labels; the target's objective."""
    objective, target = source.objective, source.target
    where: dict[str, Any] = {"output": objective.output, "position": objective.position}
    entry = objective.labels if isinstance(objective, CrossEntropy) else getattr(objective, "index", None)

    def instead(cause: str, what: str, other: Objective) -> Variant:
        return Variant((cause,), f"that {target} is the gradient of {what}, and not of {own}", objective=other)

    own = _spelled(objective)
    if not isinstance(objective, Sum):
        yield instead("sum-objective", "the sum of the output", Sum(**where))
    if entry is not None and entry.ndim < 2 and getattr(objective, "of", "logits") == "logits":
        yield instead("probability-objective", "the probability", Probability(entry, **where))
        if not isinstance(objective, Logit):
            yield instead("other-objective", "the logit alone", Logit(entry, **where))
        if not isinstance(objective, CrossEntropy):
            labels = np.broadcast_to(entry, len(source.batch))
            yield instead("other-objective", "the cross-entropy", CrossEntropy(labels, **where))
    if isinstance(objective, (CrossEntropy, Logit)):
        for text, shifted in _shifted(objective, source):
            yield Variant(("label-shift",), f"that {target}{text}", objective=shifted)
    recorded = source.target_objective
    if recorded is not None and recorded.describe() != objective.describe():
        spelled = _spelled(recorded)
        text = f"the objective: {target}'s is {repr(recorded) if spelled == own else spelled}"
        yield Variant(("other-objective",), text, objective=recorded)


def _shifted(objective: CrossEntropy | Logit, source: Source) -> Iterator[tuple[str, Objective]]:
    """Yield objectives of the next and the last class, or of the labels of neighbours, each with the end of a description."""
    where: dict[str, Any] = {"output": objective.output, "position": objective.position}
    classes = int((source.case.source.provenance.get("output_shape") or [0])[-1])
    offsets = (1, -1)[: max(classes - 1, 0)]  # those that lead to other classes, each once
    if isinstance(objective, Logit):
        for offset in offsets:
            yield f" is the gradient of the logit {offset:+d}", Logit((objective.index + offset) % classes, **where)
        return
    labels, where = objective.labels, {**where, "of": objective.of}
    if labels.ndim == 2:
        for offset in (1, -1):
            moved = np.roll(labels, offset, axis=1)
            moved[:, 0 if offset > 0 else -1] = IGNORED
            yield f"'s labels are shifted by {offset:+d} position", CrossEntropy(moved, **where)
        return
    for offset in offsets:
        yield f"'s labels are each {offset:+d}", CrossEntropy((labels + offset) % classes, **where)
    if len(labels) > 1 and classes > 1:
        yield "'s labels are those of the example before", CrossEntropy(np.roll(labels, 1), **where)


def _spelled(objective: Objective) -> str:
    name = type(objective).__name__
    return {"CrossEntropy": "the cross-entropy", "Logit": "the logit", "Sum": "the sum"}.get(name, repr(objective))
