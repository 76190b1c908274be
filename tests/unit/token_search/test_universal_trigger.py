"""Universal triggers on a model in which the best trigger is known by trying them all."""

from __future__ import annotations

import re
import tracemalloc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from embgrad.token_search import UniversalTrigger, universal_trigger
from embgrad.token_search.estimates import top_substitutions
from tests.unit.token_search.test_trigger_texts import texts
from tests.unit.token_search.trigger_models import (
    CLS,
    LETTERS,
    SEP,
    TEXTS,
    VOCAB,
    Tokenizer,
    batch,
    best_trigger,
    inserted,
    logit,
    model,
)

LOGIT = embgrad.Logit(0)


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1), ("minimize", -1)])
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_best_of_all_triggers_is_found_and_inserted_between_the_special_tokens(
    place: str, goal: str, sign: int, side: str
) -> None:
    expected, mean = best_trigger(2, place, sign)
    method = UniversalTrigger(2, place, steps=3, candidates=2)
    found = embgrad.search(model(), batch(side=side), LOGIT, method, goal=goal, tokenizer=Tokenizer(), stable=False)
    assert found.trigger is not None
    assert found.trigger.tolist() == expected
    rows = [inserted(text, expected, place) for text in TEXTS]
    assert [row[real].tolist() for row, real in zip(found.batch.ids, found.batch.real, strict=True)] == rows
    assert found.batch.lengths().tolist() == [len(row) for row in rows]
    np.testing.assert_allclose(found.objective, [logit(row) for row in rows], rtol=1e-12)
    np.testing.assert_allclose(found.objective.mean(), mean, rtol=1e-12)
    without = [logit(inserted(text, [], place)) for text in TEXTS]
    if side == "right":  # on the left the padding moves the positions of this model
        np.testing.assert_allclose(found.objective_before, without, rtol=1e-12)
    assert found.texts is not None
    letters = Tokenizer().decode(expected)
    assert found.texts[0] == (letters + TEXTS[0] if place == "start" else TEXTS[0] + letters)


def test_a_batch_without_a_mask_and_with_types_gets_the_types_of_the_neighbours() -> None:
    ids = [[CLS, 5, 6, SEP, 7, 8, SEP], [CLS, 9, SEP, 4, 5, 6, SEP]]
    types = [[0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1]]
    pairs = embgrad.TokenBatch(ids, types=types)

    def run(place: str, **options: Any) -> Any:
        return embgrad.search(
            model(), pairs, LOGIT, UniversalTrigger(1, place, steps=1), tokenizer=Tokenizer(), **options
        ).batch

    first, second = run("start"), run("end")
    assert first.mask is None
    assert first.types is not None
    assert second.types is not None
    assert first.types.tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]]
    assert np.delete(first.ids, 1, 1).tolist() == ids
    assert second.types.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]]
    pairs = embgrad.TokenBatch([[CLS, 5, 6, SEP, 7, SEP]], types=[[0, 0, 0, 0, 1, 0]])
    assert run("end").types.tolist() == [[0, 0, 0, 0, 1, 1, 0]], "the type of the token before it"
    pairs = embgrad.TokenBatch([[CLS, 5, 6, SEP, 7, SEP]], types=[[1, 0, 1, 1, 1, 1]])
    assert run("start").types.tolist() == [[1, 0, 0, 1, 1, 1, 1]], "the type of the token after it"
    pairs = embgrad.TokenBatch(ids, types=types)
    assert np.delete(second.ids, 6, 1).tolist() == ids
    hypothesis = run("start", positions=np.array(types, bool) & (np.array(ids) != SEP))
    assert np.delete(hypothesis.ids[0], 4).tolist() == ids[0]
    assert np.delete(hypothesis.ids[1], 3).tolist() == ids[1]
    assert hypothesis.types.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]]


def test_only_triggers_with_which_all_texts_come_back_are_returned() -> None:
    lengths, sides, ids = (2, 3), ("start", "end"), [3, 4, 7]
    refused = 0
    for length in lengths:
        for place in sides:
            for sign, goal in ((1, "maximize"), (-1, "minimize")):
                expected, _ = best_trigger(length, place, sign, stable=True, ids=ids)
                refused += expected != best_trigger(length, place, sign, ids=ids)[0]
                method = UniversalTrigger(length, place, steps=4, candidates=VOCAB, beam=VOCAB)
                found = embgrad.search(model(), batch(), LOGIT, method, goal=goal, tokenizer=Tokenizer(), allowed=ids)
                assert found.trigger is not None
                assert found.trigger.tolist() == expected
                assert found.provenance["stable"]
    assert refused, "no case shows that a trigger was refused"


def test_texts_that_do_not_come_back_themselves_do_not_count() -> None:
    ids = np.array([[CLS, 5, 6, SEP, 0], [CLS, 3, 4, 7, SEP], [CLS, 8, 9, SEP, 0]])
    split = embgrad.TokenBatch(ids, ids != 0)  # "a" and "b" are two tokens in example 1, and would come back as one
    method = UniversalTrigger(2, steps=2, candidates=VOCAB)
    found = embgrad.search(model(), split, LOGIT, method, tokenizer=Tokenizer(), allowed=[3, 4])
    assert np.asarray(found.trigger).tolist() in ([3, 3], [4, 4], [4, 3])
    with pytest.raises(embgrad.errors.BatchError, match="example 0 holds the ids"):
        embgrad.search(model(), split.take([1]), LOGIT, method, tokenizer=Tokenizer())
    with pytest.raises(embgrad.errors.BatchError, match="example 1 holds the ids"):
        embgrad.search(model(), split.take([0, 1, 1]), LOGIT, "hotflip", tokenizer=Tokenizer())


def test_more_ids_are_offered_where_texts_must_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[int] = []

    def record(*given: Any) -> Any:
        offered.append(given[5])
        return top_substitutions(*given)

    monkeypatch.setattr(universal_trigger, "top_substitutions", record)
    for stable in (True, False):
        method = UniversalTrigger(2, steps=1, candidates=2)
        embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), stable=stable)
    assert offered == [2 * universal_trigger.OFFERED, 2]


def test_texts_are_drawn_in_rounds_and_the_best_trigger_of_all_texts_is_returned() -> None:
    method = UniversalTrigger(2, steps=6, candidates=3, examples=2, seed=4)
    found = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer())
    again = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), batch_size=1)
    assert found.history.gradients[-1].tolist() == [2] * len(TEXTS), "two rounds of three steps of two texts"
    assert found.history.gradients[1].sum() == 2
    np.testing.assert_array_equal(found.history.ids, again.history.ids)
    np.testing.assert_array_equal(found.trigger, again.trigger)
    means = found.history.objective.mean(1)
    assert (np.diff(means[1:]) >= 0).all()
    np.testing.assert_allclose(found.objective, found.history.objective[-1])
    np.testing.assert_allclose(found.history.objective[0], found.objective_before)


def test_a_search_ends_when_a_step_on_all_texts_changes_nothing() -> None:
    few, many = (
        embgrad.search(model(), batch(), LOGIT, UniversalTrigger(2, steps=steps, candidates=5), tokenizer=Tokenizer())
        for steps in (4, 30)
    )
    assert many.history.evaluations[-1].tolist() == few.history.evaluations[-1].tolist()
    assert len(many.history.seconds) == 31


def test_it_stops_when_the_mean_meets_the_rule() -> None:
    _, mean = best_trigger(2, "start")
    method = UniversalTrigger(2, steps=9, candidates=5)
    before = np.mean([logit(inserted(text, [], "start")) for text in TEXTS])
    found = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), stable=False, until=mean - 1e-9)
    assert len(found.history.seconds) == 2
    assert found.success is not None
    assert found.success.tolist() == (found.objective >= mean - 1e-9).tolist()
    assert 0 < found.success.sum() < len(TEXTS)
    of_each = before - 1 + np.array([3.0, -3, 1, -1, 0, 0])
    at_once = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), until=of_each)
    assert at_once.trigger is None
    assert at_once.batch.ids.tolist() == batch().ids.tolist()


def test_the_initial_trigger_is_the_most_frequent_allowed_token_or_the_users() -> None:
    method = UniversalTrigger(2, steps=1, candidates=1)
    alone = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), allowed=[7])
    assert alone.trigger is not None
    assert alone.trigger.tolist() == [7, 7], "the only allowed token"
    letters = [3 + LETTERS.index(letter) for letter in "eg"]
    given = UniversalTrigger(2, steps=1, candidates=1, initial=letters)
    kept = embgrad.search(model(), batch(), LOGIT, given, tokenizer=Tokenizer(), allowed=letters)
    assert set(np.asarray(kept.trigger).tolist()) <= set(letters)
    described = kept.provenance["method"]
    assert described["class"] == "UniversalTrigger"
    assert described["initial"] == letters


def test_the_first_triggers_are_tried_by_how_often_their_tokens_may_be_replaced() -> None:
    tried: list[Any] = []

    def first_stable(examples: Any, triggers: np.ndarray, most: int) -> np.ndarray:
        tried.extend(triggers.tolist())
        return np.array([1])[:most]

    ids = np.array([[5, 6, 9, 3, 3], [6, 9, 6, 0, 0], [1, 6, 3, 0, 0]])
    problem = SimpleNamespace(
        allowed_ids=np.array([3, 5, 6, 9]),
        original=SimpleNamespace(ids=ids, free=np.arange(5) < np.array([[3], [3], [3]])),
        table=SimpleNamespace(count=12),
    )
    texts: Any = SimpleNamespace(problem=problem, everything=None, first_stable=first_stable)
    assert UniversalTrigger(2)._initial(texts).tolist() == [9, 9]
    assert tried == [[6, 6], [9, 9], [3, 3], [5, 5]]
    assert UniversalTrigger(2, initial=[0, 11])._initial(texts).tolist() == [0, 11]


def test_objectives_with_an_entry_for_each_example_and_columns_follow_the_texts() -> None:
    labels = [0, 1, 0, 1, 0, 1]
    method = UniversalTrigger(2, steps=2, candidates=4, examples=4)
    found = embgrad.search(model(), batch(), embgrad.CrossEntropy(labels), method, tokenizer=Tokenizer(), batch_size=2)
    expected = embgrad.evaluate(model(), found.batch, embgrad.CrossEntropy(labels))
    np.testing.assert_allclose(found.objective, expected, rtol=1e-12)

    def forward(own: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        rows = lookup(own["E"], input_ids) * Tensor(attention_mask[..., None].astype(float))
        return rows + rows.sum(1).reshape(len(input_ids), 1, -1) * 0.1

    per_position = ReferenceModel(forward, {"E": np.random.default_rng(2).normal(size=(VOCAB, 3))})
    columns = np.array([2, 1, 3, 0, 2, 3])
    at = embgrad.Logit(1, position=columns)
    found = embgrad.search(per_position, batch(), at, UniversalTrigger(2, steps=1), tokenizer=Tokenizer(), stable=False)
    moved = embgrad.Logit(1, position=np.where(columns > 0, columns + 2, 0))
    np.testing.assert_allclose(found.objective, embgrad.evaluate(per_position, found.batch, moved), rtol=1e-12)


def test_memory_does_not_grow_with_the_gradients_of_all_texts() -> None:
    dim, length = 512, 24
    random = np.random.default_rng(0)
    wide = ReferenceModel(
        lambda own, input_ids: lookup(own["E"], input_ids).sum(1) @ own["W"],
        {"E": random.normal(size=(50, dim)).astype(np.float32), "W": random.normal(size=(dim, 2)).astype(np.float32)},
    )

    def peak(count: int) -> int:
        many = embgrad.TokenBatch(random.integers(3, 50, (count, length)))
        tracemalloc.start()
        embgrad.search(wide, many, LOGIT, UniversalTrigger(2, steps=1, candidates=2, examples=None), batch_size=16)
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(50)
    few, many = peak(500), peak(1500)
    gradients = 1000 * length * dim * 4
    assert many - few < gradients / 8, (few, many, gradients)


ERRORS = {
    "initial is [1, 2]: expected 3 ids, as many as the length of the trigger": lambda: UniversalTrigger(initial=[1, 2]),
    "initial is [[1], [2, 3]]: expected 2 ids": lambda: UniversalTrigger(2, initial=[[1], [2, 3]]),  # type: ignore[list-item]
    "initial is [1, -2]: expected 2 ids": lambda: UniversalTrigger(2, initial=[1, -2]),
    "place is 'begin': expected one of 'start', 'end'": lambda: UniversalTrigger(place="begin"),
    "length is 0: expected a whole number of at least 1": lambda: UniversalTrigger(0),
    "examples is 0: expected a whole number of at least 1": lambda: UniversalTrigger(examples=0),
    "seed is -1: expected a whole number of at least 0": lambda: UniversalTrigger(seed=-1),
}


@pytest.mark.parametrize("message", ERRORS)
def test_arguments_are_checked_when_the_method_is_made(message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        ERRORS[message]()


def test_the_methods_may_be_named() -> None:
    found = embgrad.search(model(), batch(), LOGIT, "universal_trigger", tokenizer=Tokenizer())
    assert found.trigger is not None
    assert found.trigger.shape == (3,)
    at_once = embgrad.search(model(), batch(), LOGIT, "pez", tokenizer=Tokenizer(), until=-1e9)
    assert at_once.provenance["method"] == {"class": "PEZ", "steps": 3000, "learning_rate": 0.1, "weight_decay": 0.1}


@pytest.mark.filterwarnings("ignore:the model cannot take the input 'position_ids':embgrad.EmbgradWarning")
def test_what_does_not_fit_a_trigger_is_refused_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(universal_trigger, "TRIED", 1)

    def refuses(message: str, *args: Any, **options: Any) -> None:
        method = options.pop("method", UniversalTrigger(2, steps=1))
        with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
            embgrad.search(model(), *args, method, **{"tokenizer": Tokenizer(), **options})

    refuses("initial holds the id 40: expected ids below 14", batch(), LOGIT, method=UniversalTrigger(1, initial=[40]))
    refuses("initial holds the id 14: expected ids below 14", batch(), LOGIT, method=UniversalTrigger(1, initial=[14]))
    unstable = UniversalTrigger(2, initial=[3, 4])
    refuses("initial is [3, 4], and not all texts with these ids tokenise to them", batch(), LOGIT, method=unstable)
    refuses("with any of their 1 most frequent tokens, repeated 2 times", batch(["bc"]), LOGIT, allowed=[3])
    refuses("example 1 has no position whose token may be replaced", batch(["cd", ""]), LOGIT)
    refuses(
        "example 0 has 8 tokens, and the model does not accept 3 more: pass a shorter trigger, or max_length=5",
        batch(["cdefgh"]),
        LOGIT,
        method=UniversalTrigger(3),
    )
    refuses(
        "the objective is a function, which may know the whole batch in order", batch(), lambda output: output.column(0)
    )
    extra = batch().replace(extras={"position_ids": np.tile(np.arange(7)[::-1], (6, 1))})
    refuses("position_ids of example 0 are [6, 5", extra, LOGIT)


def test_labels_of_positions_are_refused() -> None:
    per_position = ReferenceModel(
        lambda own, input_ids, attention_mask=None: lookup(own["E"], input_ids),
        {"E": np.random.default_rng(2).normal(size=(VOCAB, 3))},
    )
    labels = embgrad.CrossEntropy(np.zeros(batch().shape, int))
    with pytest.raises(
        embgrad.errors.UnsupportedError, match="the objective has a label for each position, \\(6, 7\\)"
    ):
        embgrad.search(per_position, batch(), labels, UniversalTrigger(2), tokenizer=Tokenizer())


@pytest.mark.parametrize(("beam", "evaluations"), [(1, 1 + 2 + 2 + 1), (2, 1 + 2 + 2 * 2 + 1)])
def test_each_trigger_of_the_beam_has_its_candidates_at_each_position(beam: int, evaluations: int) -> None:
    """Beside these, each text runs without a trigger, and with the best one."""
    method = UniversalTrigger(2, steps=1, candidates=2, beam=beam, examples=None)
    found = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), stable=False)
    assert found.history.evaluations[-1].tolist() == [evaluations] * len(TEXTS)
    assert found.history.gradients[-1].tolist() == [1] * len(TEXTS)


def test_some_of_the_texts_show_the_best_of_all_triggers() -> None:
    method = UniversalTrigger(1, steps=6, candidates=VOCAB, examples=3)
    found = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), stable=False)
    assert np.asarray(found.trigger).tolist() == best_trigger(1, "start")[0]


@pytest.mark.parametrize(("examples", "whole"), [(None, True), (6, True), (7, True), (5, False)])
def test_all_texts_are_used_where_there_are_no_more(examples: int | None, whole: bool) -> None:
    drawn = UniversalTrigger(examples=examples)._draw(6, 0).tolist()
    assert (drawn == [0, 1, 2, 3, 4, 5]) is whole
    assert drawn == sorted(set(drawn))


def test_rounds_go_through_all_texts_in_another_order_each() -> None:
    method = UniversalTrigger(examples=2)
    steps = [method._draw(6, number).tolist() for number in range(6)]
    for in_round in (steps[:3], steps[3:]):
        assert sorted(np.concatenate(in_round).tolist()) == [0, 1, 2, 3, 4, 5]
    assert steps[:3] != steps[3:]
    odd = [UniversalTrigger(examples=4)._draw(7, number).tolist() for number in range(2)]
    assert [len(drawn) for drawn in odd] == [4, 4]


@pytest.mark.parametrize(
    ("initial", "wanted"),
    [([3, 4], [3, 4]), ([0, 4], [0, 4]), ([-1, 4], None), ([3], None), ([3.0, 4.0], None), ([[3], [4, 5]], None)],
)
def test_initial_ids_are_whole_numbers_of_the_length(initial: Any, wanted: list[int] | None) -> None:
    found = universal_trigger._whole(initial, 2)
    assert (None if found is None else found.tolist()) == wanted


def test_a_trigger_that_stays_is_not_evaluated_again() -> None:
    """Of the 11 ordinary ids 10 are tried in each step, and then the best one on all texts, if it is another."""
    method = UniversalTrigger(1, steps=5, candidates=VOCAB, examples=None)
    found = embgrad.search(model(), batch(), LOGIT, method, tokenizer=Tokenizer(), stable=False)
    assert found.history.evaluations[:, 0].tolist() == [1, 12, 22, 22, 22, 22][: len(found.history.evaluations)]
    assert len(found.history.evaluations) > 2


def test_any_id_but_the_own_replaces_a_token_of_a_trigger() -> None:
    made = texts()
    found = UniversalTrigger(2)._replace(made, made.everything, np.array([3, 4]), 0, np.array([0, 5, 3, -1]))
    assert found.tolist() == [[0, 4], [5, 4]]
