"""The objectives that another gradient may be of, for each objective of a batch of three."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.diagnosis.objectives import OtherMask, Probability, other_objectives

IDS = np.array([[1, 2], [3, 4], [5, 6]])
BATCH = embgrad.TokenBatch(IDS)


def others(objective: Any, classes: int = 5, recorded: Any = None, count: int = 3) -> list[tuple[str, str, Any]]:
    """Return the causes, the classes of the objectives, and their entries or labels."""
    provenance = {"output_shape": [count, classes]}
    case = SimpleNamespace(source=SimpleNamespace(provenance=provenance))
    source: Any = SimpleNamespace(
        objective=objective, target="b", batch=BATCH[:count], case=case, target_objective=recorded
    )
    made = []
    for variant in other_objectives(source):
        (cause,), other = variant.causes, variant.objective
        assert "b" in variant.text
        entry = getattr(other, "labels", getattr(other, "index", None))
        made.append((cause, type(other).__name__, None if entry is None else np.asarray(entry).tolist()))
    return made


SUM, SHIFT, OTHER = ("sum-objective", "Sum", None), "label-shift", "other-objective"


@pytest.mark.parametrize(
    ("objective", "options", "expected"),
    [
        (embgrad.Sum(), {}, []),
        (
            embgrad.Logit(4),
            {},
            [
                SUM,
                ("probability-objective", "Probability", 4),
                (OTHER, "CrossEntropy", [4, 4, 4]),
                (SHIFT, "Logit", 0),
                (SHIFT, "Logit", 3),
            ],
        ),
        (embgrad.Logit(0), {"classes": 2}, [SUM, ..., ..., (SHIFT, "Logit", 1)]),
        (embgrad.Logit(0), {"classes": 1}, [SUM, ..., ...]),
        (
            embgrad.CrossEntropy([0, 1, 4]),
            {},
            [
                SUM,
                ("probability-objective", "Probability", [0, 1, 4]),
                (OTHER, "Logit", [0, 1, 4]),
                (SHIFT, "CrossEntropy", [1, 2, 0]),
                (SHIFT, "CrossEntropy", [4, 0, 3]),
                (SHIFT, "CrossEntropy", [4, 0, 1]),
            ],
        ),
        (embgrad.CrossEntropy([0]), {"classes": 2, "count": 1}, [SUM, ..., ..., (SHIFT, "CrossEntropy", [1])]),
        (embgrad.CrossEntropy([0]), {"classes": 1, "count": 1}, [SUM, ..., ...]),
        (
            embgrad.CrossEntropy(IDS),
            {},
            [
                SUM,
                (SHIFT, "CrossEntropy", [[-100, 1], [-100, 3], [-100, 5]]),
                (SHIFT, "CrossEntropy", [[2, -100], [4, -100], [6, -100]]),
            ],
        ),
        (
            embgrad.CrossEntropy([0], of="probabilities"),
            {"classes": 2, "count": 1},
            [SUM, (SHIFT, "CrossEntropy", [1])],
        ),
        (embgrad.Sum(), {"recorded": embgrad.Sum()}, []),
        (embgrad.Sum(), {"recorded": embgrad.Logit(2)}, [(OTHER, "Logit", 2)]),
    ],
)
def test_the_objectives_that_are_tried(objective: Any, options: Any, expected: list[Any]) -> None:
    found = others(objective, **options)
    assert [one if one is ... else two for one, two in zip(expected, found, strict=True)] == expected


def test_the_gradient_of_a_probability() -> None:
    logits = np.log([[1.0, 2.0, 1.0], [3.0, 1.0, 4.0], [1.0, 1.0, 2.0]]) + 700
    values, slopes = Probability([1, 0, 2]).evaluate(logits, BATCH)
    np.testing.assert_allclose(values, [1 / 2, 3 / 8, 1 / 2])
    np.testing.assert_allclose(slopes[0], [-1 / 8, 1 / 4, -1 / 8])  # p (1 - p), and -p q
    np.testing.assert_allclose(slopes.sum(1), 0, atol=1e-15)


def test_an_objective_with_a_mask_of_its_own() -> None:
    output = np.arange(18.0).reshape(3, 2, 3)
    masked = BATCH.replace(mask=np.array([[1, 0], [1, 1], [1, 0]]))
    for mask, kept in ((None, [15, 51, 87]), (np.array([[0, 1], [1, 0], [1, 1]]), [12, 21, 87])):
        values, slopes = OtherMask(embgrad.Sum(), mask).evaluate(output, masked)
        assert values.tolist() == kept
        np.testing.assert_array_equal(
            slopes, np.broadcast_to(np.ones((3, 2, 1)) if mask is None else mask[..., None], output.shape)
        )
