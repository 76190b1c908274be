"""The user's text in spans and sentences: to the character, with every token in one piece."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

import embgrad
from embgrad.results.spans import Span, _merge
from tests.unit.inputs.test_offsets import wordpiece
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of, by_words, byte_level

TOKENIZERS = {"byte level": byte_level(), "WordPiece": wordpiece()}
AWKWARD = st.one_of(
    st.sampled_from("🙂👩‍👩‍👧é中 \n\t'`.!?。\u200d\ufe0f\u0301ﬁ\u202eİŉ\x00"),
    st.characters(exclude_categories=["Cs"]),
)
TEXTS = st.text(AWKWARD, max_size=40)


def joined(spans: list[Span], part: int) -> str:
    return "".join(span.text for span in spans if span.part == part)


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(first=TEXTS, second=TEXTS, pair=st.booleans(), left=st.booleans())
@settings(max_examples=150, deadline=None)
def test_spans_and_sentences_are_the_text_to_the_character(
    tokenizer: Tokenizer, first: str, second: str, pair: bool, left: bool
) -> None:
    texts = [(first, second) if pair else first, "a film"]
    batch = embgrad.encode(texts, tokenizer, padding_side="left" if left else "right")
    found = attribution_of(batch)
    assert batch.parts is not None
    for pieces in (found.spans(), found.sentences()):
        assert joined(pieces[0], 0) == first
        assert joined(pieces[0], 1) == (second if pair else "")
        assert joined(pieces[1], 0) == "a film"
        for example, spans in enumerate(pieces):
            positions = [position for span in spans for position in span.positions]
            assert sorted(positions) == np.flatnonzero(batch.parts[example] >= 0).tolist()
            assert sum(span.score for span in spans) == sum(position + 1 for position in positions)


def test_tokens_that_share_a_character_are_one_span() -> None:
    found = attribution_of(embgrad.encode(["x🙂 a中"], byte_level()))
    assert [(span.text, span.positions, span.score) for span in found.spans()[0]] == [
        ("x", (0,), 1.0),
        ("🙂", (1, 2, 3, 4), 14.0),
        (" a", (5,), 6.0),
        ("中", (6, 7, 8), 24.0),
    ]


def test_white_space_between_tokens_has_no_positions_and_no_score() -> None:
    spans = attribution_of(embgrad.encode([" the\n films "], wordpiece())).spans()[0]
    assert [(span.text, span.positions) for span in spans] == [
        (" ", ()),
        ("the", (1,)),
        ("\n ", ()),
        ("film", (2,)),
        ("s", (3,)),
        (" ", ()),
    ]
    assert [span.score for span in spans if not span.positions] == [0.0, 0.0, 0.0]


def test_a_text_that_was_cut_is_whole_in_its_spans() -> None:
    spans = attribution_of(embgrad.encode(["the films."], wordpiece(), max_length=4)).spans()[0]
    assert [(span.text, span.positions) for span in spans][-2:] == [("film", (2,)), ("s.", ())]


@pytest.mark.parametrize("method", ["Saliency", "SmoothGrad", "IntegratedGradients"])
def test_norms_are_merged_as_the_root_of_the_sum_of_squares_and_others_by_their_sum(method: str) -> None:
    found = attribution_of(embgrad.encode(["中"], byte_level()), [[3.0, 4.0, 12.0]], method)
    if method == "SmoothGrad":
        found.provenance["method"]["of"] = {"class": "Saliency"}  # type: ignore[index]
    expected = 19.0 if found.signed else 13.0
    assert found.signed == (method == "IntegratedGradients")
    assert found.spans()[0][0].score == expected
    assert found.sentences()[0][0].score == expected


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two!  Three?", ["One. ", "Two!  ", "Three?"]),
        ("It costs 3.50, e.g. here. No", ["It costs 3.50, e.g. here. ", "No"]),
        ("Drugs, e.g. mRNA. A b", ["Drugs, e.g. mRNA. ", "A b"]),
        ('He said "Go." Then (no!) he left… Well', ['He said "Go." ', "Then (no!) he left… ", "Well"]),
        ("Title\n\nfirst line\r\nsecond.\nthird", ["Title\n\n", "first line\r\n", "second.\n", "third"]),
        ("これは本。「はい！」と言う。", ["これは本。", "「はい！」", "と言う。"]),
        ("\n \nOnly", ["\n \nOnly"]),
        ("...", ["..."]),
        ("Wait... What?!", ["Wait... ", "What?!"]),
        ("  ", ["  "]),
        ("", []),
    ],
)
def test_where_sentences_end(text: str, sentences: list[str]) -> None:
    batch = embgrad.TokenBatch([[1]], texts=[text], offsets=[[[-1, -1]]])
    assert [span.text for span in attribution_of(batch).sentences()[0]] == sentences


def test_a_token_that_begins_with_a_space_belongs_to_the_sentence_of_its_letters() -> None:
    found = by_words(["Go. Now"], [["Go", ".", " Now"]], [[1, 2, 4]])
    assert found.sentences()[0] == [Span("Go. ", (0, 1), 3.0, 0), Span("Now", (2,), 4.0, 0)]


def test_sentences_of_long_runs_of_stops_and_spaces_take_no_longer_than_the_text() -> None:
    text = "." * 100_000 + " " * 100_000 + '"' * 100_000 + "a"
    batch = embgrad.TokenBatch([[1]], texts=[text], offsets=[[[-1, -1]]])
    assert len(attribution_of(batch).sentences()[0]) == 2


def test_spans_without_texts_or_offsets_are_refused() -> None:
    ids = attribution_of(embgrad.TokenBatch([[1, 2]]))
    for call in (ids.spans, ids.sentences):
        with refused(
            embgrad.EmbgradError, "the texts of this attribution are not known", "embgrad.encode(texts, tokenizer)"
        ):
            call()
    texts = attribution_of(embgrad.encode(["a"], lambda text: [1, 2]))
    with refused(
        embgrad.EmbgradError, "where the tokens stand in the texts is not known", "use a tokenizers.Tokenizer"
    ):
        texts.spans()


def test_characters_within_those_of_another_token_are_one_run_with_them() -> None:
    offsets = np.array([[0, 5], [1, 3], [5, 6], [7, 8]])
    assert _merge(offsets, np.arange(4)) == [(0, 5, (0, 1)), (5, 6, (2,)), (7, 8, (3,))]
