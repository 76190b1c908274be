"""Two results are aligned by their ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.comparison.align import Alignment, aligned
from embgrad.testing.reference import ReferenceModel, lookup

TABLE = np.random.default_rng(0).normal(size=(30, 4))
MODEL = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).tanh(), {"E": TABLE})


def gradient(texts: list[list[int]], width: int = 0, side: str = "right", *, masked: bool = True) -> Any:
    width = width or max(map(len, texts))
    ids, mask = np.zeros((len(texts), width), int), np.zeros((len(texts), width), int)
    for row, text in enumerate(texts):
        where = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, where], mask[row, where] = text, 1
    return embgrad.gradients(MODEL, embgrad.TokenBatch(ids, mask if masked else None), embgrad.Sum())


TEXTS = [[1, 5, 6, 7, 2], [1, 8, 2], [1, 9, 10, 2]]


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
@pytest.mark.parametrize(
    ("a", "b", "notes"),
    [
        ((TEXTS,), (TEXTS,), ()),
        ((TEXTS,), ([TEXTS[i] for i in (2, 0, 1)],),
            ("b has the examples in another order: a's first 3 are b's [1, 2, 0]",)),
        ((TEXTS,), (TEXTS, 9), ("a is padded to 5 positions and b to 9",)),
        ((TEXTS, 7), (TEXTS, 7, "left"), ("a is padded on the right and b on the left",)),
        (
            (TEXTS,),
            ([[3, *text] for text in TEXTS],),
            ("a is padded to 5 positions and b to 6",
                "3 tokens of b are not in a and were skipped: id 3, at example 0, position 0"),
        ),
        (
            (TEXTS,),
            ([[1, 5, 20, 7, 2], *TEXTS[1:]],),
            ("1 tokens of a are not in b and were skipped: id 6, at example 0, position 2",
                "1 tokens of b are not in a and were skipped: id 20, at example 0, position 2"),
        ),
        (
            (TEXTS,),
            ([TEXTS[1], [1, 21, 22, 23, 24, 25, 2]],),
            ("2 of the examples of a (0, 2) are not in b and were skipped",
                "1 of the examples of b (1) are not in a and were skipped", "a is padded to 5 positions and b to 7"),
        ),
        (([*TEXTS, *([1, n, 2] for n in range(20, 29))],), (TEXTS,),
            ("9 of the examples of a (3, 4, 5, 6, 7, 8, 9, 10, …) are not in b and were skipped",)),
        ((TEXTS,), ([*TEXTS, *([1, n, 2] for n in range(20, 28))],),
            ("8 of the examples of b (3, 4, 5, 6, 7, 8, 9, 10) are not in a and were skipped",)),
    ],
    ids=["equal", "order", "length", "side", "special token", "token", "examples", "many", "eight"],
)  # fmt: skip
def test_results_of_the_same_texts_agree_with_a_note(a: Any, b: Any, notes: tuple[str, ...]) -> None:
    comparison = embgrad.compare(gradient(*a), gradient(*b))
    assert comparison.agrees
    assert comparison.notes == notes


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_results_without_masks_are_aligned_by_their_zeros() -> None:
    comparison = embgrad.compare(gradient(TEXTS, masked=False), gradient(TEXTS, 9, masked=False))
    assert comparison.agrees
    assert comparison.notes == ("a is padded to 5 positions and b to 9",)


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_repeated_texts_are_each_matched_once() -> None:
    alignment = aligned(gradient([TEXTS[0], TEXTS[1], TEXTS[0]]), gradient([TEXTS[0], TEXTS[0], TEXTS[1]]))
    assert alignment.examples().tolist() == [0, 2, 1]


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_other_ids_are_compared_position_by_position() -> None:
    comparison = embgrad.compare(gradient([[1, 2, 3]]), gradient([[4, 5, 6]]))
    assert comparison.notes[0].startswith(
        "the ids differ at 3 of 3 positions, first at example 0, position 0, where a has"
    )
    with pytest.raises(
        embgrad.errors.BatchError, match="no example of a has half of its tokens in common with one of b"
    ):
        embgrad.compare(gradient([[1, 2, 3]]), gradient([[4, 5, 6, 7]]))


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
@pytest.mark.parametrize(
    ("other", "note"),
    [
        ([[1, 1, 1, 1], [1, 1, 1, 1]], "at 3 of 8 positions, first at example 0, position 3, where a has 0 and b 1"),
        ([[0, 0, 0, 1], [0, 0, 1, 1]], "at 8 of 8 positions, first at example 0, position 0, where a has 1 and b 0"),
    ],
    ids=["padding counts", "the reverse"],
)
def test_the_same_ids_under_other_masks_are_compared_at_all_positions(other: Any, note: str) -> None:
    ids = [[1, 5, 6, 0], [1, 8, 0, 0]]
    masks = ([[1, 1, 1, 0], [1, 1, 0, 0]], other)
    a, b = (embgrad.gradients(MODEL, embgrad.TokenBatch(ids, mask), embgrad.Sum()) for mask in masks)
    comparison = embgrad.compare(a, b)
    assert not comparison.agrees
    assert comparison.figures.largest == np.abs(a.values - b.values).max()
    assert comparison.notes == (f"the masks differ {note}",)


@given(
    st.lists(st.lists(st.integers(1, 29), min_size=1, max_size=8), min_size=1, max_size=5),
    st.randoms(use_true_random=False),
    st.integers(0, 3),
    st.sampled_from(["left", "right"]),
)
@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_order_and_padding_do_not_matter(texts: list[list[int]], random: Any, more: int, side: str) -> None:
    shuffled = random.sample(texts, len(texts))
    a, b = gradient(texts), gradient(shuffled, max(map(len, texts)) + more, side)
    alignment = aligned(a, b)
    assert (alignment.arrange(b.ids) == a.ids)[a.mask.astype(bool)].all()
    back = alignment.reversed(b.ids.shape)
    assert (back.arrange(a.ids) == b.ids)[b.mask.astype(bool)].all()
    assert embgrad.compare(a, b).agrees


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
@pytest.mark.parametrize(("tokens", "shown"), [(4, ""), (5, " and 1 others")])
def test_four_tokens_that_were_skipped_are_shown(tokens: int, shown: str) -> None:
    text = [1, 2, 3, 4, 5, 6]
    comparison = embgrad.compare(gradient([text]), gradient([[*text, *range(10, 10 + tokens)]]))
    listed = ", ".join(f"id {10 + number}, at example 0, position {6 + number}" for number in range(4))
    assert comparison.notes[-1] == f"{tokens} tokens of b are not in a and were skipped: {listed}{shown}"


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_frequent_tokens_of_long_texts_are_matched() -> None:
    text = [1 + number % 2 for number in range(220)]
    alignment = aligned(gradient([text]), gradient([[3, *text]]))
    assert alignment.position.tolist() == [list(range(1, 221))]


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
@pytest.mark.parametrize(("same", "matched"), [(4, [0]), (3, [-1])])
def test_texts_with_half_of_their_tokens_in_common_are_one(same: int, matched: list[int]) -> None:
    a = gradient([[*range(1, 9)], [9]])
    b = gradient([[*range(1, 1 + same), *range(20, 28 - same)], [9]])
    assert aligned(a, b).examples().tolist()[:1] == matched


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_of_equally_similar_texts_the_one_with_the_same_index_is_the_partner() -> None:
    a, b = gradient([[1, 2, 3, 4], [1, 2, 3, 5]]), gradient([[1, 2, 3, 6], [1, 2, 3, 7]])
    assert aligned(a, b).examples().tolist() == [0, 1]
    assert aligned(b, a).examples().tolist() == [0, 1]


def test_what_has_no_partner_is_zero() -> None:
    example, position = np.array([[1, -1, 0]]), np.array([[2, -1, 0]])
    alignment = Alignment(example, position, ("a note",))
    assert alignment.arrange(np.arange(1, 7).reshape(2, 3)).tolist() == [[6, 0, 1]]
    assert alignment.matched.tolist() == [[True, False, True]]
    assert alignment.examples().tolist() == [1]
    back = alignment.reversed((2, 3))
    assert (back.example.tolist(), back.notes) == ([[0, -1, -1], [-1, -1, 0]], ("a note",))
    assert back.position.tolist() == [[2, -1, -1], [-1, -1, 0]]
    assert not alignment.trivial
    assert Alignment(*np.indices((2, 3)), ()).trivial
    assert not Alignment(np.zeros((1, 2), int), np.array([[1, 0]]), ()).trivial


@pytest.mark.filterwarnings("ignore:the model cannot take the mask")
def test_padding_of_equal_examples_is_matched() -> None:
    a, b = gradient([[1, 2, 3], [4, 5]]), gradient([[1, 2, 9], [4, 5]])
    assert aligned(a, b).example.tolist() == [[0, 0, -1], [1, 1, 1]]
    wide = gradient([[1, 2, 9], [4, 5]], 4)
    assert aligned(a, wide).example.tolist() == [[0, 0, -1], [1, 1, -1]]
    assert (aligned(a, wide).position[:, 2] == -1).all()
