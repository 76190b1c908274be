"""Causes that the results record: differences in how they were computed."""

from __future__ import annotations

from collections.abc import Iterator

from embgrad.comparison.align import Alignment
from embgrad.comparison.diagnosis.case import objective_of
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.forward.points import WORD
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["recorded_causes"]


def recorded_causes(a: EmbeddingGradients, b: EmbeddingGradients, alignment: Alignment) -> Iterator[Finding]:
    """Yield recorded differences that are certain to have an effect: the mode, the point, the objective and the ids.

    None of these is measured: how much of the difference they explain can only be measured with the models.
    """
    for result, name, other in ((a, "a", "b"), (b, "b", "a")):
        if result.provenance.get("training") and not (b if result is a else a).provenance.get("training"):
            text = f"{name} ran in training mode, where dropout is active, and {other} did not"
            yield Finding(("dropout",), text, None, None, name)
    points = [result.provenance.get("point") for result in (a, b)]
    if points[0] != points[1]:
        behind = "embeddings" in points and WORD in points
        text = f"a was taken at {points[0]!r}, and b at {points[1]!r}"
        yield Finding(("after-norm" if behind else "other-point",), text, None, None)
    objectives = [objective_of(result) for result in (a, b)]
    classes = [description.get("class") for description in objectives]
    if classes[0] != classes[1] and not {"callable", "Scalar", None} & set(classes):
        cause = "sum-objective" if "Sum" in classes else "other-objective"
        yield Finding((cause,), f"a is the gradient of {classes[0]}, and b of {classes[1]}", None, None)
    brought = alignment.bring(b.ids)
    if (brought != a.ids)[alignment.matched].any():
        differ = int((brought != a.ids)[alignment.matched].sum())
        yield Finding(
            ("other-ids",), f"the ids differ at {differ} of {int(alignment.matched.sum())} positions", None, None
        )
