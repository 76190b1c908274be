"""Random choices by hashes, the rows nearest to embeddings, the defaults of searches, and training mode."""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from embgrad.token_search import hotflip, pez
from embgrad.token_search.draws import _mix, keys_of, priorities
from embgrad.token_search.pez import nearest_ids
from tests.unit.token_search.models import BATCH, CLASSES, DIM, VOCAB, curved
from tests.unit.token_search.test_estimates import reader


@pytest.mark.parametrize(("seed", "first"), [(0, 0xE220A8397B1DCDAF), (1234567, 6457827717110365317)])
def test_the_mixing_function_is_splitmix64(seed: int, first: int) -> None:
    assert int(_mix(np.uint64(seed))) == first  # type: ignore[arg-type]


def test_a_choice_has_a_number_of_its_own_by_each_of_its_parts() -> None:
    key = np.uint64(5)
    numbers = priorities(key, np.arange(40)[:, None], np.arange(30))
    assert numbers.shape == (40, 30)
    assert len(np.unique(numbers)) == 1200
    assert numbers[3, 7] == priorities(key, np.array(3), np.array(7)) != priorities(key, np.array(7), np.array(3))
    assert abs(float((numbers / 2.0**64).mean()) - 0.5) < 0.03
    assert priorities(np.uint64(6), np.array(3), np.array(7)) != numbers[3, 7]


def test_keys_depend_on_the_seed_the_step_and_the_real_ids_alone() -> None:
    ids, real = np.array([[1, 2, 0], [0, 1, 2], [1, 3, 0]]), np.array([[1, 1, 0], [0, 1, 1], [1, 1, 0]], bool)
    first, second, other = keys_of(3, 4, ids, real)
    assert first == second != other
    assert first not in (keys_of(4, 4, ids, real)[0], keys_of(3, 5, ids, real)[0], keys_of(4, 3, ids, real)[0])


@pytest.mark.parametrize(("rows", "embeddings"), [(4096, 1024), (3, 2), (1, 1), (7, 5)])
def test_the_nearest_rows_are_those_of_a_dense_computation_in_any_blocks(
    monkeypatch: pytest.MonkeyPatch, rows: int, embeddings: int
) -> None:
    monkeypatch.setattr(pez, "ROWS", rows)
    monkeypatch.setattr(pez, "EMBEDDINGS", embeddings)
    random = np.random.default_rng(0)
    table, wanted = random.normal(size=(9, 3)), random.normal(size=(7, 3))
    table[5], table[2], table[8] = table[4] * 3, np.nan, 0
    allowed = np.array([0, 2, 3, 4, 5, 7, 8])
    known = np.array([0, 3, 4, 7])  # 5 points where 4 does, and 4 is the lowest id
    cosines = wanted @ table[known].T / np.linalg.norm(table[known], axis=1)
    assert (cosines.max(1) > 0).all()
    np.testing.assert_array_equal(nearest_ids(wanted, reader(table), allowed), known[cosines.argmax(1)])
    away = nearest_ids(-table[4:5], reader(table), np.array([4, 8]))
    np.testing.assert_array_equal(away, [8])  # a row of zeros has the similarity 0
    for only in (allowed[-1:], np.array([2])):  # of which one is NaN
        np.testing.assert_array_equal(nearest_ids(wanted, reader(table), only), np.repeat(only, len(wanted)))


DEFAULTS: dict[Any, dict[str, Any]] = {
    embgrad.methods.GCG: {"steps": 250, "candidates": 512, "top": 256, "seed": 0},
    embgrad.methods.HotFlip: {"steps": 5, "beam": 4, "candidates": 256, "insert": False, "delete": False},
    embgrad.methods.PEZ: {"steps": 3000, "learning_rate": 0.1, "weight_decay": 0.1},
    embgrad.methods.UniversalTrigger: {
        **{"length": 3, "place": "start", "initial": None, "steps": 20, "candidates": 40, "beam": 1},
        **{"examples": 128, "seed": 0},
    },
}


@pytest.mark.parametrize("method", DEFAULTS)
def test_the_defaults_of_a_method_are_those_that_are_documented(method: Any) -> None:
    assert {field.name: field.default for field in dataclasses.fields(method)} == DEFAULTS[method]


def test_the_defaults_of_the_calls() -> None:
    for call, expected in (
        (embgrad.search, {"goal": "maximize", "stable": True, "training": False, "batch_size": None}),
        (embgrad.substitutions, {"goal": "maximize", "top": 256, "training": False, "batch_size": None}),
    ):
        defaults = {name: parameter.default for name, parameter in inspect.signature(call).parameters.items()}
        assert {name: defaults[name] for name in expected} == expected


def with_modes() -> ReferenceModel:
    """Return a model that computes with the opposite sign in training mode."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = lookup(model["E"], input_ids) * Tensor(np.asarray(attention_mask)[..., None] * 1.0)
        return rows.sum(1) @ model["W"] * (-1.0 if model.training else 1.0)

    random = np.random.default_rng(1)
    weights = {"E": random.normal(size=(VOCAB, DIM)), "W": random.normal(size=(DIM, CLASSES))}
    return ReferenceModel(forward, weights)


@pytest.mark.parametrize("method", [embgrad.methods.HotFlip(steps=2), embgrad.methods.GCG(steps=2, candidates=200)])
def test_a_search_in_training_mode_is_of_the_model_in_training_mode(method: Any) -> None:
    trained = embgrad.search(with_modes(), BATCH, embgrad.Logit(1), method, training=True)
    opposite = embgrad.search(with_modes(), BATCH, embgrad.Logit(1), method, goal="minimize")
    np.testing.assert_allclose(trained.objective, -opposite.objective)
    np.testing.assert_array_equal(trained.batch.ids, opposite.batch.ids)
    np.testing.assert_allclose(trained.objective_before, -opposite.objective_before)
    assert trained.provenance["training"]
    first, second = (
        embgrad.substitutions(with_modes(), BATCH, embgrad.Logit(1), top=3, training=training, goal=goal)
        for training, goal in ((True, "maximize"), (False, "minimize"))
    )
    np.testing.assert_array_equal(first.ids, second.ids)


def test_texts_after_the_one_that_meets_the_rule_are_not_evaluated() -> None:
    method, logit = embgrad.methods.HotFlip(steps=1), embgrad.Logit(1)
    whole = embgrad.search(curved(), BATCH, logit, method)
    best = whole.objective - 1e-9
    found = embgrad.search(curved(), BATCH, logit, method, until=whole.objective_before + 1e-9)
    assert (found.history.evaluations[-1] == 1 + hotflip.FIRST).all(), "the first piece holds a better text"
    assert (whole.history.evaluations[-1] > 1 + 3 * hotflip.FIRST).all()
    assert (embgrad.search(curved(), BATCH, logit, method, until=best).objective >= best).all()
