"""`embgrad.substitutions` on models in NumPy: exact where L is linear, the dense computation's elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from embgrad.token_search import is_word
from tests.unit.attribution.models import BATCH, IDS, MASK, VOCAB, curved, linear
from tests.unit.refusals import refused

LOGIT = embgrad.Logit(1)
TOKENS = ["[PAD]", "[CLS]", "[SEP]", "film", "##ing", "book", "7", "movie", "play", "song", "[UNK]", "dull"]


class Tokenizer:
    """A tokenizer whose special tokens are the ids 0, 1, 2 and 10."""

    all_special_ids, unk_token_id = (0, 1, 2, 10), 10

    def get_vocab(self) -> dict[str, int]:
        return {token: id_ for id_, token in enumerate(TOKENS)}

    def convert_ids_to_tokens(self, id_: int) -> str:
        return TOKENS[id_]


def by_hand(model: Any, batch: Any, objective: Any, sign: int, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and scores, (example, position, top), from a gradient and the scores of the whole table."""
    result = embgrad.gradients(model, batch, objective)
    table = np.asarray(model["E"].value, np.float64)
    scores = ((table - result.activations[..., None, :]) * result.values[..., None, :]).sum(-1)
    np.put_along_axis(scores, result.ids[..., None], -np.inf * sign, 2)
    order = np.argsort(-sign * scores, axis=-1, kind="stable")[..., :top]
    return order, np.take_along_axis(scores, order, -1)


def test_of_a_linear_model_the_estimate_is_the_change_of_the_objective() -> None:
    model = linear()
    made = embgrad.substitutions(model, BATCH, LOGIT)
    assert made.shape == (2, 4, VOCAB)
    np.testing.assert_array_equal(made.searched, MASK)
    before = embgrad.evaluate(model, BATCH, LOGIT)
    for example, position in np.argwhere(made.searched).tolist():
        assert sorted(made.ids[example, position, :-1]) == sorted({*range(VOCAB)} - {IDS[example, position]})
        for id_, score in zip(made.ids[example, position, :-1], made.scores[example, position, :-1], strict=True):
            ids = IDS.copy()
            ids[example, position] = id_
            after = embgrad.evaluate(model, BATCH.replace(ids=ids), LOGIT)
            np.testing.assert_allclose(after[example] - before[example], score, atol=1e-12)
    np.testing.assert_allclose(made.objective, before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("goal", "sign"), [("maximize", 1), ("minimize", -1)])
@pytest.mark.parametrize("size", [None, 1])
def test_the_best_ids_are_those_of_the_dense_computation(dtype: str, goal: str, sign: int, size: int | None) -> None:
    model, objective = curved(dtype), embgrad.CrossEntropy([0, 1])
    made = embgrad.substitutions(model, BATCH, objective, top=5, goal=goal, batch_size=size)
    ids, scores = by_hand(model, BATCH, objective, sign, 5)
    real = MASK.astype(bool)
    np.testing.assert_array_equal(made.ids[real], ids[real])
    np.testing.assert_allclose(made.scores[real], scores[real], atol=1e-6 if dtype == "float32" else 1e-12)
    assert (made.ids[~real] == -1).all()
    assert (made.scores[~real] == -np.inf * sign).all()
    assert made.goal == made.provenance["goal"] == goal


def test_a_function_as_objective_and_parts_of_a_model() -> None:
    model = curved()
    expected = embgrad.substitutions(model, BATCH, LOGIT, top=4)
    second = Tensor(np.array([0.0, 1.0]))
    made = embgrad.substitutions(model, BATCH, lambda outputs: (outputs * second).sum(1), top=4)
    np.testing.assert_array_equal(made.ids, expected.ids)
    np.testing.assert_allclose(made.scores, expected.scores, rtol=1e-12)
    parts = embgrad.substitutions(
        [model], BATCH, LOGIT, top=4, call=lambda parts, inputs: parts[0](inputs["input_ids"], inputs["attention_mask"])
    )
    np.testing.assert_array_equal(parts.ids, expected.ids)


def test_a_table_that_the_model_computes_and_one_that_is_scaled_afterwards() -> None:
    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(9, 3)), "U": np.diag([2.0, 1, 3]), "W": random.normal(size=(3, 2))}

    def computed(model: Any, input_ids: np.ndarray) -> Tensor:
        return lookup(model["E"] @ model["U"], input_ids).sum(1).tanh() @ model["W"]

    def scaled(model: Any, input_ids: np.ndarray) -> Tensor:
        return (lookup(model["E"], input_ids) @ model["U"]).sum(1).tanh() @ model["W"]

    ids = [[3, 1, 8]]
    made = [
        embgrad.substitutions(ReferenceModel(forward, dict(weights)), ids, LOGIT, top=8)
        for forward in (computed, scaled)
    ]
    np.testing.assert_array_equal(made[0].ids, made[1].ids)
    np.testing.assert_allclose(made[0].scores, made[1].scores, rtol=1e-12)


def test_allowed_tokens_and_positions_of_a_tokenizer() -> None:
    batch = embgrad.TokenBatch([[1, 3, 8, 2], [1, 4, 2, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]])
    made = embgrad.substitutions(curved(), batch, LOGIT, tokenizer=Tokenizer(), allowed=is_word)
    assert np.argwhere(made.searched).tolist() == [[0, 1], [0, 2], [1, 1]]
    assert made.shape[2] == 6  # film, book, movie, play, song, dull
    assert sorted(made.ids[0, 1]) == [-1, 5, 7, 8, 9, 11]
    assert sorted(made.ids[1, 1]) == [3, 5, 7, 8, 9, 11]
    assert made.scores[0, 1, -1] == -np.inf
    assert made.names == {3: "film", 5: "book", 7: "movie", 8: "play", 9: "song", 11: "dull"}
    assert made.tokens is not None
    assert made.tokens[0] == ("[CLS]", "film", "play", "[SEP]")
    assert made.provenance["allowed"] == 6
    other = embgrad.substitutions(curved(), batch, LOGIT, tokenizer=Tokenizer(), positions=-1, allowed=[0, 3])
    assert np.argwhere(other.searched).tolist() == [[0, 3], [1, 2]]
    assert set(other.ids[other.searched].ravel()) == {0, 3}


def test_the_tokenizer_of_a_model_names_tokens() -> None:
    model = curved()
    model.tokenizer = Tokenizer()  # type: ignore[attr-defined]
    made = embgrad.substitutions(model, [[3, 8]], LOGIT)
    assert made.names is not None
    assert set(made.ids[0, 0, :-1]) == {4, 5, 6, 7, 8, 9, 11}


def test_what_was_made_is_not_of_the_callers_arrays() -> None:
    model, batch = curved(), embgrad.TokenBatch(IDS, MASK)
    made = embgrad.substitutions(model, batch, LOGIT, top=2)
    table = model["E"].value.copy()
    for array in (made.ids, made.scores, made.original, made.mask, made.objective):
        assert array is not None
        array[...] = 0
    np.testing.assert_array_equal(model["E"].value, table)
    np.testing.assert_array_equal(batch.ids, IDS)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"goal": "maximise"}, embgrad.EmbgradError, "'maximise': expected 'maximize' or 'minimize'. Did you mean 'maximize'?"),
        ({"top": 0}, embgrad.errors.BatchError, "top is 0: expected a whole number of at least 1"),
        ({"top": None}, embgrad.errors.BatchError, "top is None: expected a whole number of at least 1"),
        ({"positions": 7}, embgrad.errors.BatchError, "the position 7 of example 0 is outside its 4 positions"),
        ({"allowed": [99]}, embgrad.EmbgradError, "allowed names the id 99"),
        ({"objective": embgrad.Scalar(lambda outputs: outputs)}, embgrad.errors.UnsupportedError, "Scalar objective has one val"),
        ({"split": True}, embgrad.EmbgradError, "substitutions takes no 'split'"),
        ({"batch": ["a text"]}, embgrad.errors.BatchError, "the batch is raw text"),
    ],
)  # fmt: skip
def test_other_arguments_are_refused(options: dict[str, Any], kind: type[Exception], message: str) -> None:
    with refused(kind, message):
        embgrad.substitutions(curved(), **{"batch": BATCH, "objective": LOGIT, **options})
