"""Ids in one row, with the index at which each example begins: results have the layout (example, position, dim)."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.refusals import refused

RANDOM = np.random.default_rng(3)
WEIGHTS = {"E": RANDOM.normal(size=(10, 3)), "W": RANDOM.normal(size=(3, 2))}
IDS, OFFSETS = np.array([1, 2, 3, 4, 4, 5]), np.array([0, 2, 5])
ROWS = np.array([[1, 2, 0], [3, 4, 4], [5, 0, 0]])
MASK = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0]])
LOGIT = embgrad.Logit(1)


def means(rows: Tensor, offsets: np.ndarray) -> Tensor:
    """Return the mean of each example's rows, (example, dim)."""
    ends = np.append(offsets[1:], len(rows.value))
    places = np.arange(len(rows.value))
    member = ((places >= offsets[:, None]) & (places < ends[:, None])) / (ends - offsets)[:, None]
    return (rows.swap(0, 1) @ Tensor(member.T)).swap(0, 1)


def bag(model: Any, text: np.ndarray, offsets: np.ndarray) -> Tensor:
    return means(lookup(model["E"], text), offsets) @ model["W"]


def features(model: Any, features: dict[str, np.ndarray]) -> Tensor:
    return bag(model, features["input_ids"], features["offsets"])


def any_names(model: Any, **inputs: np.ndarray) -> Tensor:
    return bag(model, inputs["input_ids"], inputs["offsets"])


def positional(model: Any, *inputs: np.ndarray) -> Tensor:
    return bag(model, *inputs)


def by_hand() -> np.ndarray:
    return np.asarray(MASK[..., None] / MASK.sum(1)[:, None, None] * WEIGHTS["W"][:, 1])


@pytest.mark.parametrize("forward", [bag, features, any_names, positional])
@pytest.mark.parametrize("key", ["text", "input_ids"])
def test_values_have_the_examples_and_positions_of_the_texts(forward: Any, key: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = embgrad.gradients(ReferenceModel(forward, WEIGHTS), {key: IDS, "offsets": OFFSETS}, LOGIT)
    np.testing.assert_array_equal(result.ids, ROWS)
    np.testing.assert_array_equal(result.mask, MASK)
    np.testing.assert_allclose(result.values, by_hand(), atol=1e-15)
    sums = (WEIGHTS["E"][ROWS] * MASK[..., None]).sum(1)
    np.testing.assert_allclose(result.objective, sums @ WEIGHTS["W"][:, 1] / MASK.sum(1))
    assert (result.provenance["unused"], result.provenance["convention"]) == ([], "packed")


def test_a_call_gets_the_row_and_the_offsets() -> None:
    def call(model: Any, inputs: Any) -> Tensor:
        return model(inputs["input_ids"], inputs["offsets"])

    result = embgrad.gradients(
        ReferenceModel(bag, WEIGHTS), {"input_ids": IDS, "offsets": OFFSETS}, LOGIT, call=call, batch_size=2
    )
    np.testing.assert_allclose(result.values, by_hand(), atol=1e-15)


def test_every_function_takes_packed_ids() -> None:
    model, batch = ReferenceModel(bag, WEIGHTS), {"text": IDS, "offsets": OFFSETS}
    products = (by_hand() * WEIGHTS["E"][ROWS]).sum(-1)
    for method in ("input_x_gradient", embgrad.methods.IntegratedGradients(2), embgrad.methods.Occlusion("zero")):
        made = embgrad.attribute(model, batch, LOGIT, method)
        np.testing.assert_allclose(made.scores, products, atol=1e-12)
    table = np.zeros((10, 3))
    np.add.at(table, ROWS, by_hand() * MASK[..., None])
    np.testing.assert_allclose(embgrad.tables.table_gradients(model, batch, LOGIT).total, table, atol=1e-15)
    assert embgrad.gradients(model, batch, LOGIT, check=True).certificate is not None
    infidelity = embgrad.metrics.infidelity(model, batch, LOGIT, products, remove="zero", keep_special=False, samples=4)
    np.testing.assert_allclose(infidelity, 0, atol=1e-20)
    found = embgrad.search(model, batch, LOGIT, embgrad.methods.HotFlip(steps=1))
    best = WEIGHTS["E"][:, :] @ WEIGHTS["W"][:, 1]
    assert found.batch.ids[2, 0] == best.argmax()
    by_deletion = embgrad.metrics.infidelity(
        model, batch, LOGIT, products, removed=np.array([[[1, 0, 0], [0, 1, 0], [0, 0, 0]]], bool), keep_special=False
    )
    alone = WEIGHTS["E"] @ WEIGHTS["W"][:, 1]
    change = (alone[1] + alone[2]) / 2 - alone[2]
    np.testing.assert_allclose(by_deletion[0], (products[0, 0] - change) ** 2)


def test_further_inputs_pass_through() -> None:
    def weighted(model: Any, text: np.ndarray, offsets: np.ndarray, scale: np.ndarray) -> Tensor:
        return bag(model, text, offsets) * Tensor(scale[:, None])

    batch = {"text": IDS, "offsets": OFFSETS, "scale": np.array([1.0, 2.0, 3.0])}
    for size in (None, 1):
        result = embgrad.gradients(ReferenceModel(weighted, WEIGHTS), batch, LOGIT, batch_size=size)
        np.testing.assert_allclose(result.values, by_hand() * np.array([1, 2, 3])[:, None, None], atol=1e-15)


def test_what_is_no_packed_batch_is_said() -> None:
    model = ReferenceModel(bag, WEIGHTS)
    for offsets in ([0, 2, 2], [1, 3], [0, 3, 6], [0, 4, 2], []):
        with refused(BatchError, "for 6 ids in one row: expected the index at which each example begins"):
            embgrad.gradients(model, {"text": IDS, "offsets": np.array(offsets, int)}, LOGIT)
    with refused(BatchError, "expected two axes, (example, position)"):
        embgrad.gradients(model, {"input_ids": IDS}, LOGIT)
    with refused(BatchError, "none of them holds the token ids"):
        embgrad.gradients(model, {"offsets": OFFSETS}, LOGIT)
    whole = {"input_ids": ROWS, "offsets": OFFSETS}  # a further input of this name

    def padded(model: Any, input_ids: np.ndarray, offsets: np.ndarray) -> Tensor:
        return (lookup(model["E"], input_ids).sum(1) + Tensor(offsets[:, None] * np.ones(3))) @ model["W"]

    assert embgrad.gradients(ReferenceModel(padded, WEIGHTS), whole, LOGIT).values.shape == (3, 3, 3)

    def alone(model: Any, text: np.ndarray) -> Tensor:
        return lookup(model["E"], text) @ model["W"]

    with refused(BatchError, "ids in one row with 'offsets', and the model takes no input of that name"):
        embgrad.gradients(ReferenceModel(alone, WEIGHTS), {"text": IDS, "offsets": OFFSETS}, embgrad.Sum())


class Words:
    """A tokenizer that splits at white space, as sentence-transformers has one."""

    def get_vocab(self) -> list[str]:
        """Return the words."""
        return ["", "a", "film", "the", "plot", "thin", "x", "y", "z", "w"]


class Encoder(ReferenceModel):
    """A sentence encoder, which makes its own inputs of texts."""

    tokenizer = Words()

    def encode(self, texts: list[str]) -> np.ndarray:
        """Return the outputs."""
        return np.asarray(self(self.preprocess(texts)).value)

    def preprocess(self, texts: list[str]) -> dict[str, np.ndarray]:
        """Return ids in one row."""
        rows = [[Words().get_vocab().index(word) for word in text.split()] for text in texts]
        starts = np.cumsum([0, *map(len, rows[:-1])])
        return {"input_ids": np.concatenate(rows), "offsets": starts}


def test_a_sentence_encoder_makes_its_own_inputs() -> None:
    model = Encoder(features, WEIGHTS)
    texts = ["a film", "the plot plot", "thin"]
    result = embgrad.gradients(model, texts, LOGIT)
    np.testing.assert_array_equal(result.ids, ROWS)
    np.testing.assert_allclose(result.values, by_hand(), atol=1e-15)
    np.testing.assert_allclose(result.objective, model.encode(texts)[:, 1])
    assert result.tokens == (("a", "film", ""), ("the", "plot", "plot"), ("thin", "", ""))
    assert embgrad.gradients(model, "a film", LOGIT).ids.tolist() == [[1, 2]]
    with refused(BatchError, "max_length is 2, and Encoder makes ids of texts by its own method 'preprocess'"):
        embgrad.gradients(model, texts, LOGIT, max_length=2)
    with refused(BatchError, "Encoder raised ValueError for these texts in its own method 'preprocess'"):
        embgrad.gradients(model, ["unknown"], LOGIT)


@pytest.mark.parametrize("named", [True, False])
def test_a_model_with_other_parameters_takes_the_rest_by_name(named: bool) -> None:
    def forward(model: Any, ids: np.ndarray, **more: np.ndarray) -> Tensor:
        return bag(model, ids, more["offsets"]) * Tensor(more["scale"][:, None])

    batch = {("ids" if named else "text"): IDS, "offsets": OFFSETS, "scale": np.ones(3)}
    result = embgrad.gradients(ReferenceModel(forward, WEIGHTS), batch, LOGIT)
    np.testing.assert_allclose(result.values, by_hand(), atol=1e-15)


def test_a_method_that_takes_no_list_leaves_it_to_the_tokenizer() -> None:
    class Own(ReferenceModel):
        """A model with methods of the same names."""

        @staticmethod
        def tokenizer(text: str) -> list[int]:
            """Return the ids of a text."""
            return [Words().get_vocab().index(word) for word in text.split()]

        def encode(self, text: str) -> list[int]:
            """Return the ids of a text."""
            return self.tokenizer(text)

        def tokenize(self, text: str) -> list[str]:
            """Return the words of a text."""
            return text.split()

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return (lookup(model["E"], input_ids) * Tensor(attention_mask[..., None] * 1.0)).sum(1) @ model["W"]

    result = embgrad.gradients(Own(forward, WEIGHTS), ["a film", "plot"], LOGIT)
    np.testing.assert_array_equal(result.ids, [[1, 2], [4, 0]])
