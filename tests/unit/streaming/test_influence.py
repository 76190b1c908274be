"""Influence of training examples by the table: the inner products of whole gradients, and what a step of descent does."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import embgrad
from embgrad.common.keywords import ArgumentError
from embgrad.errors import BatchError, EmbgradError, ObjectiveError
from embgrad.results import Influence
from embgrad.streaming.influence import Best
from tests.unit.streams import CLASSES, LABELLED, labels, model, rows, texts, tokenizer

TRAIN = list(rows(17))
TEST = list(zip(texts(3, seed=5), [2, 0, 1], strict=True))


def influence(models: Any = None, train: Any = TRAIN, objective: Any = LABELLED, **options: Any) -> Influence:
    given = model(dtype="float64") if models is None else models
    return embgrad.tables.influence(
        given, train, TEST, objective, **{"tokenizer": tokenizer, "batch_size": 4, **options}
    )


def whole(given: Any, items: list[tuple[str, int]]) -> np.ndarray:
    """Return the dense gradients of the table by examples, each run alone, (example, row × dim)."""
    found = []
    for text, label in items:
        g = embgrad.gradients(given, [text], embgrad.CrossEntropy([label]), tokenizer=tokenizer)
        found.append(g.table().to_dense().ravel())
    return np.array(found)


def by_hand(models: list[Any], rates: list[float]) -> np.ndarray:
    """Return all scores, (test example, training example)."""
    return sum(rate * whole(each, TEST) @ whole(each, TRAIN).T for each, rate in zip(models, rates, strict=True))  # type: ignore[return-value]


def dense(found: Influence) -> np.ndarray:
    """Return the scores of all training examples in their order."""
    scores = np.empty(found.proponents.shape)
    np.put_along_axis(scores, found.proponents, found.proponent_scores, 1)
    return scores


def test_scores_are_inner_products_of_whole_gradients() -> None:
    given = model(dtype="float64")
    found = influence(given, top=None)
    np.testing.assert_allclose(dense(found), by_hand([given], [1.0]), rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.opponents, found.proponents[:, ::-1])
    assert (found.shape, found.count) == ((3, 17), 17)


def test_checkpoints_are_summed_by_their_learning_rates() -> None:
    models = [model(seed, "float64") for seed in (0, 1)]
    found = influence(models, top=None, rates=[0.5, 0.125])
    np.testing.assert_allclose(dense(found), by_hand(models, [0.5, 0.125]), rtol=1e-12, atol=1e-12)
    assert found.provenance["rates"] == [0.5, 0.125]
    np.testing.assert_allclose(dense(influence(models, top=None)), by_hand(models, [1.0, 1.0]), rtol=1e-12, atol=1e-12)


def test_a_step_of_descent_on_a_proponent_lowers_the_loss_by_its_score() -> None:
    found = influence(top=1)
    rate = 1e-6
    for example, (text, label) in enumerate(TEST):
        for numbers, scores in (
            (found.proponents, found.proponent_scores),
            (found.opponents, found.opponent_scores),
        ):
            given = model(dtype="float64")
            before = embgrad.evaluate(given, [text], embgrad.CrossEntropy([label]), tokenizer=tokenizer)[0]
            step = whole(given, [TRAIN[numbers[example, 0]]]).reshape(given["E"].value.shape)
            given["E"].value[:] -= rate * step
            after = embgrad.evaluate(given, [text], embgrad.CrossEntropy([label]), tokenizer=tokenizer)[0]
            np.testing.assert_allclose((before - after) / rate, scores[example, 0], rtol=1e-4)


@pytest.mark.parametrize("size", [1, 5, 32])
def test_the_first_of_each_kind_are_kept_whatever_the_batches(size: int) -> None:
    scores = by_hand([model(dtype="float64")], [1.0])
    found = influence(top=3, batch_size=size)
    order = np.argsort(-scores, axis=1, kind="stable")
    np.testing.assert_array_equal(found.proponents, order[:, :3])
    np.testing.assert_array_equal(found.opponents, order[:, :-4:-1])
    np.testing.assert_allclose(found.opponent_scores, np.sort(scores, axis=1)[:, :3], rtol=1e-12)


def letters(text: str) -> list[int]:
    """Return the ids of a text without special tokens, which all texts would share."""
    return [3 + ord(letter) - ord("a") for letter in text]


def test_examples_without_a_common_id_have_no_influence() -> None:
    found = embgrad.tables.influence(
        model(), [("abc", 0)], [("xyz", 0), ("xya", 0)], LABELLED, tokenizer=letters, top=1
    )
    assert found.proponent_scores[0, 0] == 0 != found.proponent_scores[1, 0]


def test_of_equal_scores_the_earlier_example_comes_first() -> None:
    train = [(text, 0) for text in ("uvw", "xyz", "u", "w", "z")]
    found = embgrad.tables.influence(model(), train, [("abc", 0)], LABELLED, tokenizer=letters, top=3, batch_size=2)
    np.testing.assert_array_equal(found.proponents, [[0, 1, 2]])
    np.testing.assert_array_equal(found.opponents, [[0, 1, 2]])
    assert influence(train=TRAIN[:2], top=5).proponents.shape == (3, 2)


def test_arrays_of_labels_are_of_training_examples_and_the_tests_have_their_own() -> None:
    train, test = (embgrad.CrossEntropy([label for _, label in items]) for items in (TRAIN, TEST))
    options = {"tokenizer": tokenizer, "test_objective": test, "top": None, "batch_size": 4}
    found = embgrad.tables.influence(model(dtype="float64"), texts(17), [text for text, _ in TEST], train, **options)
    np.testing.assert_array_equal(dense(found), dense(influence(top=None)))
    with pytest.raises(ObjectiveError) as raised:
        embgrad.tables.influence(model(), texts(17), texts(3), train, tokenizer=tokenizer)
    assert raised.value.message == (
        "the objective has arguments with 17 entries, one for each training example: pass test_objective=... with those of the "
        "test examples, or Labelled(...) and labels beside the texts"
    )
    shared = embgrad.tables.influence(model(), texts(5), texts(3), embgrad.Sum(), tokenizer=tokenizer)
    assert shared.shape == (3, 5)


def test_a_generator_is_read_once() -> None:
    np.testing.assert_array_equal(dense(influence(train=iter(TRAIN), top=None)), dense(influence(top=None)))
    with pytest.raises(BatchError) as raised:
        influence([model(0), model(1)], train=rows(5))
    assert raised.value.message == (
        "train is a generator, which can be read once, and there are 2 checkpoints: pass a list"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rates": [1.0, 2.0]}, "rates is [1.0, 2.0]: expected a list of 1 finite numbers, as there are 1 checkpoint"),
        ({"rates": [np.nan]}, "rates is [nan]: expected a list of 1 finite numbers, as there are 1 checkpoint"),
        ({"top": 0}, "top is 0: expected a whole number of at least 1, or None"),
        (
            {"train": []},
            "the source is empty: expected one text or batch at least; was it a generator, and read before?",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbgradError) as raised:
        influence(**options)
    assert raised.value.message == message


def test_a_call_without_an_objective_is_refused() -> None:
    with pytest.raises(ArgumentError):
        embgrad.tables.influence(model(), TRAIN, TEST)  # type: ignore[call-arg]


def test_a_table_has_a_row_for_each_test_example_and_training_example() -> None:
    found = influence(top=2)
    frame = found.to_pandas()
    assert list(frame) == ["kind", "example", "rank", "training_example", "score"]
    assert len(frame) == 2 * 3 * 2
    row = frame[(frame.kind == "opponent") & (frame.example == 1) & (frame["rank"] == 1)].iloc[0]
    assert (row.training_example, row.score) == (found.opponents[1, 1], found.opponent_scores[1, 1])


def test_the_first_examples_are_printed_with_their_texts(capsys: pytest.CaptureFixture[str]) -> None:
    found = influence(top=2)
    found.show([text * 20 for text, _ in TRAIN], 1, most=1)
    first, kind, line, other, _ = capsys.readouterr().out.splitlines()
    assert (first, kind.strip(), other.strip()) == ("test example 1", "proponents", "opponents")
    score, number, text = line.split()
    assert (int(number), float(score)) == (
        found.proponents[1, 0],
        pytest.approx(found.proponent_scores[1, 0], rel=1e-3),
    )
    assert len(text) == 70
    assert text.startswith(TRAIN[int(number)][0])
    found.show(examples=0)
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * 3
    with pytest.raises(BatchError) as raised:
        found.show(["a"])
    assert raised.value.message == "texts has 1 entries, and 17 examples were trained on: pass all of these"
    assert repr(found).startswith(
        "Influence(3 test × 17 training examples, the first 2 of each kind, by CrossEntropy of "
    )
    assert max(labels(17)) < CLASSES


def test_the_terms_of_all_common_tokens_add_up_to_the_score() -> None:
    models, rates = [model(seed, "float64") for seed in (0, 1)], [0.5, 0.125]
    found = influence(models, top=4, tokens=100, rates=rates)
    tables = [
        [whole(each, items).reshape(len(items), *each["E"].value.shape) for items in (TEST, TRAIN)] for each in models
    ]
    by_id = sum(rate * np.einsum("evd,tvd->etv", *sides) for rate, sides in zip(rates, tables, strict=True))
    for kind in ("proponent", "opponent"):
        numbers, ids, terms = (getattr(found, f"{kind}{name}") for name in ("s", "_ids", "_terms"))
        np.testing.assert_allclose(terms.sum(2), getattr(found, f"{kind}_scores"), rtol=1e-12)
        for test, rank, place in np.argwhere(ids >= 0):
            expected = by_id[test, numbers[test, rank], ids[test, rank, place]]
            np.testing.assert_allclose(terms[test, rank, place], expected, rtol=1e-12)
        assert (np.diff(np.abs(terms), axis=2) <= 0).all(), "the largest come first"
        assert not terms[ids < 0].any()


@pytest.mark.parametrize("size", [1, 5, 32])
def test_the_tokens_with_the_largest_terms_are_kept_whatever_the_batches(size: int) -> None:
    every = influence(top=3, tokens=100, batch_size=4)
    found = influence(top=3, tokens=2, batch_size=size)
    np.testing.assert_array_equal(found.proponent_ids, every.proponent_ids[..., :2])
    np.testing.assert_allclose(found.opponent_terms, every.opponent_terms[..., :2], rtol=1e-10)
    assert found.names is None, "the tokenizer is a function, which names no ids"


def of_letters(**options: Any) -> Influence:
    """Return the influence of three texts on one, with the tokens of their common letters."""
    train = [("abc", 0), ("xyz", 1), ("abx", 1)]
    return embgrad.tables.influence(model(), train, [("abz", 0)], LABELLED, tokenizer=Letters(), tokens=3, **options)


class Letters:
    """A tokenizer of letters that lists its tokens."""

    vocab: ClassVar[dict[str, int]] = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 3)}

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text."""
        return letters(text)


def test_tokens_are_named_printed_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    found = of_letters(top=2)
    assert set(found.names.values()) <= {*"abz"}
    found.show(most=1)
    lines = capsys.readouterr().out.splitlines()
    first = [found.names[id_] for id_ in found.proponent_ids[0, 0].tolist() if id_ >= 0]
    assert [part.split()[0] for part in lines[3].split(", ")] == first
    assert float(lines[3].split(", ")[0].split()[1]) == pytest.approx(found.proponent_terms[0, 0, 0], rel=0.05)
    frame = found.to_pandas(by="tokens")
    assert list(frame) == ["kind", "example", "rank", "training_example", "id", "token", "score"]
    sums = frame.groupby(["kind", "rank"]).score.sum()
    np.testing.assert_allclose(sums["opponent"], found.opponent_scores[0], rtol=1e-6)
    with pytest.raises(EmbgradError) as raised:
        influence(top=2).to_pandas(by="tokens")
    assert raised.value.message == (
        "the influence has no tokens: call embgrad.tables.influence with tokens=..., the number kept"
    )


@pytest.mark.parametrize("found", [influence(top=2), of_letters(top=3)], ids=["scores", "tokens"])
def test_an_influence_is_restored_from_a_file(found: Influence, tmp_path: Path) -> None:
    found.save(tmp_path / "i.safetensors")
    loaded = embgrad.load(tmp_path / "i.safetensors")
    assert isinstance(loaded, Influence)
    for name in fields(found):
        actual, expected = getattr(loaded, name.name), getattr(found, name.name)
        if isinstance(expected, np.ndarray):
            np.testing.assert_array_equal(actual, expected)
            assert actual.dtype == expected.dtype
        elif name.name != "provenance":
            assert actual == expected
    assert repr(loaded) == repr(found)
    embgrad.save({"x": found}, tmp_path / "named.safetensors")
    assert list(embgrad.load(tmp_path / "named.safetensors")) == ["x"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"count": 16}, "holds 16 as count: expected a whole number above 16, an index of an example"),
        ({"opponent_terms": None}, "lacks some of the ids and terms of tokens: expected what embgrad.save writes"),
        (
            {"names": {1: "a"}, "proponents": -np.ones((3, 2), np.int64)},
            "holds -1 in proponents: expected no number below",
        ),
    ],
)
def test_an_influence_that_does_not_fit_is_not_written(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    found = replace(influence(top=2, tokens=2), **{"proponents": np.full((3, 2), 16), **changed})
    with pytest.raises(EmbgradError) as raised:
        found.save(tmp_path / "i.safetensors")
    assert message in raised.value.message


def test_ten_of_each_kind_are_kept_by_default() -> None:
    made = influence(model())
    assert made.proponents.shape == made.opponents.shape == (3, 10)


def test_only_the_first_are_held_and_shorter_lists_of_tokens_end_in_no_id() -> None:
    best = Best(2, 1)
    for start in (0, 3):
        best.add(np.array([[1.0, 5.0, 3.0]]) + start, np.arange(start, start + 3)[None])
    assert [entry.tolist() for entry in best.result()] == [[[4, 5]], [[8.0, 6.0]]]
    assert len(best._kept) == 1
    best._terms = {(0, 4): (np.array([7, 9]), np.array([0.5, 7.5])), (0, 5): (np.array([3]), np.array([6.0]))}
    ids, terms = best.terms()
    assert ids.tolist() == [[[7, 9], [3, -1]]]
    assert terms.tolist() == [[[0.5, 7.5], [6.0, 0.0]]]
    every = Best(None, -1)
    every.add(np.array([[1.0, 5.0]]), np.array([[0, 1]]))
    every.add(np.array([[1.0, 0.0]]), np.array([[2, 3]]))
    assert every.result()[0].tolist() == [[3, 0, 2, 1]]
