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
    if not isinstance(objective, Sum):
        text = f"that {target} is the gradient of the sum of the output, and not of {_spelled(objective)}"
        yield Variant(("sum-objective",), text, objective=Sum(**where))
    if entry is not None and entry.ndim < 2 and getattr(objective, "of", "logits") == "logits":
        text = f"that {target} is the gradient of the probability, and not of {_spelled(objective)}"
        yield Variant(("probability-objective",), text, objective=Probability(entry, **where))
        if not isinstance(objective, Logit):
            text = f"that {target} is the gradient of the logit alone, and not of {_spelled(objective)}"
            yield Variant(("other-objective",), text, objective=Logit(entry, **where))
        if not isinstance(objective, CrossEntropy):
            text = f"that {target} is the gradient of the cross-entropy, and not of {_spelled(objective)}"
            yield Variant(
                ("other-objective",), text, objective=CrossEntropy(np.broadcast_to(entry, len(source.batch)), **where)
            )
    if isinstance(objective, CrossEntropy):
        yield from _shifted_labels(objective, source)
    if isinstance(objective, Logit):
        yield from _next_entries(objective, source)
    recorded = source.target_objective
    if recorded is not None and recorded.describe() != objective.describe():
        spelled = _spelled(recorded)
        other = repr(recorded) if spelled == _spelled(objective) else spelled
        yield Variant(("other-objective",), f"the objective: {target}'s is {other}", objective=recorded)


def _next_entries(objective: Logit, source: Source) -> Iterator[Variant]:
    classes = int((source.case.source.provenance.get("output_shape") or [0])[-1])
    for offset in _offsets(classes):
        text = f"that {source.target} is the gradient of the logit {offset:+d}"
        moved = Logit((objective.index + offset) % classes, output=objective.output, position=objective.position)
        yield Variant(("label-shift",), text, objective=moved)


def _offsets(classes: int) -> tuple[int, ...]:
    """Return the offsets of a class that lead to other ones, each once."""
    return (1, -1)[: classes - 1]


def _shifted_labels(objective: CrossEntropy, source: Source) -> Iterator[Variant]:
    shape = source.case.source.provenance.get("output_shape") or [0]
    classes = int(shape[-1])
    where: dict[str, Any] = {"output": objective.output, "position": objective.position, "of": objective.of}
    if objective.labels.ndim == 2:
        for offset in (1, -1):
            moved = np.roll(objective.labels, offset, axis=1)
            moved[:, 0 if offset > 0 else -1] = IGNORED
            text = f"that {source.target}'s labels are shifted by {offset:+d} position"
            yield Variant(("label-shift",), text, objective=CrossEntropy(moved, **where))
    elif classes > 1:
        for offset in _offsets(classes):
            moved = (objective.labels + offset) % classes
            text = f"that {source.target}'s labels are each {offset:+d}"
            yield Variant(("label-shift",), text, objective=CrossEntropy(moved, **where))
        if len(objective.labels) > 1:
            text = f"that {source.target}'s labels are those of the example before"
            yield Variant(("label-shift",), text, objective=CrossEntropy(np.roll(objective.labels, 1), **where))


def _spelled(objective: Objective) -> str:
    name = type(objective).__name__
    return {"CrossEntropy": "the cross-entropy", "Logit": "the logit", "Sum": "the sum"}.get(name, repr(objective))
