"""The passes of a search: which texts run together, and what is said where one fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.company import Company
from embgrad.errors import NoGradientError, ObjectiveError, UnsupportedError
from embgrad.testing.reference import ReferenceModel, lookup
from embgrad.token_search.problem import Problem, Queries
from embgrad.token_search.search import problem_of
from embgrad.token_search.texts import Texts
from embgrad.token_search.trigger_texts import trigger_texts
from tests.unit.company import FULL, stateful
from tests.unit.token_search.test_trigger_texts import problem
from tests.unit.token_search.trigger_models import PAD, TEXTS, VOCAB, batch, inserted, logit


def rows_of(made: Problem, texts: Texts) -> list[tuple[list[int], list[int], int]]:
    """Return for each piece of texts their indices, their places, and the number of positions."""
    return [(piece.rows.tolist(), piece.places.tolist(), piece.texts.ids.shape[1]) for piece in made._pieces(texts)]


def longer(made: Problem) -> Texts:
    """Return the texts with two tokens more."""
    texts = trigger_texts(made, 2, "start")
    return texts.with_trigger(texts.everything, np.array([3, 4]))


def test_texts_of_a_length_run_together() -> None:
    made = problem(batch_size=2)
    assert made.company is Company.FREE
    assert rows_of(made, made.original) == [([0, 1], [0, 1], 7), ([2, 3], [0, 1], 7), ([4, 5], [0, 1], 7)]
    assert rows_of(made, longer(made)) == [
        ([1], [0], 5),
        ([3], [0], 6),
        ([0, 4], [0, 1], 7),
        ([5], [0], 7),
        ([2], [0], 9),
    ]
    whole = problem()
    assert rows_of(whole, whole.original) == [([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], 7)]


def coupled(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Any:
    """Return logits in which the examples of a pass depend on one another."""
    rows = lookup(model["E"], input_ids).tanh().mean(1) @ model["W"]
    return rows * rows.sum(0).tanh()


def held(model: Any = None, given: embgrad.TokenBatch | None = None, ids: Any = 0, **options: Any) -> Problem:
    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(VOCAB, 3)), "W": random.normal(size=(3, 2))}
    model, given = model or ReferenceModel(coupled, weights), given or batch()
    usual: dict[str, Any] = {"goal": "maximize", "until": None, "allowed": None, "positions": None, "max_length": None}
    usual |= {"call": None, "batch_size": None, "tokenizer": None, "stable": False}
    made, _ = problem_of(model, given, embgrad.Logit(ids), **{**usual, **options})
    return made


def test_texts_run_one_at_a_time_where_the_model_keeps_the_state_of_one() -> None:
    made = held(stateful(1, 3), embgrad.TokenBatch(FULL[:1]))
    np.testing.assert_allclose(made.objectives(made.original.take(np.zeros(3, int))), np.repeat(made.before, 3))


def test_examples_that_depend_on_one_another_are_refused() -> None:
    made = held()
    assert made.company is Company.HELD
    message = (
        "depends on the other 5 of the batch, as where a function compares examples, and each example is searched by"
    )
    with pytest.raises(UnsupportedError, match=message):
        made.expect_independent()
    held(batch_size=1).expect_independent()  # each example runs alone
    assert held(ids=[0, 1, 0, 1, 0, 1], batch_size=3).company is Company.HELD  # with two rows' targets
    with pytest.raises(UnsupportedError):
        held(joint=True).expect_independent()


def test_queries_are_counted_for_each_example() -> None:
    made = problem()
    np.testing.assert_allclose(made.before, [logit(inserted(text, [], "start")) for text in TEXTS])
    assert made.queries.evaluations.tolist() == [1] * 6
    some = made.original.take(np.array([1, 1, 4]))
    np.testing.assert_allclose(made.objectives(some), [made.before[number] for number in (1, 1, 4)])
    assert made.queries.evaluations.tolist() == [1, 3, 1, 1, 2, 1]
    list(made.each_gradient(some))
    assert made.queries.gradients.tolist() == [0, 2, 0, 0, 1, 0]
    assert Queries.none(2).gradients.tolist() == [0, 0]


def piece_of(made: Problem, rows: list[int], *, resized: bool = False) -> Any:
    (piece,) = made._pieces((longer(made) if resized else made.original).take(np.array(rows)))
    return piece


@pytest.mark.parametrize(("rows", "named"), [([1], "example 1"), ([5, 0, 4], "one of the examples 0 to 5")])
@pytest.mark.parametrize("kind", [ObjectiveError, NoGradientError])
def test_an_error_at_a_text_that_was_tried_names_its_example(rows: list[int], named: str, kind: type) -> None:
    made = problem()
    message = f"at a text that the search tried in place of {named}, numbered in the pass: the loss is nan"
    with pytest.raises(kind, match=message), made._explain(piece_of(made, rows)):
        raise kind("the loss is nan")


def test_an_error_at_another_length_says_what_to_do() -> None:
    made = problem()
    message = (
        "the model takes 7 positions, and raised RuntimeError for texts of 5 in place of example 1, in which tokens were "
        "inserted or deleted: give insert=False and delete=False"
    )
    with pytest.raises(UnsupportedError, match=message), made._explain(piece_of(made, [1], resized=True)):
        raise RuntimeError("too long")
    with pytest.raises(RuntimeError, match="too long"), made._explain(piece_of(made, [1])):
        raise RuntimeError("too long")
    with pytest.raises(embgrad.errors.BatchError, match="outside"), made._explain(piece_of(made, [1], resized=True)):
        raise embgrad.errors.BatchError("outside")


def test_estimates_are_those_of_free_positions() -> None:
    made = problem()
    objective, ids, scores = made.estimates(made.original, 2)
    np.testing.assert_allclose(objective, made.before)
    assert ids.shape == scores.shape == (6, 7, 2)
    np.testing.assert_array_equal(ids[..., 0] >= 0, made.free)
    assert (scores[~made.free] == -np.inf).all()
    # The model is a sum over positions: an estimate is exact.
    changed = [int(ids[1, 1, 0])]
    assert objective[1] + scores[1, 1, 0] == pytest.approx(logit([1, *changed, 2]))
    lowest = problem(goal="minimize")
    assert (lowest.estimates(lowest.original, 2)[2][~lowest.free] == np.inf).all()
    assert (made.sign, lowest.sign) == (1, -1)


def test_the_ids_that_may_replace_others() -> None:
    made = problem(allowed=[5, 3])
    assert made.allowed_ids.tolist() == [3, 5]
    assert made.original.free[0].tolist() == [False, True, True, True, False, False, False]
    assert made.original.ids[0, -2:].tolist() == [PAD, PAD]
    without = problem()
    assert without.stable(without.original).tolist() == [True] * 6
