"""GCG: its draws, its steps, and the text that it returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from tests.unit.token_search.models import BATCH, IDS, MASK, all_swaps, best_of, curved, linear

LOGIT = embgrad.Logit(1)


def test_with_all_candidates_a_step_finds_the_best_of_all_single_replacements() -> None:
    found = embgrad.search(curved(), BATCH, LOGIT, embgrad.methods.GCG(steps=1, candidates=1000, top=1000))
    for example in range(2):
        texts = all_swaps(IDS[example], np.flatnonzero(MASK[example]))
        assert found.history.evaluations[-1, example] == 1 + len(texts)
        best = best_of(curved(), texts, MASK[example], LOGIT)
        assert found.objective[example] == pytest.approx(max(best, found.objective_before[example]), abs=1e-12)


def test_it_goes_on_from_the_best_candidate_though_it_be_worse_and_returns_the_best_text_of_all() -> None:
    model = linear()
    scores = embgrad.tables.embedding_table(model, BATCH) @ model["W"].value[:, 1]
    best = np.where(MASK == 1, scores.argmax(), IDS)
    batch = embgrad.TokenBatch(best, MASK)
    method = embgrad.methods.GCG(steps=4, candidates=3, top=2)
    found = embgrad.search(model, batch, LOGIT, method)
    np.testing.assert_array_equal(found.batch.ids, best)
    np.testing.assert_array_equal(found.history.objective, np.tile(found.objective_before, (5, 1)))
    lowest = embgrad.search(model, batch, LOGIT, method, goal="minimize")
    assert (np.diff(lowest.history.objective, axis=0) <= 0).all()
    assert (lowest.objective < found.objective).all()


def test_an_example_is_searched_alike_alone_in_another_batch_and_with_more_padding() -> None:
    model, method = curved(), embgrad.methods.GCG(steps=6, candidates=5, top=6, seed=3)
    found = embgrad.search(model, BATCH, LOGIT, method)
    alone = embgrad.search(model, embgrad.TokenBatch(IDS[1:], MASK[1:]), LOGIT, method)
    swapped = embgrad.search(model, embgrad.TokenBatch(IDS[::-1], MASK[::-1]), LOGIT, method, batch_size=1)
    padded = embgrad.search(
        model, embgrad.TokenBatch(np.pad(IDS, ((0, 0), (0, 2))), np.pad(MASK, ((0, 0), (0, 2)))), LOGIT, method
    )
    np.testing.assert_array_equal(alone.batch.ids[0], found.batch.ids[1])
    np.testing.assert_array_equal(swapped.batch.ids[::-1], found.batch.ids)
    np.testing.assert_array_equal(padded.batch.ids[:, :4], found.batch.ids)
    np.testing.assert_allclose(padded.objective, found.objective, atol=1e-12)


def test_padding_on_the_left_does_not_change_the_draws() -> None:
    real, method = IDS[:1, :3], embgrad.methods.GCG(steps=6, candidates=3, top=4)
    found = embgrad.search(curved(), embgrad.TokenBatch(real, np.ones_like(real)), LOGIT, method)
    for width in (1, 2, 5):
        pad = ((0, 0), (width, 0))
        left = embgrad.TokenBatch(np.pad(real, pad), np.pad(np.ones_like(real), pad))
        padded = embgrad.search(curved(), left, LOGIT, method)
        np.testing.assert_array_equal(padded.history.ids[..., width:], found.history.ids)


def test_the_seed_changes_the_draws_and_the_same_seed_repeats_them() -> None:
    runs = [
        embgrad.search(curved(), BATCH, LOGIT, embgrad.methods.GCG(steps=2, candidates=4, seed=seed)).history.ids
        for seed in (0, 0, 1, 2, 3)
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert any(not np.array_equal(runs[0], other) for other in runs[2:])


def test_a_replacement_is_drawn_once_a_step_among_the_best_of_its_position() -> None:
    seen: list[np.ndarray] = []
    model = curved()

    class Watching(embgrad.Logit):
        def evaluate(self, output: np.ndarray, batch: embgrad.TokenBatch) -> Any:
            seen.append(batch.ids)
            return super().evaluate(output, batch)

    batch = embgrad.TokenBatch(IDS[1:], MASK[1:])
    best = embgrad.substitutions(model, batch, LOGIT, top=3)
    embgrad.search(model, batch, Watching(1), embgrad.methods.GCG(steps=1, candidates=10, top=3))
    candidates = np.concatenate([ids for ids in seen if (ids != IDS[1]).any()])
    assert len(candidates) == len(np.unique(candidates, axis=0)) == 10
    for row in candidates:
        (position,) = np.flatnonzero(row != IDS[1])
        assert row[position] in best.ids[0, position]


def test_each_choice_is_as_likely_as_the_others() -> None:
    from embgrad.token_search.draws import keys_of, priorities

    ids, counts = np.array([[4, 9]]), np.zeros((5, 40))
    positions, choices = np.meshgrid(np.arange(5), np.arange(40), indexing="ij")
    for step in range(500):
        (key,) = keys_of(0, step, ids, np.ones((1, 2), bool))
        drawn = np.argsort(priorities(key, positions, choices).ravel())[:20]
        counts.ravel()[drawn] += 1
    expected = 500 * 20 / 200
    assert abs(counts.mean(1) - expected).max() < 5 * np.sqrt(expected / 40)
    assert ((counts - expected) ** 2 / expected).sum() < 200 + 5 * np.sqrt(400)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": -1}, "steps is -1: expected a whole number of at least 1"),
        ({"candidates": 0}, "candidates is 0"),
        ({"top": None}, "top is None"),
        ({"seed": -1}, "seed is -1: expected a whole number of at least 0"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(embgrad.EmbgradError) as raised:
        embgrad.methods.GCG(**arguments)
    assert message in str(raised.value)
