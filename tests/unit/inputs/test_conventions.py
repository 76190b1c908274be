"""The formats of a batch: a dict, a tuple or bare ids by each convention, a model's own names, and ids in one row."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import embgrad
from embgrad.errors import BatchError
from embgrad.inputs.batch import CONVENTIONS
from embgrad.inputs.conventions import as_batch, batch_of
from embgrad.inputs.decoder import decoder_by_labels, positions_of
from tests.unit.inputs.test_batch import IDS, LEFT, RIGHT, TYPES
from tests.unit.refusals import refused
from tests.unit.tensorlike import GluonLike


def test_to_huggingface_returns_the_fields_that_are_set() -> None:
    assert list(embgrad.TokenBatch(IDS).to_huggingface()) == ["input_ids"]
    named = embgrad.TokenBatch(IDS, RIGHT, TYPES).to_huggingface()
    assert list(named) == ["input_ids", "attention_mask", "token_type_ids"]
    for value, expected in zip(named.values(), (IDS, RIGHT, TYPES), strict=True):
        np.testing.assert_array_equal(value, expected)
        assert value.dtype == np.int64


@pytest.mark.parametrize(
    ("convention", "keys", "needed"),
    [
        ("tfhub", ["input_word_ids", "input_mask", "input_type_ids"], 3),
        ("keras_hub", ["token_ids", "padding_mask", "segment_ids"], 2),
    ],
)
def test_formats_that_demand_more_than_the_ids(convention: str, keys: list[str], needed: int) -> None:
    """Only some models of keras-hub take `segment_ids`: they are not invented."""
    for batch, expected in (
        (embgrad.TokenBatch(IDS, LEFT, TYPES), (IDS, LEFT, TYPES)),
        (embgrad.TokenBatch(IDS), (IDS, np.ones_like(IDS), np.zeros_like(IDS))[:needed]),
    ):
        named = getattr(batch, f"to_{convention}")()
        assert list(named) == keys[: len(expected)]
        for value, wanted in zip(named.values(), expected, strict=True):
            np.testing.assert_array_equal(value, wanted)
            assert value.dtype == np.int32


def test_gluonnlp_takes_valid_lengths() -> None:
    ids, types, valid_length = embgrad.TokenBatch(IDS, RIGHT, TYPES).to_gluonnlp()
    np.testing.assert_array_equal(ids, IDS)
    np.testing.assert_array_equal(types, TYPES)
    assert valid_length.tolist() == [3.0, 2.0]
    assert (ids.dtype, types.dtype, valid_length.dtype) == (np.int32, np.int32, np.float32)
    _, types, valid_length = embgrad.TokenBatch(IDS).to_gluonnlp()
    assert types.tolist() == [[0] * 3] * 2
    assert valid_length.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("mask", [LEFT, [[1, 0, 1], [1, 1, 1]]])
def test_gluonnlp_cannot_say_where_other_padding_is(mask: Any) -> None:
    with pytest.raises(BatchError, match=r"example \d is not padded on the right only.*padding_side='right'"):
        embgrad.TokenBatch(IDS, mask).to_gluonnlp()


@pytest.mark.parametrize("method", ["to_tfhub", "to_keras_hub", "to_gluonnlp"])
def test_an_id_that_int32_cannot_hold_is_refused(method: str) -> None:
    with pytest.raises(BatchError, match=r"holds 4294967301, which int32 cannot hold: expected numbers up to"):
        getattr(embgrad.TokenBatch([[2**32 + 5]]), method)()
    getattr(embgrad.TokenBatch([[2**31 - 1]]), method)()


@given(
    npst.arrays(np.int64, (3, 4), elements=st.integers(0, 99)),
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    npst.arrays(np.int64, (3, 4), elements=st.integers(0, 1)),
)
def test_every_convention_both_ways(ids: np.ndarray, lengths: list[int], types: np.ndarray) -> None:
    mask = np.arange(4) < np.array(lengths)[:, None]
    for convention in ("huggingface", "tfhub", "keras_hub", "gluonnlp"):
        batch = embgrad.TokenBatch(ids, mask, types, convention=convention)
        assert as_batch(batch.inputs()) == batch


@pytest.mark.parametrize("convention", ["huggingface", "tfhub", "keras_hub"])
def test_omitted_fields_have_no_key(convention: str) -> None:
    ids, mask, types = CONVENTIONS[convention]
    for given_as in ({ids: IDS}, {ids: IDS, mask: RIGHT}, {ids: IDS, types: RIGHT}, {ids: IDS, mask: RIGHT, "more": 3}):
        inputs = as_batch(given_as).inputs()
        assert list(inputs) == list(given_as)
        assert inputs[next(iter(inputs))].dtype == (np.int64 if "input_ids" in inputs else np.int32)


def test_a_triple_without_types_gets_zeros() -> None:
    batch = as_batch((GluonLike(IDS.astype(np.float32)), None, GluonLike(np.array([3.0, 2.0], np.float32))))
    assert batch.types is None
    np.testing.assert_array_equal(batch.mask, RIGHT)
    for actual, expected in zip(batch.inputs(), (IDS, np.zeros_like(IDS), [3, 2]), strict=True):
        np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("ids", [IDS, ([1, 2], [3, 4], [5, 6])])
def test_bare_ids_stay_bare(ids: Any) -> None:
    batch = as_batch(ids)
    assert batch.convention == "ids"
    np.testing.assert_array_equal(batch.inputs(), ids)


class Encoding:
    """An encoding of the library `tokenizers`."""

    def __init__(self, ids: list[int], words: list[int | None]) -> None:
        self.ids, self.word_ids = ids, words
        self.tokens = [f"token {number}" for number in ids]
        self.sequence_ids = [None if word is None else 0 for word in words]


class BatchEncoding(collections.UserDict):
    """A mapping with encodings beside it, as Hugging Face's."""

    encodings: Any = None


def test_encodings_beside_the_ids_give_tokens_and_words() -> None:
    given_as = BatchEncoding(input_ids=[[5, 6, 7], [8, 9, 7]])
    given_as.encodings = [Encoding([5, 6, 7], [0, 0, None]), Encoding([8, 9, 7], [0, 1, None])]
    batch = as_batch(given_as)
    assert batch.tokens == (("token 5", "token 6", "token 7"), ("token 8", "token 9", "token 7"))
    assert batch.words.tolist() == [[0, 0, -1], [0, 1, -1]]
    given_as["input_ids"] = [[5, 6, 8], [8, 9, 7]]  # changed since: the names would be wrong
    assert as_batch(given_as).tokens is None
    given_as.encodings = None  # of a tokenizer that is written in Python
    assert as_batch(given_as).tokens is None


@pytest.mark.parametrize(
    ("given_as", "fragments"),
    [
        ("a film", ["the batch is raw text", "pass tokenizer=...", "embgrad.encode(texts, tokenizer)"]),
        *(
            (text, ["the batch is raw text"])
            for text in (["a film"], [("premise", "hypothesis")], np.array(["a film"]), np.array(["a film"], object))
        ),
        ({}, ["a dict with the keys none", "expected one of 'input_ids'"]),
        ({"input_id": IDS}, ["the keys 'input_id'", "Did you mean 'input_ids'?", "call=..."]),
        ({"ids": IDS}, ["the keys 'ids'", "expected one of 'input_ids', 'input_word_ids', 'token_ids'"]),
        ({3: IDS}, ["the keys 3"]),
        ({"input_ids": IDS, "token_ids": IDS}, ["token ids under 'input_ids', 'token_ids'", "only one of these keys"]),
        ({"input_ids": IDS, "padding_mask": RIGHT}, ["mixes", "'padding_mask'", "'token_ids'", "rename it"]),
        ({"input_ids": None}, ["ids cannot be read as a rectangular array", "got None"]),
        ((IDS, TYPES, [0, 1]), ["valid_length is [0, 1]", "if these are labels, pass them to the objective"]),
        ((IDS, TYPES, [3, 4]), ["valid_length is [3, 4]", "2 whole numbers", "from 1 to 3"]),
        *(((IDS, TYPES, lengths), [f"valid_length is {lengths}"]) for lengths in ([3], [-1, 2], [1.5, 2])),
        ((IDS, TYPES), ["ids have shape (2, 2, 3)"]),
    ],
)
def test_batches_that_are_refused(given_as: Any, fragments: list[str]) -> None:
    with refused(BatchError, *fragments):
        as_batch(given_as)


# A model's own names of inputs


class Called:
    """A model that is called with ids under another name, as PyTorch's modules may be."""

    def forward(self, words: Any, lengths: Any, mask: Any = None) -> Any: ...


class Known:
    """A model whose second parameter has a name that means ids."""

    def call(self, lengths: Any, ids: Any, training: bool = False) -> Any: ...


def declaring(*names: str) -> Any:
    """Return what declares its inputs as a functional Keras model does."""
    return SimpleNamespace(inputs=[SimpleNamespace(name=name) for name in names])


OWN_IDS, OWN_MASK = np.array([[1, 2, 3], [4, 5, 0]]), np.array([[1, 1, 1], [1, 1, 0]])


@pytest.mark.parametrize(
    ("model", "ids"),
    [(Called(), "words"), (Known(), "ids"), (declaring("words", "lengths"), "words"),
        (declaring("other", "tokens"), "tokens"), (declaring("words", "mask"), "words")],
)  # fmt: skip
def test_a_dict_with_a_models_own_names(model: Any, ids: str) -> None:
    mapping = {ids: OWN_IDS, "lengths": np.array([3, 2]), "mask": OWN_MASK == 1, "other": OWN_IDS + 1}
    batch = batch_of(mapping, None, model=model)
    np.testing.assert_array_equal(batch.ids, OWN_IDS)
    np.testing.assert_array_equal(batch.mask, OWN_MASK)
    assert batch.mask_is_bool
    assert list(batch.extras) == ["lengths", "other"]


@pytest.mark.parametrize(
    ("model", "mapping"),
    [
        (None, {"words": OWN_IDS}),
        (Called(), {"tokens": OWN_IDS, "lengths": np.array([3, 2])}),
        (Called(), {"words": OWN_IDS + 0.5}),
        (Called(), {"lengths": np.array([3, 2]), "labels": OWN_IDS}),
        (declaring("premise", "hypothesis"), {"premise": OWN_IDS, "hypothesis": OWN_IDS}),
        (declaring("labels"), {"words": OWN_IDS}),
    ],
)
def test_a_dict_without_known_ids_is_refused(model: Any, mapping: Any) -> None:
    with pytest.raises(BatchError, match="and none of them holds the token ids"):
        batch_of(mapping, None, model=model)


def test_a_tokenizer_that_is_given_goes_before_the_models_own() -> None:
    model = SimpleNamespace(tokenizer=lambda *texts: [1, 2, 3])
    assert batch_of(["a"], None, model=model).ids.tolist() == [[1, 2, 3]]
    assert batch_of(["a"], lambda *texts: [4, 5], model=model).ids.tolist() == [[4, 5]]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [([[7, 8, -100], [9, -100, -100]], [[1, 1, 0], [1, 0, 0]]), ([1, 0], None), ([[7, 8, 9]], None),
        ([[[7, 8, 9]] * 2] * 2, None), ([[0.5, 1.0], [2.0, 3.0]], None)],
)  # fmt: skip
def test_labels_of_each_example_and_position_say_which_positions_a_decoder_has(labels: Any, expected: Any) -> None:
    found = decoder_by_labels(embgrad.TokenBatch(IDS, extras={"labels": labels}))
    assert (None if found is None else found.real.astype(int).tolist()) == expected
    assert decoder_by_labels(embgrad.TokenBatch(IDS)) is None
    batch = embgrad.TokenBatch(np.ones((2, 5), int), extras={"labels": labels})
    of_decoder = positions_of((2, 3, 7), batch, None)
    assert of_decoder.shape == ((2, 3) if expected is not None else (2, 5))
    assert positions_of((2, 5, 7), batch, None) is positions_of((2, 4, 7), batch, None) is batch


@pytest.mark.parametrize("key", ["text", "input_ids"])
def test_ids_in_one_row_are_cut_at_the_offsets(key: str) -> None:
    batch = as_batch({key: [4, 5, 6, 7, 8], "offsets": [0, 3], "weights": [0.5, 1.5]})
    assert batch.ids.tolist() == [[4, 5, 6], [7, 8, 0]]
    assert batch.mask.tolist() == [[1, 1, 1], [1, 1, 0]]
    assert (batch.convention, list(batch.extras)) == ("packed", ["weights"])
    with refused(BatchError, "offsets is [0, 5] for 5 ids in one row", "5 is the end of the row: omit it"):
        as_batch({key: [4, 5, 6, 7, 8], "offsets": [0, 5]})
