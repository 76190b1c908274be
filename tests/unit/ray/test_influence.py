"""Influence over a dataset on Ray: that of one process, whatever the order of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import ray.data

import embgrad
import embgrad.ray
from embgrad.errors import BatchError, EmbgradError
from tests.unit.ray import models
from tests.unit.ray.models import labelled

pytestmark = pytest.mark.usefixtures("cluster")

Items = Callable[..., list[dict[str, Any]]]


def of_one_process(rows: list[dict[str, Any]], tests: list[dict[str, Any]], top: int) -> embgrad.results.Influence:
    """Return the influence of rows of ids on others."""
    sides = [[embgrad.TokenBatch([row["ids_"]]) for row in side] for side in (rows, tests)]
    losses = [embgrad.CrossEntropy([row["label"] for row in side]) for side in (rows, tests)]
    options = {"test_objective": losses[1], "top": top, "batch_size": 1}
    return embgrad.tables.influence(models.reference(), *sides, losses[0], **options)


def gradients_of(rows: list[dict[str, Any]]) -> list[embgrad.results.RowSparse]:
    """Return the gradients of rows of ids."""
    return [
        embgrad.gradients(models.reference(), [row["ids_"]], embgrad.CrossEntropy([row["label"]])).per_example()[0]
        for row in rows
    ]


def test_it_is_the_influence_of_one_process(items: Items) -> None:
    rows, tests = items(60), items(70)[60:63]
    expected = of_one_process(rows, tests, 4)
    shuffled = [rows[number] for number in np.random.default_rng(1).permutation(60)]
    found = embgrad.ray.influence(
        ray.data.from_items(shuffled),
        models.reference,
        labelled,
        gradients_of(tests),
        number="key",
        top=4,
        ids="ids_",
        batch_size=4,
        workers=2,
    )
    for name in ("proponents", "opponents"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    np.testing.assert_allclose(found.proponent_scores, expected.proponent_scores, rtol=1e-10)
    np.testing.assert_allclose(found.opponent_scores, expected.opponent_scores, rtol=1e-10)
    assert found.shape == (3, 60)
    assert (found.provenance["backend"], found.provenance["rates"]) == ("reference", [1.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": "row"}, "the rows have no column 'row': expected one of "),
        ({"number": "text"}, "expected the rows' numbers, from 0"),
        ({"number": "late"}, "the column 'late' holds 104, and the dataset has 5 rows: expected their numbers, from 0"),
    ],
)
def test_rows_without_numbers_are_refused(items: Items, options: dict[str, Any], message: str) -> None:
    rows = [{**row, "late": row["key"] + 100} for row in items(5)]
    with pytest.raises(BatchError) as raised:
        embgrad.ray.influence(
            ray.data.from_items(rows), models.reference, labelled, gradients_of(rows[:1]), ids="ids_", **options
        )
    assert message in raised.value.message


def test_a_dataset_without_rows_is_refused(items: Items) -> None:
    with pytest.raises(BatchError, match="the dataset holds no row: expected one at least"):
        embgrad.ray.influence(
            ray.data.from_items(items(3)).filter(lambda row: row["key"] > 9),
            models.reference,
            labelled,
            gradients_of(items(1)),
            ids="ids_",
            number="key",
        )


def test_test_examples_are_gradients(items: Items) -> None:
    with pytest.raises(EmbgradError, match="test is a list that holds a str: expected a result of"):
        embgrad.ray.influence(ray.data.from_items(items(2)), models.reference, labelled, ["a"], number="key")
