"""HotFlip on models so small that every edit can be tried."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, UnsupportedError
from tests.unit.token_search.models import (
    BATCH,
    CLASSES,
    IDS,
    MASK,
    VOCAB,
    Letters,
    all_swaps,
    best_of,
    curved,
    linear,
    per_position,
)


@pytest.mark.parametrize("goal", ["maximize", "minimize"])
def test_one_step_finds_the_best_of_all_single_replacements(goal: str) -> None:
    model, sign = curved(), 1 if goal == "maximize" else -1
    found = embgrad.search(model, BATCH, embgrad.Logit(1), embgrad.methods.HotFlip(steps=1), goal=goal)
    for example in range(2):
        texts = all_swaps(IDS[example], np.flatnonzero(MASK[example]))
        best = best_of(model, texts, MASK[example], embgrad.Logit(1), sign)
        assert found.objective[example] == pytest.approx(best, abs=1e-12)
    assert (found.batch.ids != IDS).sum() == 2
    np.testing.assert_allclose(embgrad.evaluate(model, found.batch, embgrad.Logit(1)), found.objective, atol=1e-12)
    np.testing.assert_allclose(embgrad.evaluate(model, BATCH, embgrad.Logit(1)), found.objective_before, atol=1e-12)


def test_of_a_linear_model_as_many_steps_as_positions_find_the_best_text_of_all() -> None:
    model, logit = linear(), embgrad.Logit(0)
    found = embgrad.search(model, BATCH, logit, embgrad.methods.HotFlip(steps=4, beam=1, candidates=1))
    scores = embgrad.tables.embedding_table(model, BATCH) @ model["W"].value[:, 0]
    np.testing.assert_array_equal(found.batch.ids[MASK == 1], scores.argmax())
    np.testing.assert_array_equal(found.batch.ids[MASK == 0], IDS[MASK == 0])
    np.testing.assert_allclose(found.objective, MASK.sum(1) * scores.max(), atol=1e-12)


def test_only_allowed_tokens_stand_at_searched_positions_alone() -> None:
    found = embgrad.search(
        curved(), BATCH, embgrad.Logit(1), embgrad.methods.HotFlip(steps=3), allowed=[3, 8], positions=[0, -1]
    )
    changed = found.batch.ids != IDS
    assert np.isin(found.batch.ids[changed], [3, 8]).all()
    assert not changed[0, [1, 3]].any()
    assert not changed[1, 1:3].any()


def test_the_search_of_an_example_stops_where_the_rule_is_met() -> None:
    margin = embgrad.Margin([0, 1])
    found = embgrad.search(curved(), BATCH, margin, embgrad.methods.HotFlip(steps=6), goal="minimize", until=0.0)
    assert found.success is not None
    assert found.success.all()
    assert (found.objective <= 0).all()
    history = found.history
    for example in range(2):
        met = np.flatnonzero(history.objective[:, example] <= 0)[0]
        assert len(np.unique(history.evaluations[met:, example])) == 1
        assert len(np.unique(history.gradients[met:, example])) == 1
    sooner = embgrad.search(
        curved(), BATCH, margin, embgrad.methods.HotFlip(steps=6), goal="minimize", until=[0.5, 100.0]
    )
    assert sooner.history.evaluations[-1, 1] == 1
    assert 0 < sooner.objective[0] <= 0.5 or sooner.objective[0] <= 0


def test_a_step_evaluates_no_more_texts_than_candidates() -> None:
    found = embgrad.search(curved(), BATCH, embgrad.Logit(1), embgrad.methods.HotFlip(steps=3, beam=2, candidates=13))
    assert (np.diff(found.history.evaluations, axis=0) <= 13).all()
    np.testing.assert_array_equal(np.diff(found.history.gradients, axis=0), [[1, 1], [2, 2], [2, 2]])


def _edits(ids: list[int], *, insert: bool, delete: bool) -> list[list[int]]:
    texts = [[*ids[:p], v, *ids[p + 1 :]] for p, v in itertools.product(range(len(ids)), range(VOCAB)) if v != ids[p]]
    if insert:
        texts += [[*ids[:p], v, *ids[p:]] for p, v in itertools.product(range(len(ids)), range(VOCAB))]
    if delete:
        texts += [[*ids[:p], *ids[p + 1 :]] for p in range(len(ids))]
    return texts


@pytest.mark.parametrize(("insert", "delete"), [(True, False), (False, True), (True, True)])
def test_insertions_and_deletions_are_among_the_edits(insert: bool, delete: bool) -> None:
    model, logit = curved(), embgrad.Logit(1)
    method = embgrad.methods.HotFlip(steps=1, insert=insert, delete=delete)
    for goal, sign in (("maximize", 1), ("minimize", -1)):
        found = embgrad.search(model, BATCH, logit, method, goal=goal)
        for example in range(2):
            texts = _edits(IDS[example][MASK[example] == 1].tolist(), insert=insert, delete=delete)
            values = [embgrad.evaluate(model, [text], logit)[0] for text in texts]
            assert found.objective[example] == pytest.approx(sign * max(sign * value for value in values), abs=1e-12)


def test_a_batch_without_a_mask_gets_one_only_where_texts_differ_in_length() -> None:
    model, logit = curved(), embgrad.Logit(1)
    plain = embgrad.TokenBatch(np.array([[2, 7, 7, 5], [1, 4, 9, 3]]))
    assert embgrad.search(model, plain, logit, embgrad.methods.HotFlip(steps=1)).batch.mask is None
    for batch in (plain, BATCH):
        method = embgrad.methods.HotFlip(steps=2, insert=True, delete=True)
        found = embgrad.search(model, batch, logit, method, until=[0.0, 100.0])
        np.testing.assert_allclose(embgrad.evaluate(model, found.batch, logit), found.objective, atol=1e-12)


def test_with_a_tokenizer_only_texts_that_come_back_are_found() -> None:
    model, logit = linear(), embgrad.Logit(0)
    tokenizer = Letters()
    scores = embgrad.tables.embedding_table(model, BATCH) @ model["W"].value[:, 0]
    a, b = 0, 1
    table = model["E"].value.copy()
    table[a], table[b] = table[scores.argmax()] * 3, table[scores.argmax()] * 2.9
    model["E"].value[...] = table
    ids = np.array([[2, 3]])
    free = embgrad.search(model, ids, logit, embgrad.methods.HotFlip(steps=4, beam=1), allowed=[a, b], positions=None)
    assert free.batch.ids.tolist() == [[a, a]]
    apart = embgrad.search(
        model, [[2, b]], logit, embgrad.methods.HotFlip(steps=1), allowed=[a], positions=[0], stable=False
    )
    assert apart.batch.ids.tolist() == [[a, b]]
    kept = embgrad.search(
        model, [[2, b]], logit, embgrad.methods.HotFlip(steps=1), allowed=[a], positions=[0], tokenizer=tokenizer
    )
    assert kept.batch.ids.tolist() == [[2, b]]
    assert kept.texts == ("cb",)
    assert kept.provenance["stable"] is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0: expected a whole number of at least 1"),
        ({"beam": 1.5}, "beam is 1.5: expected a whole number of at least 1"),
        ({"candidates": "many"}, "candidates is 'many': expected a whole number"),
        ({"insert": 1}, "insert is 1: expected True or False"),
        ({"delete": None}, "delete is None: expected True or False"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.EmbgradError) as raised:
        embgrad.methods.HotFlip(**arguments)
    assert message in str(raised.value)


def test_what_is_bound_to_positions_is_refused_where_tokens_move() -> None:
    method = embgrad.methods.HotFlip(steps=1, insert=True)
    left = embgrad.TokenBatch([[0, 2, 3]], [[0, 1, 1]])
    with pytest.raises(BatchError, match="not padded on the right"):
        embgrad.search(curved(), left, embgrad.Logit(0), method)
    with pytest.raises(UnsupportedError, match=r"the objective is a function.*give insert=False and delete=False"):
        embgrad.search(curved(), BATCH, lambda outputs: outputs.sum(1), method)


def test_positions_that_would_move_are_refused_and_those_before_are_not() -> None:
    model, method = per_position(), embgrad.methods.HotFlip(steps=1, insert=True)
    ids = [[1, 2, 3, 4]]
    for searched in (None, [1, 2]):
        with pytest.raises(
            UnsupportedError, match=r"reads position 2 of example 0, whose token would move.*position=-1"
        ):
            embgrad.search(model, ids, embgrad.Logit(0, position=2), method, positions=searched)
    for position, positions in ((-1, None), (0, [1, 2])):
        objective = embgrad.Logit(0, position=position)
        found = embgrad.search(model, ids, objective, method, positions=positions)
        np.testing.assert_allclose(embgrad.evaluate(model, found.batch, objective), found.objective, atol=1e-12)
    numbered = embgrad.TokenBatch(ids, extras={"position_ids": np.array([[3, 1, 2, 0]])})
    with pytest.raises(
        UnsupportedError,
        match=r"position_ids of example 0 are \[3, 1, 2, 0\].*give insert=False and delete",
    ):
        embgrad.search(model, numbered, embgrad.Logit(0, position=-1), method)


def test_texts_at_the_models_limit_are_refused_before_the_search() -> None:
    model = per_position(most=5)
    method, objective = embgrad.methods.HotFlip(steps=2, insert=True), embgrad.Logit(0, position=-1)
    with pytest.raises(BatchError) as raised:
        embgrad.search(model, [[1, 2, 3, 4]], objective, method)
    assert "example 0 has 4 tokens, and the model does not accept 2 more: pass insert=False, fewer steps, or" in str(
        raised.value
    )
    assert embgrad.search(model, [[1, 2, 3]], objective, method).batch.shape[1] <= 5


@pytest.mark.parametrize("classes", [CLASSES])
def test_a_function_as_objective_gets_the_whole_batch(classes: int) -> None:
    model, seen = curved(), []

    def function(outputs: Any) -> Any:
        seen.append(outputs.value.shape)
        return outputs.sum(1)

    found = embgrad.search(model, BATCH, function, embgrad.methods.HotFlip(steps=2, candidates=20))
    assert set(seen) == {(2, classes)}
    same = embgrad.search(model, BATCH, embgrad.Sum(), embgrad.methods.HotFlip(steps=2, candidates=20))
    np.testing.assert_array_equal(found.batch.ids, same.batch.ids)
    np.testing.assert_allclose(found.objective, same.objective, atol=1e-12)


def test_a_function_and_texts_of_several_lengths_make_no_batch() -> None:
    class Deleting(embgrad.methods.HotFlip):
        def start(self, problem: Any) -> Any:
            return super(embgrad.methods.HotFlip, self).start(problem)

    with pytest.raises(UnsupportedError, match=r"texts of several lengths make no batch: give an objective of embgrad"):
        embgrad.search(curved(), BATCH, lambda outputs: outputs.sum(1), Deleting(steps=1, delete=True))


def test_continuations_of_several_lengths_are_followed_where_tokens_move() -> None:
    model, ids = (
        per_position(),
        embgrad.TokenBatch([[1, 2, 3, 4, 5], [1, 2, 3, 6, 0]], [[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]),
    )
    target = embgrad.LogProbability([[4, 5], [6, -100]])
    target.at_end = True  # as LogProbability.of makes it
    found = embgrad.search(model, ids, target, embgrad.methods.HotFlip(steps=2, insert=True))
    np.testing.assert_allclose(embgrad.evaluate(model, found.batch, target), found.objective, atol=1e-12)
    assert (found.objective > found.objective_before).all()


@pytest.mark.parametrize(("ids", "deletions"), [([2, 7], 2), ([2], 0)])
def test_all_tokens_but_the_last_may_be_deleted(ids: list[int], deletions: int) -> None:
    method = embgrad.methods.HotFlip(steps=1, delete=True)
    found = embgrad.search(curved(), embgrad.TokenBatch([ids]), embgrad.Logit(1), method)
    assert found.history.evaluations[-1].tolist() == [1 + len(ids) * (VOCAB - 1) + deletions]
