"""`evaluate` and `embedding_table` on models in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import BATCH, IDS, curved
from tests.unit.refusals import refused

LOGIT = embgrad.Logit(0)


def first_logit(output: Tensor) -> Tensor:
    return (output * Tensor(np.array([1.0, 0.0]))).sum(1)


CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "override": {"override": {"word": np.arange(3.0)}},
    "array": {"override": {"word": np.random.default_rng(0).normal(size=(2, 4, 3))}},
    "function": {"add": {"block": lambda value: value**2}},
}


@pytest.mark.parametrize("options", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize(
    ("objective", "size"), [(LOGIT, None), (LOGIT, 1), (embgrad.CrossEntropy([1, 0]), 1), (first_logit, None)]
)
def test_objectives_are_those_of_gradients(objective: Any, size: int | None, options: dict[str, Any]) -> None:
    at = "block" if "override" in options else "word"
    expected = embgrad.gradients(curved(), BATCH, objective, at=at, **options).objective
    found = embgrad.evaluate(curved(), BATCH, objective, batch_size=size, **options)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert found.shape == (2,)
    assert found.dtype == np.float64


def test_a_scalar_objective_has_one_value_and_is_not_cut() -> None:
    objective = embgrad.Scalar(lambda output: output.sum(1).sum(0))
    assert embgrad.evaluate(curved(), BATCH, objective).shape == ()
    with pytest.raises(embgrad.errors.UnsupportedError, match="batch_size=1 splits the batch of 2"):
        embgrad.evaluate(curved(), BATCH, objective, batch_size=1)


def test_a_table_is_a_copy_of_the_weight() -> None:
    model = curved("float32")
    table = embgrad.tables.embedding_table(model, BATCH)
    np.testing.assert_array_equal(table, model["E"].value)
    assert table.dtype == np.float32
    assert not np.shares_memory(table, model["E"].value)


@pytest.mark.parametrize("most", [2, 10_000])
def test_a_table_that_the_model_computes_is_read_by_forward_passes(most: int) -> None:
    passes: list[int] = []

    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        passes.append(len(input_ids))
        if len(input_ids) > most:
            raise ValueError(f"{most} examples at most")
        return lookup(model["E"] @ model["U"], input_ids).sum(1)

    model = ReferenceModel(forward, {"E": np.random.default_rng(0).normal(size=(31, 3)), "U": np.diag([2.0, 1, 3])})
    table = embgrad.tables.embedding_table(model, IDS)
    np.testing.assert_allclose(table, model["E"].value @ model["U"].value, rtol=1e-14)
    assert len(passes) == (7 if most == 2 else 4), "as many ids in a pass as the model takes"


def test_a_computed_table_of_other_indices_is_refused() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        places = lookup(model["P"] @ model["U"], np.arange(input_ids.shape[1]))
        return (lookup(model["E"], input_ids) + places).sum(1)

    weights = {"E": np.ones((11, 3)), "U": np.diag([2.0, 1, 3]), "P": np.ones((5, 3))}
    name = next(
        point.name for point in embgrad.points(ReferenceModel(forward, weights), IDS) if "position" in point.roles
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match="no weight of the model holds the 5 rows of the lookup"):
        embgrad.tables.embedding_table(ReferenceModel(forward, weights), IDS, at=name)


def test_a_hidden_state_has_no_table() -> None:
    with refused(
        embgrad.errors.PointError, "at='block' names 'block:output#0', the value of a module: expected a lookup"
    ):
        embgrad.tables.embedding_table(curved(), BATCH, at="block")


def test_each_table_is_asked_for_by_itself() -> None:
    with refused(embgrad.errors.PointError, "at is ['word', 'block']", "make a call for each table"):
        embgrad.tables.embedding_table(curved(), BATCH, at=["word", "block"])  # type: ignore[arg-type]
