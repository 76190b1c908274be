"""TokenBatch: what it takes, what it refuses and in which words, and every convention both ways."""

from __future__ import annotations

import collections
import copy
import pickle
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

import embgrad
from tests.unit.refusals import refused
from tests.unit.tensorlike import GluonLike, TensorFlowLike, TorchLike

IDS = np.array([[1, 2, 3], [4, 5, 6]])
RIGHT = np.array([[1, 1, 1], [1, 1, 0]])
LEFT = np.array([[1, 1, 1], [0, 1, 1]])
TYPES = np.array([[0, 0, 1], [0, 1, 0]])


class UnconvertibleLike(TorchLike):
    """Refuses as a bfloat16 tensor of PyTorch does."""

    def cpu(self) -> UnconvertibleLike:
        return self

    def detach(self) -> UnconvertibleLike:
        return self

    def numpy(self) -> np.ndarray:
        raise TypeError("Got unsupported ScalarType BFloat16")

    def tolist(self) -> Any:
        raise NotImplementedError("no storage")


def test_fields_hold_the_arguments() -> None:
    batch = embgrad.TokenBatch(
        IDS, RIGHT, TYPES, tokens=[list("abc"), list("def")], words=[[-1, 0, 0], [0, 1, -1]], truncated=[0, 4]
    )
    np.testing.assert_array_equal(batch.ids, IDS)
    np.testing.assert_array_equal(batch.mask, RIGHT)
    np.testing.assert_array_equal(batch.types, TYPES)
    assert batch.tokens == (("a", "b", "c"), ("d", "e", "f"))
    assert batch.words.tolist() == [[-1, 0, 0], [0, 1, -1]]
    assert batch.truncated.tolist() == [0, 4]
    assert batch.shape == (2, 3)
    assert len(batch) == 2
    assert batch.padded
    for array in (batch.ids, batch.mask, batch.types, batch.words, batch.truncated):
        assert array.dtype == np.int64


def test_tokens_of_an_iterator_are_kept() -> None:
    texts = [["a", "b", "c"], ["d", "e", "f"]]
    batch = embgrad.TokenBatch(IDS, tokens=iter(texts))
    assert batch == embgrad.TokenBatch(IDS, tokens=texts)
    assert batch.tokens == (("a", "b", "c"), ("d", "e", "f"))
    with pytest.raises(embgrad.errors.BatchError, match=r"tokens are 1 lists of the lengths \[3\]"):
        embgrad.TokenBatch(IDS, tokens=iter(texts[:1]))


def test_omitted_fields_are_none() -> None:
    batch = embgrad.TokenBatch([[1, 2]])
    assert batch.mask is batch.types is batch.tokens is batch.words is None
    assert batch.truncated.tolist() == [0]
    assert not batch.padded
    assert batch.real.tolist() == [[True, True]]


@pytest.mark.parametrize("kind", [int, bool, float, np.float16, np.float32, np.int8, np.uint8, np.int32, np.uint64])
def test_ids_and_masks_of_any_type(kind: Any) -> None:
    batch = embgrad.TokenBatch(IDS if kind is bool else IDS.astype(kind), RIGHT.astype(kind))
    np.testing.assert_array_equal(batch.ids, IDS)
    np.testing.assert_array_equal(batch.mask, RIGHT)
    assert batch.mask.dtype == np.int64


@given(npst.arrays(np.int64, st.tuples(st.integers(1, 4), st.integers(1, 5)), elements=st.integers(0, 2**62)))
def test_ids_come_through_every_way_of_giving_them(ids: np.ndarray) -> None:
    rows = [list(map(int, row)) for row in ids]
    ways = [ids, rows, tuple(map(tuple, rows)), list(ids), GluonLike(ids), TorchLike(ids), TensorFlowLike(ids)]
    ways += [[wrapper(row) for row in ids] for wrapper in (GluonLike, TorchLike, TensorFlowLike)]
    ways += [np.asfortranarray(ids), ids.astype(">i8"), ids.view(np.uint64)]
    for way in ways:
        np.testing.assert_array_equal(embgrad.TokenBatch(way).ids, ids)


@given(st.integers(0, 2**54), st.sampled_from([np.float16, np.float32, np.float64]))
def test_a_float_id_is_that_number_or_refused(number: int, kind: Any) -> None:
    with np.errstate(over="ignore"):
        given_as = np.array([[number]]).astype(kind)
    if number < 2 ** (np.finfo(kind).nmant + 1):
        assert embgrad.TokenBatch(given_as).ids.tolist() == [[number]]
    else:
        with pytest.raises(embgrad.errors.BatchError, match="expected whole numbers, exactly represented"):
            embgrad.TokenBatch(given_as)


@pytest.mark.parametrize(
    ("number", "kind"),
    [(2049, np.float16), (2048, np.float16), (2**24 + 1, np.float32), (2**53 + 1, np.float64), (2**63, np.longdouble)],
)
def test_a_float_id_that_may_have_been_rounded_is_refused(number: int, kind: Any) -> None:
    with pytest.raises(
        embgrad.errors.BatchError, match=r"at example 0, position 1, and float\d+ rounds whole numbers above"
    ):
        embgrad.TokenBatch(np.array([[1, number]], kind))


def test_a_matrix_becomes_a_plain_array() -> None:
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix(IDS)
    assert embgrad.TokenBatch(matrix).ids[0].shape == (3,)


def test_the_callers_arrays_are_neither_kept_nor_changed() -> None:
    ids, mask, types = IDS.copy(), RIGHT.copy(), TYPES.copy()
    batch = embgrad.TokenBatch(ids, mask, types)
    ids[:], mask[:], types[:] = 9, 0, 9
    np.testing.assert_array_equal(batch.ids, IDS)
    np.testing.assert_array_equal(batch.mask, RIGHT)
    np.testing.assert_array_equal(batch.types, TYPES)
    assert ids.flags.writeable


@pytest.mark.parametrize(
    ("ids", "fragments"),
    [
        (["one text"], ["ids are text", "expected token ids", "embgrad.encode"]),
        ("text", ["ids are text", "embgrad.encode"]),
        (b"text", ["ids are text"]),
        (np.array([["a"]], object), ["ids are text"]),
        ([[1, 2], [3]], ["rectangular array", "lengths [2, 1]", "pad them, with mask=0", "embgrad.encode"]),
        ([[1, [2]], [3, 4]], ["ids cannot be read as a rectangular array", "got [[1, [2]], [3, 4]]"]),
        ([], ["the batch is empty", "shape (0,)", "expected one example and one position at least"]),
        ([[]], ["the batch is empty", "shape (1, 0)"]),
        (np.zeros((0, 4)), ["the batch is empty", "shape (0, 4)"]),
        ([1, 2, 3], ["ids have shape (3,)", "expected two axes, (example, position)", "for one example write [ids]"]),
        (7, ["ids have shape ()", "expected two axes"]),
        (np.zeros((2, 3, 4)), ["ids have shape (2, 3, 4)", "expected two axes"]),
        ([[1, -100]], ["ids holds -100 at example 0, position 1", "expected no number below 0", "mask=0"]),
        ([[1.0, 2.5]], ["ids holds 2.5 at example 0, position 1", "expected whole numbers", "pass an integer array"]),
        ([[1, np.nan]], ["ids holds nan at example 0, position 1", "expected whole numbers"]),
        ([[np.inf, 1]], ["ids holds inf at example 0, position 0"]),
        ([[True, False]], ["ids are of dtype bool", "expected whole numbers", "convert them to integers"]),
        ([[1j]], ["ids are of dtype complex128", "expected whole numbers"]),
        ([[1, 2**70]], ["got [[1, 1180591620717411303424]]", "expected an array of integers"]),
        (np.array([[2**63]], np.uint64), ["ids are of dtype uint64"]),
        ([[1, None]], ["got [[1, None]]", "expected an array of integers"]),
        ([[1, "a"]], ["ids are of dtype <U21"]),
        (None, ["got None"]),
        ({1, 2}, ["got {1, 2}"]),
        (object(), ["got <object object"]),
        ([{"a": 1}], ["got [{'a': 1}]"]),
        (IDS.astype(object), ["got [[1, 2, 3], [4, 5, 6]] (of dtype object; its .tolist() may do)"]),
        (np.ma.array(IDS, mask=IDS > 4), ["masked array, whose mask would be lost"]),
        (UnconvertibleLike(IDS), ["got a UnconvertibleLike (Got unsupported", "expected an array of integers"]),
        ([UnconvertibleLike([1, 2])], ["unsupported ScalarType BFloat16"]),
        (np.array([["2020-01-01"]], "datetime64[D]"), ["dtype datetime64[D]", "convert them to integers"]),
    ],
    ids=lambda value: None if isinstance(value, list) else type(value).__name__,
)
def test_ids_that_are_refused(ids: Any, fragments: list[str]) -> None:
    with refused(embgrad.errors.BatchError, *fragments):
        embgrad.TokenBatch(ids)


@pytest.mark.parametrize(
    ("fields", "fragments"),
    [
        ({"mask": [[1, 1]]}, ["mask has shape (1, 2)", "expected (2, 3), as the ids"]),
        ({"mask": np.ones((2, 1, 1, 3))}, ["mask has shape (2, 1, 1, 3)", "expected (2, 3)"]),
        ({"mask": 1}, ["mask has shape ()", "expected (2, 3)"]),
        ({"mask": RIGHT * 2}, ["mask holds 2 at example 0, position 0", "expected 1 at real positions and 0"]),
        ({"mask": RIGHT * -1e9}, ["mask holds -1000000000.0 at example 0, position 0", "additive masks", "call=..."]),
        ({"mask": [[1, 1, 1], [np.nan, 1, 1]]}, ["mask holds nan at example 1, position 0"]),
        ({"mask": [[0, -np.inf, 0], [0, 0, 0]]}, ["mask holds -inf at example 0, position 1"]),
        ({"mask": [[0.5, 1, 1], [1, 1, 1]]}, ["mask holds 0.5 at example 0, position 0"]),
        ({"mask": [["1", "1", "0"]] * 2}, ["mask is of dtype <U1", "integers, floats or bools"]),
        ({"mask": np.ones((2, 3), complex)}, ["mask is of dtype complex128", "integers, floats or bools"]),
        ({"mask": np.zeros((2, 3), [("a", int)])}, ["mask is of dtype [('a'", "integers, floats or bools"]),
        ({"mask": [[1, 1, None]] * 2}, ["mask cannot be read as", "got [[1, 1, None], [1, 1, None]]"]),
        ({"mask": [[1, 1], [1]]}, ["mask cannot be read as a rectangular array", "lengths [2, 1]"]),
        ({"types": [[0, 0, 1]]}, ["types has shape (1, 3)", "expected (2, 3), as the ids"]),
        ({"types": TYPES - 1}, ["types holds -1 at example 0, position 0", "no number below 0"]),
        ({"types": TYPES + 0.5}, ["types holds 0.5 at example 0, position 0", "expected whole numbers"]),
        ({"words": TYPES - 2}, ["words holds -2 at example 0, position 0", "no number below -1"]),
        ({"truncated": [1]}, ["truncated has shape (1,)", "expected (2,), one for each example"]),
        ({"truncated": [1, -1]}, ["truncated holds -1 at example 1"]),
        ({"tokens": [["a", "b", "c"]]}, ["tokens are 1 lists of the lengths [3]", "expected 2 lists of 3"]),
        ({"tokens": [["a", "c"]] * 2}, ["of the lengths [2, 2]", "one token for each position, padding included"]),
        ({"tokens": [1, 2]}, ["tokens are [1, 2]", "expected a list of tokens for each example"]),
        ({"tokens": ["abc", "def"]}, ["tokens are ['abc', 'def']", "expected a list of tokens for each example"]),
        ({"tokens": 3}, ["tokens are 3: expected a list of tokens for each example"]),
        ({"convention": "hugingface"}, ["convention is 'hugingface'", "'keras_hub'", "Did you mean 'huggingface'?"]),
        ({"convention": None}, ["convention is None", "expected one of 'huggingface'"]),
        ({"convention": np.array(["ids", "tfhub"])}, ["convention is array", "expected one of 'huggingface'"]),
        ({"mask_is_bool": "no"}, ["mask_is_bool is 'no': expected True or False"]),
        *(({"extras": extras}, [f"extras is {extras!r}: expected a dict"]) for extras in ([1, 2], "ab", {3: 4})),
        ({"extras": {"input_ids": IDS}}, ["holds 'input_ids', the name of the batch's own ids", "as ids=..., or"]),
        ({"mask": RIGHT, "extras": {"attention_mask": IDS}}, ["'attention_mask', the name of the batch's own mask"]),
        ({"convention": "tfhub", "extras": {"input_type_ids": IDS}}, ["batch's own types in the convention 'tfhub'"]),
        ({"shared": ["bias"]}, ["shared names 'bias': expected names of extras."]),
        ({"extras": {"bias": 1}, "shared": "bia"}, ["'bia': expected names of extras", "Did you mean 'bias'"]),
        ({"extras": {"bias": 1}, "shared": 3}, ["shared names 3: expected names of extras, which are 'bias'"]),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], fragments: list[str]) -> None:
    with refused(embgrad.errors.BatchError, *fragments):
        embgrad.TokenBatch(IDS, **fields)


def test_a_batch_is_immutable() -> None:
    batch = embgrad.TokenBatch(IDS, RIGHT, TYPES, words=TYPES, extras={"position_ids": IDS})
    with pytest.raises(AttributeError, match="immutable: cannot set 'ids'; build a new one"):
        batch.ids = IDS
    with pytest.raises(AttributeError, match="cannot set 'nothing'"):
        batch.nothing = 1
    with pytest.raises(AttributeError, match="cannot delete 'mask'"):
        del batch.mask
    for array in (batch.ids, batch.mask, batch.types, batch.words, batch.truncated):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    with pytest.raises(TypeError):
        batch.extras["position_ids"] = None


def test_inputs_can_be_written_to_without_changing_it() -> None:
    batch = embgrad.TokenBatch(IDS, RIGHT, TYPES)
    for named in (batch.to_huggingface(), batch.to_tfhub(), batch.to_keras_hub()):
        for array in (*named.values(), *batch.to_gluonnlp()):
            array[...] = 0
    np.testing.assert_array_equal(batch.ids, IDS)
    np.testing.assert_array_equal(batch.mask, RIGHT)
    np.testing.assert_array_equal(batch.types, TYPES)


def test_replace_makes_another_one() -> None:
    batch = embgrad.TokenBatch(IDS, RIGHT, extras={"a": 1}, convention="tfhub")
    other = batch.replace(mask=None)
    assert other.mask is None
    assert other.convention == "tfhub"
    assert other.extras == {"a": 1}
    np.testing.assert_array_equal(batch.mask, RIGHT)
    with pytest.raises(embgrad.errors.BatchError, match="mask has shape"):
        batch.replace(ids=IDS[:1])


FULL: dict[str, Any] = {
    "ids": IDS,
    "mask": RIGHT,
    "types": TYPES,
    "words": TYPES,
    "tokens": [list("abc"), list("def")],
    "truncated": [0, 1],
    "extras": {"position_ids": IDS, "use_cache": False},
    "convention": "tfhub",
}
OTHER: dict[str, Any] = {
    "ids": IDS + 1,
    "mask": LEFT,
    "types": None,
    "words": TYPES - 1,
    "tokens": [list("abc"), list("xyz")],
    "truncated": [1, 0],
    "extras": {"position_ids": IDS, "use_cache": True},
    "convention": "keras_hub",
}


def test_equality_is_by_value() -> None:
    assert embgrad.TokenBatch(**FULL) == embgrad.TokenBatch(**FULL)
    assert embgrad.TokenBatch(IDS) != IDS.tolist()
    with pytest.raises(TypeError, match="unhashable"):
        hash(embgrad.TokenBatch(IDS))


@pytest.mark.parametrize("field", OTHER)
def test_each_field_counts_for_equality(field: str) -> None:
    assert embgrad.TokenBatch(**FULL) != embgrad.TokenBatch(**{**FULL, field: OTHER[field]})
    if field not in ("ids", "convention"):
        assert embgrad.TokenBatch(**FULL) != embgrad.TokenBatch(**{**FULL, field: None})


def test_extras_count_for_equality_at_any_depth() -> None:
    def batch(factor: float = 2, key: str = "a", last: int = 3) -> embgrad.TokenBatch:
        extras = {"cache": {key: np.arange(3.0)}, "layers": ((IDS, IDS * factor), None), "ragged": [[1], [2, last]]}
        return embgrad.TokenBatch(IDS, extras=extras)

    assert batch() == batch()
    for other in (batch(factor=3), batch(key="b"), batch(last=4)):
        assert batch() != other


@pytest.mark.parametrize("copied", [lambda b: pickle.loads(pickle.dumps(b)), copy.copy, copy.deepcopy])
def test_copies_are_equal_and_immutable(copied: Any) -> None:
    batch = embgrad.TokenBatch(**FULL)
    again = copied(batch)
    assert again is not batch
    assert again == batch
    with pytest.raises(AttributeError):
        again.ids = IDS
    with pytest.raises(ValueError, match="read-only"):
        again.ids[0, 0] = 3


def test_repr_says_what_is_in_it() -> None:
    text = repr(embgrad.TokenBatch(**FULL))
    for fragment in ("2 examples × 3 positions", "1 of them padding", "with types", "1 tokens cut off 1 examples"):
        assert fragment in text
    assert "also 'position_ids', 'use_cache'" in text
    assert repr(embgrad.TokenBatch([[1]])) == "TokenBatch(1 examples × 1 positions)"


@pytest.mark.parametrize("examples", [slice(0, 1), slice(1, 2), slice(None), slice(None, None, -1)])
def test_slices_cut_every_field(examples: slice) -> None:
    batch = embgrad.TokenBatch(**FULL)
    cut = batch[examples]
    for name in ("ids", "mask", "types", "words", "truncated"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(batch, name)[examples])
    assert cut.tokens == batch.tokens[examples]
    assert cut.convention == "tfhub"
    np.testing.assert_array_equal(cut.extras["position_ids"], IDS[examples])


def test_examples_are_taken_by_their_numbers() -> None:
    batch = embgrad.TokenBatch(**FULL)
    np.testing.assert_array_equal(batch.take([1, 0, 1]).ids, IDS[[1, 0, 1]])
    for wrong in ([0, len(IDS)], [-1, 0], [], [[0]], [0.5], [[0], [0, 1]], 0):
        with refused(embgrad.errors.BatchError, f"expected indices from 0 to {len(IDS) - 1}"):
            batch.take(wrong)


def test_extras_that_are_shared_are_never_cut() -> None:
    extras = {"bias": np.arange(len(IDS)), "weights": np.arange(len(IDS))}
    batch = embgrad.TokenBatch(IDS, extras=extras, shared=["bias"])
    assert batch.of_each == ["weights"]
    cut = batch[1:]
    np.testing.assert_array_equal(cut.extras["bias"], extras["bias"])
    np.testing.assert_array_equal(cut.extras["weights"], extras["weights"][1:])
    assert cut.shared == {"bias"}
    assert batch.replace(extras={"weights": 1}).shared == set()
    assert batch.replace(extras={"bias": 1, "other": 2}).shared == {"bias"}
    assert batch.replace(extras=None).shared == set()
    assert batch == pickle.loads(pickle.dumps(batch))
    assert batch != batch.replace(shared=[])


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_nests_are_cut_where_their_arrays_have_an_entry_an_example() -> None:
    rows, layer, shared = np.arange(2.0), np.arange(12.0).reshape(2, 3, 2), np.ones((1, 2))
    extras = {
        "dict": {"rows": rows, "deep": {"more": layer, "shared": shared}, "lengths": [3, 4], "name": "ab"},
        "layers": ((layer, layer + 1), (layer + 2, None)),
        "states": (layer, layer + 1),
        "pair": Pair(layer, shared),
        "read only": MappingProxyType({"rows": rows}),
        "vectors": [rows, rows],
        "dicts": [{"box": np.zeros((5, 4))}, {"box": np.ones((2, 4))}],
        "three": (shared, shared, shared),
        "lists": [[1, 2], [3, 4]],
        "list": [7, 8],
        "array": IDS,
    }
    whole = {
        "triples": ([1, 2], [3, 4], [5, 6]),
        "shared": np.zeros((1, 3)),
        "flag": True,
        "name": "ab",
        "scalar": np.float32(2),
        "none": None,
    }
    batch = embgrad.TokenBatch(IDS, extras=extras | whole)
    assert batch.of_each == [name for name in extras if name != "three"]
    cut = batch[1:].extras
    assert cut["dict"]["rows"].tolist() == [1.0]
    assert (cut["dict"]["lengths"], cut["dict"]["name"]) == ([4], "ab")
    assert cut["dict"]["deep"]["shared"] is shared
    np.testing.assert_array_equal(cut["dict"]["deep"]["more"], layer[1:])
    np.testing.assert_array_equal(cut["layers"][0], (layer[1:], layer[1:] + 1))
    np.testing.assert_array_equal(cut["layers"][1][0], layer[1:] + 2)
    assert cut["layers"][1][1] is None
    np.testing.assert_array_equal(cut["states"], (layer[1:], layer[1:] + 1))
    assert type(cut["pair"]) is Pair
    np.testing.assert_array_equal(cut["pair"].first, layer[1:])
    assert cut["pair"].second is shared
    assert cut["read only"]["rows"].tolist() == [1.0]
    assert len(cut["vectors"]) == 1, "a list of arrays is one array"
    assert [item["box"].shape for item in cut["dicts"]] == [(2, 4)]
    assert cut["three"] is extras["three"]
    assert (cut["lists"], cut["list"]) == ([[3, 4]], [8])
    np.testing.assert_array_equal(cut["array"], IDS[1:])
    assert all(cut[name] is value for name, value in whole.items())
    assert extras["dict"]["rows"] is rows
    assert not np.array_equal(extras["layers"][0][0], layer[1:])


def test_only_slices_cut() -> None:
    with pytest.raises(TypeError, match="by a slice of examples, not by int"):
        embgrad.TokenBatch(IDS)[0]
    with pytest.raises(embgrad.errors.BatchError, match="the batch is empty"):
        embgrad.TokenBatch(IDS)[5:]
