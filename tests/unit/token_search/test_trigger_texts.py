"""Texts with room for a trigger: where it stands, what is read, and the means and gradients over them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError
from embgrad.token_search import trigger_texts as module
from embgrad.token_search.gcg import GCG
from embgrad.token_search.problem import Problem
from embgrad.token_search.search import problem_of
from embgrad.token_search.trigger_texts import TriggerTexts, trigger_texts
from tests.unit.token_search.models import per_position
from tests.unit.token_search.trigger_models import CLS, SEP, TEXTS, Tokenizer, batch, inserted, logit, model

LOGIT = embgrad.Logit(0)
TRIGGER = np.array([3, 4])


def problem(
    given: embgrad.TokenBatch | None = None, objective: Any = LOGIT, *, stable: bool = False, **options: Any
) -> Problem:
    """Return the problem of texts, without the tokens that are special."""
    usual: dict[str, Any] = {"goal": "maximize", "until": None, "allowed": None, "positions": None, "max_length": None}
    usual |= {"call": None, "batch_size": None, "tokenizer": Tokenizer(), "joint": True, "stable": stable}
    made, _ = problem_of(model(), batch() if given is None else given, objective, **{**usual, **options})
    return made


def texts(place: str = "start", length: int = 2, **options: Any) -> TriggerTexts:
    return trigger_texts(problem(**options), length, place)


def rows_of(found: Any) -> list[list[int]]:
    return [ids[real].tolist() for ids, real in zip(found.ids, found.real, strict=True)]


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_trigger_stands_between_the_special_tokens(place: str, side: str) -> None:
    made = texts(place, given=batch(side=side))
    found = made.with_trigger(made.everything, TRIGGER)
    assert rows_of(found) == [inserted(text, [3, 4], place) for text in TEXTS]
    assert made.at.tolist() == [1] * 6 if place == "start" else [len(text) + 1 for text in TEXTS]
    assert found.ids.shape == found.free.shape == (6, 9)  # as wide as the longest text with a trigger
    np.testing.assert_array_equal(found.free.nonzero()[1].reshape(6, 2), made.at[:, None] + [0, 1])
    each = made.with_trigger(np.array([4, 1]), np.array([[5, 6], [7, 8]]))
    assert rows_of(each) == [inserted(TEXTS[4], [5, 6], place), inserted(TEXTS[1], [7, 8], place)]


@pytest.mark.parametrize(("place", "types"), [("start", [0, 1, 1, 1, 2, 3]), ("end", [0, 1, 2, 2, 2, 3])])
def test_the_type_of_a_trigger_is_that_of_its_neighbour(place: str, types: list[int]) -> None:
    pair = embgrad.TokenBatch([[CLS, 5, 6, SEP]], types=[[0, 1, 2, 3]])
    made = texts(place, given=pair)
    assert made.template.types is not None
    assert made.template.types.tolist() == [types]


def test_examples_without_a_place_are_refused() -> None:
    with pytest.raises(BatchError, match="example 1 has no position whose token may be replaced, which would be where"):
        texts(given=batch(["cde", ""]))


def test_the_objective_of_texts_with_a_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    made = texts("end")
    wanted = [logit(inserted(text, [3, 4], "end")) for text in TEXTS]
    np.testing.assert_allclose(made.objectives(TRIGGER), wanted)
    two = np.array([[3, 4], [5, 5]])
    some = np.array([0, 3, 4])
    means = [np.mean([logit(inserted(TEXTS[number], row, "end")) for number in some]) for row in two.tolist()]
    np.testing.assert_allclose(made.means(some, two), means)
    monkeypatch.setattr(module, "MOST_TEXTS", 2)
    np.testing.assert_allclose(made.objectives(TRIGGER), wanted)
    np.testing.assert_allclose(made.means(some, two), means)
    np.testing.assert_allclose(made.means(some, np.repeat(two, 3, 0)), np.repeat(means, 3))


@pytest.mark.parametrize("most", [1024, 2])
def test_the_gradient_at_a_trigger_is_the_mean_over_the_texts(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_TEXTS", most)
    made, some = texts("end"), np.array([0, 2, 5, 1])
    mean, gradient, rows = made.gradient(some, TRIGGER)
    weights: Any = model().parameters
    table, head, scale = (weights[name].value for name in "EWa")
    np.testing.assert_allclose(mean, np.mean([logit(inserted(TEXTS[n], [3, 4], "end")) for n in some]))
    places = np.array([len(TEXTS[number]) + 1 for number in some])
    wanted = [scale[places + step, 0].mean() * head[:, 0] for step in (0, 1)]
    np.testing.assert_allclose(gradient, wanted)
    np.testing.assert_allclose(rows, table[[3, 4]])


def test_blocks_hold_texts_of_similar_length() -> None:
    made = texts()
    blocks = [block.tolist() for block in made._blocks(made.everything, 4)]
    assert blocks == [[1, 3, 0, 4], [5, 2]]
    assert [block.tolist() for block in made._blocks(np.array([2, 0]), 0)] == [[0], [2]]
    (block,) = made._blocks(np.tile([0, 1, 4, 1], 8), 32)
    assert block.tolist() == [1] * 16 + [0, 4] * 8  # those of one length in their order


def test_the_first_triggers_with_which_texts_come_back() -> None:
    """A pair of "a" and "b" is one token, and so is the "a" of a trigger before a text that begins with "b"."""
    given = batch(["cde", "bde", "b"])
    made = texts(given=given, stable=True)
    assert made.stable.all()
    triggers = np.array([[3, 4], [5, 3], [4, 5], [5, 5], [6, 6]])  # "ab", "ca", "bc", "cc", "dd"
    every = made.everything
    assert made.first_stable(every, triggers, 9).tolist() == [2, 3, 4]
    assert made.first_stable(every, triggers, 2).tolist() == [2, 3]
    assert made.first_stable(np.array([0]), triggers, 9).tolist() == [1, 2, 3, 4]
    assert made.first_stable(np.array([1]), triggers, 1).tolist() == [2]
    assert made.first_stable(every[:0], triggers, 2).tolist() == [0, 1]
    free = texts(given=given)
    assert free.first_stable(every, triggers, 3).tolist() == [0, 1, 2]
    assert free.first_stable(every, triggers, 9).tolist() == [0, 1, 2, 3, 4]
    known = trigger_texts(problem(given, stable=True), 2, "start", np.array([True, False, False]))
    assert known.first_stable(every, triggers, 9).tolist() == [1, 2, 3, 4]


def test_the_position_that_is_read_moves_with_its_token() -> None:
    at = embgrad.Logit(0, position=[1, 2, 0, -1, 1, 1])
    made, _ = problem_of(
        per_position(),
        batch(["cde", "f", "hgeed", "eg", "cih", "ged"]),
        at,
        goal="maximize",
        until=None,
        allowed=None,
        positions=None,
        stable=False,
        tokenizer=Tokenizer(),
        max_length=None,
        call=None,
        batch_size=None,
        joint=True,
    )
    start, end = (trigger_texts(made, 2, place).problem.objective for place in ("start", "end"))
    assert np.asarray(start.position).tolist() == [3, 4, 0, -1, 3, 3]  # type: ignore[union-attr]
    assert np.asarray(end.position).tolist() == [1, 4, 0, -1, 1, 1]  # type: ignore[union-attr]


def gcg_draws(
    ids: np.ndarray, *, candidates: int, stable: bool = False, real: list[int] | None = None
) -> list[list[int]]:
    """Return the texts that GCG draws in place of "cde", where these ids are offered at its letters."""
    made = problem(batch(["cde"]), stable=stable)
    offered = np.full((1, 5, ids.shape[1]), -1)
    offered[0, 1:4] = ids
    drawn = GCG(candidates=candidates)._draw(made, made.original, 0, offered[0], np.uint64(7))
    return rows_of(drawn)


def test_draws_are_single_replacements_among_those_that_are_offered() -> None:
    offered = np.array([[3, 6], [4, 7], [5, -1]])
    every = gcg_draws(offered, candidates=9)
    singles = [[3, 6, 7], [6, 6, 7], [5, 4, 7], [5, 7, 7], [5, 6, 5]]
    assert sorted(every) == sorted([CLS, *row, SEP] for row in singles)
    assert [row[1:4] for row in every] == [singles[number] for number in (0, 1, 4, 3, 2)]  # the same in every version
    for count in (1, 2, 3):
        assert gcg_draws(offered, candidates=count) == every[:count]
    assert gcg_draws(np.full((3, 1), -1), candidates=4) == []


def test_draws_that_do_not_come_back_are_replaced_by_the_next() -> None:
    """With "a" and "b" at the first two letters there is no "ab", since each replaces a letter of "cde" alone."""
    made = problem(batch(["acb"]), stable=True)
    offered = np.full((1, 5, 3), -1)
    offered[0, 2] = [4, 6, 7]  # "abb" tokenises to "ab" and "b"
    every = rows_of(GCG(candidates=3)._draw(made, made.original, 0, offered[0], np.uint64(7)))
    assert sorted(every) == [[CLS, 3, 6, 4, SEP], [CLS, 3, 7, 4, SEP]]
    one = rows_of(GCG(candidates=1)._draw(made, made.original, 0, offered[0], np.uint64(7)))
    assert one == every[:1]
