"""The objectives, batches and points that another gradient may be of."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.diagnosis.objectives import OtherMask, other_objectives
from embgrad.comparison.diagnosis.requests import REQUESTS

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


def test_an_objective_with_a_mask_of_its_own() -> None:
    output = np.arange(18.0).reshape(3, 2, 3)
    masked = BATCH.replace(mask=np.array([[1, 0], [1, 1], [1, 0]]))
    for mask, kept in ((None, [15, 51, 87]), (np.array([[0, 1], [1, 0], [1, 1]]), [12, 21, 87])):
        values, slopes = OtherMask(embgrad.Sum(), mask).evaluate(output, masked)
        assert values.tolist() == kept
        np.testing.assert_array_equal(
            slopes, np.broadcast_to(np.ones((3, 2, 1)) if mask is None else mask[..., None], output.shape)
        )


# Other batches, and other points

PADDED = embgrad.TokenBatch([[1, 2, 3], [4, 5, 0]], [[1, 1, 1], [1, 1, 0]], [[0, 0, 1], [0, 1, 0]])


def variants(name: str, batch: Any = PADDED, **case: Any) -> list[Any]:
    given = {
        "source": SimpleNamespace(vocab=7),
        "target": SimpleNamespace(provenance={}),
        "values": np.zeros((2, 3, 16)),
    }
    source = SimpleNamespace(
        batch=batch,
        target="b",
        objective=embgrad.Sum(),
        target_objective=None,
        at=case.pop("at", "word"),
        case=SimpleNamespace(**{**given, **case}),
    )
    return [variant for cause, function in REQUESTS if function.__name__ == name for variant in function(source)]  # type: ignore[arg-type]


def batches(name: str, batch: Any = PADDED, **case: Any) -> list[Any]:
    """Return the ids, masks and types of the batches that are run."""
    made = [one.batch(batch) for one in variants(name, batch, **case)]
    return [[None if array is None else array.tolist() for array in (one.ids, one.mask, one.types)] for one in made]


@pytest.mark.parametrize(("partners", "cause"), [([1, 0], "other-ids"), ([1, 0], "padding-side"), ([1, -1], None)])
def test_the_batch_of_the_other_is_tried_in_the_order_of_the_examples(partners: list[int], cause: str | None) -> None:
    target = SimpleNamespace(ids=np.array([[6, 7], [8, 9]]), mask=np.array([[1, 0], [1, 1]]), types=None)
    case = {
        "target": target,
        "alignment": SimpleNamespace(examples=lambda: np.array(partners)),
        "has_other_texts": True,
        "differs_only_in_padding": cause == "padding-side",
    }
    expected = [[[[8, 9], [6, 7]], [[1, 1], [1, 0]], None]]
    assert batches("_other_batch", **case) == (expected if cause else [])
    assert [one.causes for one in variants("_other_batch", **case)] == ([(cause,)] if cause else [])
    assert not variants("_other_batch", **{**case, "has_other_texts": False})


def test_other_points_are_tried_and_no_scale_there() -> None:
    assert not variants("_scaled_lookup", at="layer.0")
    target = SimpleNamespace(provenance={"point": "layer.1"})
    assert [one.at for one in variants("_other_point", target=target)] == ["embeddings", "layer.1"]
    assert [one.at for one in variants("_other_point", target=target, at="embeddings")] == ["layer.1"]
    assert [one.at for one in variants("_other_point", target=target, at="layer.1")] == ["embeddings"]
    assert [one.at for one in variants("_other_point")] == ["embeddings"]
