"""The result: figures and words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.results.row_sparse import scatter
from tests.unit.refusals import refused
from tests.unit.stored import IDS, result


def marked(tokens: list[str], numbers: list[int] | None = None, mask: list[int] | None = None) -> Any:
    """Return a result of one example with these tokens, and gradients of 1, 2, 3, …"""
    size = len(tokens)
    return result(
        np.float64,
        values=np.arange(1.0, size + 1)[None, :, None],
        activations=np.full((1, size, 1), 2.0),
        objective=np.zeros(1),
        ids=np.zeros((1, size), np.int64),
        mask=None if mask is None else np.array([mask]),
        types=None,
        tokens=(tuple(tokens),),
        words_of=None if numbers is None else np.array([numbers]),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_tables_are_sums_over_positions(dtype: Any) -> None:
    item = result(dtype)
    dense = np.zeros((10, 4))
    for index in np.ndindex(2, 3):
        dense[IDS[index]] += item.values[index]
    np.testing.assert_allclose(item.table().to_dense(), dense, rtol=1e-6)
    assert item.table().shape == (10, 4)
    assert item.table().values.dtype == dtype
    each = item.per_example()
    assert [table.rows.tolist() for table in each] == [[3, 5], [0, 3, 7]]
    np.testing.assert_allclose(sum(table.to_dense() for table in each), dense, rtol=1e-6)
    np.testing.assert_allclose(each[0].to_dense()[5], item.values[0, 1:].sum(0), rtol=1e-6)


def test_tables_of_split_results_are_their_own() -> None:
    tables = tuple(scatter(IDS, np.full((2, 3, 4), float(number)), 10) for number in (1, 10))
    item = result(tables=tables)
    assert item.per_example() == list(tables)
    assert item.table().to_dense()[3].tolist() == [22.0] * 4
    assert item.table().to_dense()[5].tolist() == [22.0] * 4


def test_saliency_kinds() -> None:
    item = result()
    np.testing.assert_allclose(item.saliency(), np.linalg.norm(item.values, axis=-1), rtol=1e-6)
    np.testing.assert_array_equal(item.saliency("norm"), item.saliency())
    np.testing.assert_allclose(item.saliency("dot"), (item.values * item.activations).sum(-1), rtol=1e-5, atol=1e-6)
    for dtype in (np.float32, np.float64):
        assert result(dtype).saliency("norm").dtype == result(dtype).saliency("dot").dtype == dtype


@pytest.mark.parametrize(
    ("dtype", "size"), [(np.float32, 1e-30), (np.float32, 1e30), (np.float64, 1e-200), (np.float64, 1e200)]
)
def test_gradients_whose_squares_are_no_number_have_a_saliency(dtype: type, size: float) -> None:
    item = result(dtype, values=np.full((2, 3, 4), size, dtype))
    np.testing.assert_allclose(item.saliency(), 2 * size, rtol=1e-6)
    words = [word.saliency for word in item.words()[0]]
    np.testing.assert_allclose(words, [2 * size, 2 * size * np.sqrt(2)], rtol=1e-6)
    assert f"norm {size * np.sqrt(24):.4g}," in repr(item)


@pytest.mark.parametrize("kind", ["nrom", None, 2, np.array(["norm", "dot"])])
def test_an_unknown_kind(kind: Any) -> None:
    for ask in (result().saliency, result().words):
        with refused(embgrad.EmbgradError, f"kind is {kind!r}", ": expected 'norm' or 'dot'"):
            ask(kind)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (["[CLS]", "grip", "##ping", "film", "[SEP]"], ["[CLS]", "gripping", "film", "[SEP]"]),
        (["##ping", "film"], ["ping", "film"]),
        (["a", "##b", "##c", "d"], ["abc", "d"]),
        (["[CLS]", "##s"], ["[CLS]", "s"]),
        (["The", "Ġcat", "s", "Ġsat", "."], ["The", "cats", "sat."]),
        (["<s>", "▁The", "▁cat", "s", "</s>"], ["<s>", "The", "cats", "</s>"]),
        (["▁The", "</s>", "<pad>"], ["The", "</s>", "<pad>"]),
        (["Ġa", "<|endoftext|>", "b"], ["a", "<|endoftext|>", "b"]),
        (["a", "b"], ["a", "b"]),
        (["", "a"], ["", "a"]),
        (["電", "##影", "🎬"], ["電影", "🎬"]),
    ],
)
def test_words_by_the_marks_of_the_tokens(tokens: list[str], expected: list[str]) -> None:
    assert [word.text for word in marked(tokens).words()[0]] == expected


@pytest.mark.parametrize(
    ("tokens", "numbers", "expected"),
    [
        (["[CLS]", "do", "n", "##t", "[SEP]"], [-1, 0, 0, 0, -1], ["[CLS]", "dont", "[SEP]"]),
        (["a", "b", "c"], [0, 0, 1], ["ab", "c"]),
        (["a", "a"], [0, 1], ["a", "a"]),
        (["[SEP]", "[SEP]"], [-1, -1], ["[SEP]", "[SEP]"]),
        (["▁The", "▁cat", "s"], [0, 0, 0], ["The", "cats"]),  # a tokenizer without a pre-tokenizer
    ],
)
def test_words_of_the_tokenizers_own(tokens: list[str], numbers: list[int], expected: list[str]) -> None:
    assert [word.text for word in marked(tokens, numbers).words()[0]] == expected


def test_a_words_saliency_is_that_of_its_tokens_together() -> None:
    item = marked(["[CLS]", "grip", "##ping"])
    norm, dot = item.words()[0], item.words("dot")[0]
    assert norm[1] == ("gripping", (1, 2), pytest.approx(np.hypot(2, 3)))
    assert dot[1] == ("gripping", (1, 2), pytest.approx(2 * 2 + 2 * 3))
    assert norm[0] == ("[CLS]", (0,), pytest.approx(1.0))
    assert isinstance(norm[0].saliency, float)


def test_padding_is_not_part_of_words() -> None:
    left = marked(["[PAD]", "[PAD]", "a", "##b"], mask=[0, 0, 1, 1])
    assert [(word.text, word.positions) for word in left.words()[0]] == [("ab", (2, 3))]
    gap = marked(["a", "[PAD]", "##b"], mask=[1, 0, 1])
    assert [word.text for word in gap.words()[0]] == ["a", "b"]
    assert marked(["[PAD]"], mask=[0]).words() == [[]]
    assert [[word.text for word in words] for words in result().words()] == [["[CLS]", "gripping"], ["[CLS]", "naïve"]]


def test_words_need_tokens() -> None:
    with pytest.raises(embgrad.EmbgradError, match=r"tokens of this result are not known: .*embgrad.encode"):
        result(tokens=None).words()


def test_a_point_without_positions_has_no_words() -> None:
    message = r"the point 'pool' has the shape \(2,\) without its last axis: expected \(2, 3\), .*only such points have a score"
    with pytest.raises(embgrad.EmbgradError, match=message):
        result(values=np.ones((2, 4)), activations=np.ones((2, 4)), provenance={"point": "pool"}).words()


@pytest.mark.parametrize(
    ("path", "override", "why"),
    [("E#0", ["word"], "was overridden"), ("E#0", None, "is no lookup"), ("block:output#0", ["block"], "is no lookup"),
        ("block:output#0", None, "is no lookup")],
)  # fmt: skip
def test_a_point_without_a_table_has_no_table_gradient(path: str, override: Any, why: str) -> None:
    found = result(vocab=None, provenance={"point": "p", "path": path, "override": override})
    with pytest.raises(embgrad.errors.PointError, match=f"the point 'p' {why}, so that there is no table"):
        found.table()


def test_repr_says_what_it_is() -> None:
    text = repr(result())
    for fragment in ("2 × 3 × 4 float32", "at 'word' = 'E' of some.Model (reference)", "Sum = 0.5, 1.25", "1 padded"):
        assert fragment in text
    assert "leak 1e-09" in text
    assert "no mask" in repr(result(mask=None))
    assert "Sum = 0.5" in repr(result(objective=np.array(0.5)))
    assert "1, 1, 1, …" in repr(result(objective=np.ones(9)))
    assert "None" in repr(result(provenance={}))


def test_a_result_is_its_values_to_numpy() -> None:
    item = result()
    assert np.asarray(item) is item.values
    assert item.__array__() is item.values  # as NumPy 1 asks
    assert np.asarray(item, np.float64).dtype == np.float64
    np.testing.assert_array_equal(np.abs(item), np.abs(item.values))
    np.testing.assert_array_equal(np.array([item, item])[1], item.values)
    copied = np.array(item)
    np.testing.assert_array_equal(copied, item.values)
    for copy in (copied, item.__array__(copy=True), item.__array__(np.float32, copy=True)):
        assert not np.shares_memory(copy, item.values)
    assert item.__array__(copy=False) is item.values
    assert item.__array__("float32", copy=False) is item.values
    with pytest.raises(ValueError, match="the values are float32: expected that dtype with copy=False, not float64"):
        item.__array__(np.float64, copy=False)
