"""Segments of a text: turns of chats by the special tokens of many templates, and parts that the user names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest

import embgrad
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of, by_words, byte_level, encoder_decoder, token_attribution_of

matplotlib.use("Agg")

CHAT = [
    "<s>", "<|im_start|>", "system", "Ċ", "Be", "Ġbrief", "<|im_end|>", "Ċ", "<|im_start|>", "user", "Ċ", "Why", "?",
    "<|im_end|>", "Ċ", "<|im_start|>", "ass", "istant", "Ċ", "So",
]  # fmt: skip


def of(tokens: Any, **fields: Any) -> embgrad.results.Attribution:
    return attribution_of(embgrad.TokenBatch([list(range(len(tokens)))], tokens=[tokens]), **fields)


def names(tokens: str) -> list[tuple[str, int, int]]:
    """Return the name of each segment of some tokens, its first position and the one after its last."""
    (segments,) = of(tokens.split()).segments()
    positions = [position for segment in segments for position in segment.positions]
    assert positions == list(range(len(tokens.split())))
    return [(segment.text, segment.positions[0], segment.positions[-1] + 1) for segment in segments]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        (" ".join(CHAT), [("<s>", 0, 1), ("system", 1, 8), ("user", 8, 15), ("assistant", 15, 20)]),
        (
            "<|begin_of_text|> <|start_header_id|> user <|end_header_id|> ĊĊ Hi <|eot_id|> <|start_header_id|> assistant "
            "<|end_header_id|> ĊĊ",
            [("<|begin_of_text|>", 0, 1), ("user", 1, 7), ("assistant", 7, 11)],
        ),
        (
            "<bos> <start_of_turn> user <0x0A> Hi <end_of_turn> <0x0A> <start_of_turn> model <0x0A> Yo <end_of_turn>",
            [("<bos>", 0, 1), ("user", 1, 7), ("model", 7, 12)],
        ),
        (
            "<s> [INST] ▁Hi [/INST] ▁Yo </s> [INST] ▁So [/INST]",
            [("<s>", 0, 1), ("user", 1, 3), ("assistant", 3, 6), ("user 2", 6, 8), ("assistant 2", 8, 9)],
        ),
        (
            "<|system|> Be <|end|> <|user|> Hi <|end|> <|assistant|>",
            [("system", 0, 3), ("user", 3, 6), ("assistant", 6, 7)],
        ),
        ("<｜User｜> Hi <｜Assistant｜> Yo", [("user", 0, 2), ("assistant", 2, 4)]),
        (
            "<BOS_TOKEN> <|START_OF_TURN_TOKEN|> <|USER_TOKEN|> Hi <|END_OF_TURN_TOKEN|> <|START_OF_TURN_TOKEN|> "
            "<|CHATBOT_TOKEN|> Yo",
            [("<BOS_TOKEN>", 0, 1), ("user", 1, 5), ("chatbot", 5, 8)],
        ),
        ("<|start|> assistant <|channel|> final <|message|> Yo <|return|>", [("assistant", 0, 7)]),
        ("Once upon <|im_start|> user Ċ Hi", [("(other)", 0, 2), ("user", 2, 6)]),
        (
            "<|im_start|> u s e r Ċ Hi <|im_end|> Ċ <|im_start|> oracle Ċ Yo <|im_start|> Ċ So",
            [("user", 0, 9), ("oracle", 9, 13), ("(other)", 13, 16)],
        ),
        ("<|im_start|> " + "▁ " * 12 + "u s e r Ċ Hi", [("user", 0, 19)]),  # of the most tokens that a name may have
        ("<|USER_TOKEN|> Hi <|START_OF_TURN_TOKEN|>", [("user", 0, 3)]),
    ],
)
def test_the_turns_of_a_chat_begin_at_its_special_tokens(tokens: str, expected: Any) -> None:
    assert names(tokens) == expected


def test_the_word_user_in_a_text_begins_no_turn() -> None:
    tokens = "<|im_start|> user Ċ <user says > user system Ċ <b> user friend <|im_end|>"
    assert names(tokens) == [("user", 0, 13)]
    for text in (
        "the user and the system",
        "<s> user friendly Ċ",
        "<s> assistants <|x|>",
        "<|end_user|>",
        "<|im_end|> user Ċ",
        "</user>",
        "</turn> user Ċ",
        "<|im_start|> " + "▁ " * 13 + "u s e r Ċ Hi",
    ):
        with refused(
            embgrad.EmbgradError, "by is 'segments', and no special token of example 0 begins the turn of a role: name"
        ):
            names(text)
    with refused(
        embgrad.EmbgradError, "by is 'segments', and the tokens are not known, only their ids: give tokenizer=..., or"
    ):
        attribution_of(embgrad.TokenBatch([[1, 2, 3]])).segments()


def test_segments_sum_over_both_axes_of_output_tokens() -> None:
    scores = np.random.default_rng(0).normal(size=(1, 4, 20))
    batch = embgrad.TokenBatch(np.arange(20)[None], tokens=[CHAT])
    attribution = token_attribution_of(batch, [[5, 11, 12, 19]], scores)
    whole = attribution.scores[0]
    matrix = attribution.matrix(by="segments")
    assert [piece.text for piece in matrix.outputs] == ["system", "user", "assistant"]
    assert [piece.text for piece in matrix.inputs] == ["<s>", "system", "user", "assistant"]
    assert [piece.positions for piece in matrix.outputs] == [(5,), (11, 12), (19,)]
    assert [piece.score for piece in matrix.outputs] == [-1, -5, -4]
    columns = [slice(0, 1), slice(1, 8), slice(8, 15), slice(15, 20)]
    expected = [[whole[rows, column].sum() for column in columns] for rows in ([0], [1, 2], [3])]
    np.testing.assert_allclose(matrix.scores, expected, atol=1e-14)
    assert matrix.earlier.tolist() == [[True, True, False, False], [True, True, True, False], [True] * 4]
    without = attribution.matrix(by="segments", special=False)
    own = [[2, 3, 4, 5, 7], [9, 10, 11, 12, 14], [16, 17, 18, 19]]
    assert [piece.positions for piece in without.inputs] == [tuple(positions) for positions in own]
    np.testing.assert_allclose(
        without.scores[:, 0], [whole[rows][:, own[0]].sum() for rows in ([0], [1, 2], [3])], atol=1e-14
    )
    for shown in (attribution.to_html(by="segments"), attribution.to_latex(by="segments")):
        assert "assistant" in shown
    labels = [label.get_text() for label in attribution.plot(by="segments").get_xticklabels()]
    assert labels == ["<s>", "system", "user", "assistant"]
    norms = token_attribution_of(batch, [[5, 11, 12, 19]], np.abs(scores), "Saliency").matrix(by="segments")
    np.testing.assert_allclose(norms.scores[2, 1], np.linalg.norm(scores[0, 3, 1:8]), rtol=1e-12)


def test_parts_are_texts_slices_or_positions() -> None:
    text = "Be brief. The sky is blue. Why is it?"
    tokens = ["<s>", "Be", "brief", ".", "The", "sky", "is", "blue", ".", "Why", "is", "it", "?"]
    attribution = by_words([text], [tokens], np.arange(13.0))
    parts = {"question": "Why is it?", "rules": "Be brief.", "fact": slice(5, 8), "end": [8]}
    (segments,) = attribution.segments(parts)
    found = {segment.text: (segment.positions, segment.saliency) for segment in segments}
    assert [segment.text for segment in segments] == ["(other)", "rules", "fact", "end", "question"]
    assert found["rules"] == ((1, 2, 3), 6.0)
    assert found["question"] == ((9, 10, 11, 12), 42.0)
    assert found["fact"] == ((5, 6, 7), 18.0)
    assert found["end"] == ((8,), 8.0)
    assert found["(other)"] == ((0, 4), 4.0)
    assert "2 positions" not in attribution.to_html(by=parts)
    named = token_attribution_of(embgrad.TokenBatch(attribution.ids, tokens=[tokens]), [[10, 12]], np.ones((1, 2, 13)))
    matrix = named.matrix(by=parts)  # found in the tokens' own texts
    assert [piece.text for piece in matrix.outputs] == ["question"]
    assert [piece.positions for piece in matrix.inputs] == [found[piece.text][0] for piece in matrix.inputs]
    assert matrix.scores.sum() == named.scores.sum()
    assert "2 positions from 0 to 4" in named.to_html(by=parts)
    padded = attribution_of(embgrad.TokenBatch([[0, 0, 5, 6, 7]], [[0, 0, 1, 1, 1]]))
    assert [tuple(segment) for segment in padded.segments({"a": slice(1, None), "b": np.array([2])})[0]] == [
        ("b", (2,), 3.0),
        ("a", (3, 4), 9.0),
    ]


def test_a_text_is_found_in_tokens_whose_white_space_has_marks() -> None:
    attribution = of(["W", "hy", "Ġ", "is", "Ġit", "Ċ", "▁it", "?"])
    for text, positions in (("Why is it", (0, 1, 2, 3, 4)), ("it?", (6, 7)), (" hy is", (1, 2, 3))):
        assert attribution.segments({"x": text})[0][0 if positions[0] == 0 else 1].positions == positions


def test_a_text_may_stand_in_byte_level_tokens_and_in_the_second_of_a_pair() -> None:
    attribution = attribution_of(embgrad.encode(["a 🙂 a b"], byte_level()))
    (segments,) = attribution.segments({"face": "🙂", "end": "a b"})
    assert attribution.offsets is not None
    face = attribution.offsets[0, list(segments[1].positions)]
    assert (segments[1].text, face.max()) == ("face", 3)
    pair = by_words([("one two", "three four")], [["one", "two", "three", "four"]], np.arange(4.0))
    assert [tuple(segment) for segment in pair.segments({"x": "four", "y": "one two"})[0]] == [
        ("y", (0, 1), 1.0),
        ("(other)", (2,), 2.0),
        ("x", (3,), 3.0),
    ]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({}, "by is {}: expected names of parts with a text, a slice or positions for each"),
        ({1: "a"}, "by is {1: 'a'}: expected names of parts"),
        ({"x": "zebra"}, "by['x'] is 'zebra', a text that example 0 does not have: expected one that is there once"),
        ({"x": "is"},
            "by['x'] is 'is', a text that example 0 has at the positions [1, 4]: expected one that is there once"),
        ({"x": "ky"}, "a text that example 0 does not have"),
        ({"x": " "}, "a text that example 0 does not have"),
        ({"x": slice(1, 3), "y": [2]},
            "by['y'] is [2], which has the position 2 of example 0: another part has it too, or"),
        ({"x": [9]},
            "by['x'] is [9], which has the position 9 of example 0: another part has it too, or it is padding"),
        ({"x": slice(9, 12)},
            "by['x'] is slice(9, 12, None): expected a text, a slice with some of an example's 6 real"),
        ({"x": slice("a")}, "expected a text, a slice with some"),
        ({"x": 2}, "by['x'] is 2: expected a text, a slice"),
        ({"x": []}, "by['x'] is []: expected a text"),
    ],
)  # fmt: skip
def test_parts_that_are_not_there_are_refused(parts: Any, message: str) -> None:
    attribution = by_words(["sky is blue it is so"], [["sky", "is", "blue", "it", "is", "so"]], 1.0)
    with refused(embgrad.EmbgradError, message):
        attribution.segments(parts)
    with refused(embgrad.EmbgradError, message):
        attribution.plot(by=parts)


def test_ids_alone_have_parts_by_positions() -> None:
    attribution = attribution_of(embgrad.TokenBatch([[5, 6, 7]]))
    assert [segment.text for segment in attribution.segments({"x": slice(2)})[0]] == ["x", "(other)"]
    with refused(embgrad.EmbgradError, "by['x'] is 'a', a text that example 0 does not have"):
        attribution.segments({"x": "a"})


def test_the_encoder_has_parts_and_the_decoder_tokens() -> None:
    matrix = encoder_decoder().matrix(by={"verb": "translate"})
    assert [piece.text for piece in matrix.inputs] == ["verb", "(other)", "<pad>", "über", "setze", "dies"]
    assert [piece.text for piece in matrix.outputs] == ["über", "setze", "dies"]
    of_spans = replace(
        encoder_decoder(), outputs=np.array([[[1, 2], [3, -1]]]), output_ids=np.array([[[21, 22], [23, -1]]]), output_tokens=None,
        scores=np.ones((1, 2, 4)), decoder_scores=np.ones((1, 2, 4)), objective=np.zeros((1, 2)),
    )  # fmt: skip
    spans = of_spans.matrix(by={"verb": "translate"})
    assert [piece.text for piece in spans.outputs] == ["21 22", "23"]
    assert [piece.special for piece in of_spans.matrix().outputs] == [False, False], "as the decoder's tokens there are"
    assert spans.scores[0].tolist() == [2, 2, 1, 1, 1, 1]
