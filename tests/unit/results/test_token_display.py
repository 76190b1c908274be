"""Attributions of output tokens: matrices by tokens, words and spans, and what is shown of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np

import embgrad
from embgrad.results import PairAttribution
from tests.unit.display.test_html import Parsed
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of, byte_level, encoder_decoder, token_attribution_of

TOKENS = ["<s>", "The", "Ġdou", "gh", "Ġro", "se"]
SCORES = np.array([[[90, 1, -2, 0, 0, 0], [0, 3, 4, -8, 0, 0], [0, 1, 1, 1, 16, 0]]], float)
BATCH = embgrad.TokenBatch(np.arange(6)[None] + 7, tokens=[TOKENS])
ATTRIBUTION = token_attribution_of(BATCH, [[3, 4, 5]], SCORES)

#: Two examples of different lengths, the first padded on the left.
PADDED = token_attribution_of(
    embgrad.TokenBatch(
        [[0, 0, 5, 6, 7], [5, 6, 7, 8, 9]],
        [[0, 0, 1, 1, 1], [1] * 5],
        tokens=[["<pad>", "<pad>", "a", "b", "c"], list("abcde")],
    ),
    [[3, 4], [2, 3, 4]],
    np.arange(30.0).reshape(2, 3, 5)[:, :, ::-1] + 1,
)

ESCAPED = "<script>alert('1')</script> & $x_1^2$ \\input{~} [red]no[/red] \x1b[31m \u202eabc"


def texts(pieces: Any) -> list[str]:
    return [piece.text for piece in pieces]


def test_a_matrix_of_tokens_has_the_scores_as_they_are() -> None:
    matrix = ATTRIBUTION.matrix()
    assert texts(matrix.outputs) == ["gh", "ro", "se"]
    assert texts(matrix.inputs) == ["<s>", "The", "dou", "gh", "ro", "se"]
    np.testing.assert_array_equal(matrix.scores, ATTRIBUTION.scores[0])
    np.testing.assert_array_equal(np.asarray(matrix), matrix.scores)
    np.testing.assert_array_equal(matrix.earlier, np.arange(6) < np.array([[3], [4], [5]]))
    assert [piece.score for piece in matrix.outputs] == [-1, -2, -3]
    assert [piece.score for piece in matrix.inputs] == SCORES[0].sum(0).tolist()
    assert [piece.positions for piece in matrix.outputs] == [(3,), (4,), (5,)]
    assert matrix.largest == 16  # not 90, of a special token
    assert repr(matrix) == "TokenMatrix(3 × 6, example 0, InputXGradient at word of Model)"


def test_words_sum_over_both_axes() -> None:
    matrix = ATTRIBUTION.matrix(by="words")
    assert texts(matrix.outputs) == ["gh", "rose"]  # of the first word only the end is an output
    assert texts(matrix.inputs) == ["<s>", "The", "dough", "rose"]
    assert matrix.scores.tolist() == [[90, 1, -2, 0], [0, 4, -2, 16]]
    assert matrix.earlier.tolist() == [[True, True, True, False], [True] * 4]
    assert [piece.score for piece in matrix.outputs] == [-1, -5]


def test_words_by_saliency_are_roots_of_sums_of_squares() -> None:
    matrix = token_attribution_of(BATCH, [[3, 4, 5]], np.abs(SCORES), "Saliency").matrix(by="words")
    np.testing.assert_allclose(matrix.scores[1], [0, np.sqrt(10), np.sqrt(16 + 64 + 2), 16], rtol=1e-15)
    assert not matrix.signed
    tokens = token_attribution_of(BATCH, [[3, 4, 5]], np.full((1, 3, 6), 1e-200), "Saliency").matrix()
    assert tokens.scores[2, 4] == 1e-200  # its square is zero


def test_spans_are_the_users_characters_on_both_axes() -> None:
    batch = embgrad.encode(["a 🙂 a"], byte_level())
    width = batch.shape[1]
    attribution = token_attribution_of(batch, [[width - 2, width - 1]], np.ones((1, 2, width)))
    matrix = attribution.matrix(by="spans")
    assert "".join(piece.text for piece in matrix.texts[0]) == "a 🙂 a"
    emoji = next(column for column, piece in enumerate(matrix.inputs) if "🙂" in piece.text)
    tokens = matrix.inputs[emoji].positions
    assert len(tokens) > 1
    assert matrix.scores[-1, emoji] == len(tokens)
    assert matrix.outputs[-1].text.strip() == "a"


def test_outputs_are_as_far_apart_as_in_the_text() -> None:
    batch = embgrad.TokenBatch(
        [[1, 2, 3, 4]],
        tokens=[["a", "b", "c", "d"]],
        texts=["a  b\ncd"],
        offsets=np.array([[(0, 1), (3, 4), (5, 6), (6, 7)]]),
        parts=np.zeros((1, 4), int),
    )
    matrix = token_attribution_of(batch, [[1, 2, 3]], 1.0).matrix(by="spans")
    assert [piece.before for piece in matrix.outputs] == ["  ", "\n", ""]
    assert [piece.score for piece in matrix.texts[0] if not piece.positions] == [0.0, 0.0]
    apart = token_attribution_of(batch, [[1, 3]], 1.0).matrix()
    assert [piece.before for piece in apart.outputs] == [" ", " … "]


def test_a_part_of_a_sentence_is_the_users_characters() -> None:
    text, tokens = "Knead the dough now", ["Knead", "Ġthe", "Ġdough", "Ġnow"]
    offsets = np.array([[(0, 5), (6, 9), (10, 15), (16, 19)]])
    batch = embgrad.TokenBatch(
        [[1, 2, 3, 4]], tokens=[tokens], texts=[text], offsets=offsets, parts=np.zeros((1, 4), int)
    )
    matrix = token_attribution_of(batch, [[2, 3]], np.ones((1, 2, 4))).matrix(by="sentences")
    assert texts(matrix.outputs) == ["dough now"]
    assert texts(matrix.inputs) == [text]
    assert matrix.scores.tolist() == [[5.0]]


def test_padding_is_left_out_on_either_side() -> None:
    first, second = PADDED.matrix(0), PADDED.matrix(-1)
    assert texts(first.inputs) == ["a", "b", "c"]
    assert [piece.positions for piece in first.inputs] == [(2,), (3,), (4,)]
    assert first.scores.tolist() == [[3, 0, 0], [8, 7, 0]]
    assert second.scores.shape == (3, 5)
    assert (first.example, second.example, PADDED.matrix().example) == (0, 1, 0)


def test_inputs_of_an_encoder_come_before_those_of_the_decoder() -> None:
    attribution = encoder_decoder()
    matrix = attribution.matrix()
    assert texts(matrix.inputs) == ["trans", "late", "this", "</s>", "<pad>", "über", "setze", "dies"]
    assert matrix.split == 4
    both = np.concatenate([attribution.scores[0], attribution.decoder_scores[0]], axis=1)  # type: ignore[index]
    np.testing.assert_array_equal(matrix.scores, both)
    assert matrix.earlier[:, :4].all()
    np.testing.assert_array_equal(matrix.earlier[:, 4:], np.tri(3, 4, dtype=bool))
    words = attribution.matrix(by="words", special=False)
    assert texts(words.outputs) == ["übersetze", "dies"]
    assert texts(words.inputs) == ["translate", "this", "übersetze", "dies"]
    assert words.scores.tolist() == [[-10, -2, 6, 0], [7, 5, 21, 0]]
    offsets = np.array([[(0, 5), (5, 9), (10, 14), (-1, -1)]])
    located = replace(attribution, texts=("TransLate This",), offsets=offsets, parts=np.array([[0, 0, 0, -1]]))
    assert texts(located.matrix(by="words").inputs)[:2] == ["TransLate", "This"]
    part = replace(located, outputs=np.array([[-1, 2, 3]])).matrix(by="words")
    assert texts(part.outputs) == ["setze", "dies"]
    without = replace(attribution, decoder_tokens=None, output_tokens=None).matrix(by="words", special=False)
    assert texts(without.inputs) == ["translate", "this", "0", "21", "22", "23"]
    assert texts(without.outputs) == ["21", "22", "23"]


def test_ids_stand_for_tokens_that_are_not_known() -> None:
    matrix = token_attribution_of(embgrad.TokenBatch([[7, 8, 9]]), [[1, 2]], 1.0).matrix()
    assert (texts(matrix.outputs), texts(matrix.inputs)) == (["8", "9"], ["7", "8", "9"])


def test_an_output_compared_with_two_ids_has_two_rows() -> None:
    compared = replace(token_attribution_of(BATCH, [[4, 4]], SCORES[:, :2]), contrast_ids=np.array([[1, 2]]))
    matrix = compared.matrix()
    assert texts(matrix.outputs) == ["ro (not 1)", "ro (not 2)"]
    np.testing.assert_array_equal(matrix.scores, compared.scores[0])
    with refused(embgrad.EmbgradError, "the output at position 4 is there more than once: expected by='tokens'"):
        compared.matrix(by="words")


def test_a_score_after_the_output_is_never_hidden() -> None:
    attribution = token_attribution_of(BATCH, [[3, 4, 5]], SCORES)
    attribution.scores[0, 0, 5] = 0.5
    matrix = attribution.matrix()
    assert matrix.earlier[0].tolist() == [True, True, True, False, False, True]
    assert matrix.scores[0, 5] == 0.5


def test_matrices_that_cannot_be_made_are_refused() -> None:
    with refused(embgrad.EmbgradError, "example is 2: expected the index of an example, from 0 to 1"):
        PADDED.matrix(2)
    with refused(embgrad.EmbgradError, "example is [0]: expected the index of an example"):
        PADDED.plot([0])  # type: ignore[arg-type]
    with refused(embgrad.EmbgradError, "by is 'word': expected one of", "Did you mean 'words'?"):
        PADDED.matrix(by="word")
    with refused(embgrad.EmbgradError, "the texts of this attribution are not known"):
        PADDED.matrix(by="spans")
    with refused(embgrad.errors.BatchError, "special is 'no': expected True or False"):
        PADDED.to_html(special="no")  # type: ignore[arg-type]
    without = replace(PADDED, outputs=np.array([[-1, -1, -1], [2, 3, 4]]))
    with refused(embgrad.EmbgradError, "the example 0 has no output tokens: choose another example"):
        without.matrix(0)
    special = encoder_decoder(tokens=(("</s>",) * 4,), decoder_tokens=(("<pad>",) * 4,))
    with refused(embgrad.EmbgradError, "the example 0 has no inputs but special tokens: pass special=True"):
        special.plot(special=False)


def test_examples_without_outputs_are_left_out_of_the_page(capsys: Any) -> None:
    without = replace(PADDED, outputs=np.array([[-1, -1, -1], [2, 3, 4]]))
    assert "example 0" not in without.to_html()
    without.show()
    assert "example 0" not in capsys.readouterr().out


def test_one_output_of_each_example_is_an_attribution() -> None:
    second = PADDED.of_output(1)
    np.testing.assert_array_equal(second.scores, PADDED.scores[:, 1])
    np.testing.assert_array_equal(second.objective, [-2, -2])
    assert [word.saliency for word in second.words()[0]] == [8, 7, 0]
    assert second.provenance["output"] == 1
    assert second.signed
    last = PADDED.of_output(-1)
    np.testing.assert_array_equal(last.scores, [PADDED.scores[0, 1], PADDED.scores[1, 2]])
    missing = PADDED.of_output(2)
    assert np.isnan(missing.objective[0])
    single = token_attribution_of(embgrad.TokenBatch([[5, 6], [7, 8]]), [[1], [1]], 1.0)
    objective = replace(single, outputs=np.array([[1], [-1]])).of_output(-1).objective
    assert (objective[0], np.isnan(objective[1])) == (-1, True)
    assert not missing.scores[0].any()
    last.scores[:] = 0
    assert PADDED.scores.any()
    assert "a" in second.to_html()


def test_one_output_of_an_encoder_decoder_on_either_side() -> None:
    deltas = np.array([[0.1, 0.2, 0.3]])
    attribution = encoder_decoder(delta=deltas, baseline_objective=deltas, types=np.array([[0, 0, 1, 1]]))
    encoder, decoder = attribution.of_output(1), attribution.of_output(1, decoder=True)
    np.testing.assert_array_equal(encoder.scores, attribution.scores[:, 1])
    np.testing.assert_array_equal(decoder.scores, [[5, 6, 0, 0]])
    assert decoder.tokens == attribution.decoder_tokens
    assert encoder.types.tolist() == [[0, 0, 1, 1]]
    assert decoder.types is None
    assert encoder.delta is None
    assert encoder.baseline_objective == [0.2]
    alone = replace(PADDED, delta=np.array([[0.1, 0.2, np.nan], [0.3, 0.4, 0.5]])).of_output(-1)
    np.testing.assert_array_equal(alone.delta, [0.2, 0.5])


def test_outputs_that_are_not_there_are_refused() -> None:
    with refused(embgrad.EmbgradError, "index is 3: expected that of an output, from -3 to 2"):
        PADDED.of_output(3)
    with refused(embgrad.EmbgradError, "decoder is True, and this attribution is not of an encoder-decoder: omit it"):
        PADDED.of_output(0, decoder=True)


def test_the_axes_of_the_user_and_a_line_between_encoder_and_decoder(plt: Any) -> None:
    figure = matplotlib.figure.Figure()
    ax = figure.subplots()
    assert encoder_decoder().plot(by="words", ax=ax) is ax
    assert ax.get_xlabel() == "input: of the encoder, then of the decoder"
    assert [line.get_xdata() for line in ax.lines] == [[2.5, 2.5]]
    assert plt.get_fignums() == []
    assert [label.get_text() for label in PADDED.plot().get_yticklabels()] == texts(PADDED.matrix(0).outputs)


def test_scores_that_are_not_finite_are_marked(plt: Any, capsys: Any, monkeypatch: Any) -> None:
    scores = SCORES.copy()
    scores[0, 1, 1] = np.nan
    broken = token_attribution_of(BATCH, [[3, 4, 5]], scores)
    assert [text.get_text() for text in broken.plot().texts] == ["?"]
    monkeypatch.setenv("NO_COLOR", "1")
    broken.show()
    assert "The(?)" in capsys.readouterr().out


def test_html_and_latex_are_escaped_and_load_nothing() -> None:
    batch = embgrad.TokenBatch([[1, 2]], tokens=[[ESCAPED, ESCAPED]])
    attribution = token_attribution_of(batch, [[1]], np.ones((1, 1, 2)))
    attribution.provenance["method"]["class"] = "<b>&"  # type: ignore[index]
    page = attribution.to_html()
    allowed = {"html", "head", "meta", "title", "style", "body", "div", "span", "b", "i", "br", "input", "label"}
    assert {name for name, _ in Parsed(page).tags} <= allowed | {
        "details",
        "summary",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert not {"\x1b", "\u202e"} & {*page}
    assert not re.search(r"https?:|url\(|@import|<script|<img|<link", page)
    body = attribution.to_latex()
    assert "\\$x\\_1\\textasciicircum{}2\\$" in body
    assert body.count("{") - body.count("\\{") == body.count("}") - body.count("\\}")


def test_a_large_page_is_of_bounded_size() -> None:
    batch = embgrad.TokenBatch(np.arange(200)[None], tokens=[[f"Ġtoken{number}" for number in range(200)]])
    scores = np.random.default_rng(0).normal(size=(1, 100, 200))
    page = token_attribution_of(batch, [range(100, 200)], scores).to_html()
    assert len(page.encode()) < 1.5e6


def test_a_notebook_shows_the_first_examples_with_names_of_their_own() -> None:
    batch = embgrad.TokenBatch(np.arange(10).reshape(5, 2), tokens=[["a", "b"]] * 5)
    shown = token_attribution_of(batch, [[1]] * 5, 1.0)._repr_html_()
    assert shown.count('type="radio"') == 3
    assert "the first 3 of 5 examples; to_html() returns all" in shown
    assert "<html" not in shown
    ids = re.findall(' id="([^"]+)"', ATTRIBUTION._repr_html_() + ATTRIBUTION._repr_html_())
    assert len({*ids}) == len(ids)
    side, zeros = attribution_of(batch), np.zeros(5)
    side = replace(side, provenance={**side.provenance, "objective": {"of": "Cosine"}})
    pairs = PairAttribution(np.ones((5, 2, 2)), zeros, zeros, zeros, side, side)._repr_html_()
    assert pairs.count("<svg") == 3
    assert "the first 3 of 5 examples; to_html() returns all" in pairs


def test_the_terminal_has_a_text_for_each_output(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    ATTRIBUTION.show()
    assert capsys.readouterr().out.splitlines() == [
        "gh  example 0: L = -1; 9 is 2",
        "<s> The(+4) dou(-9)",
        "ro  example 0: L = -2; 9 is 8",
        "<s> The(+3) dou(+4)gh(-9)",
        "se  example 0: L = -3; 9 is 16",
        "<s> The(+1) dou(+1)gh(+1) ro(+9)",
    ]
    encoder_decoder().show(by="words")
    assert "translate(-9) this(-2) </s> … <pad> übersetze(+5)" in capsys.readouterr().out


def test_latex_has_a_paragraph_for_each_output() -> None:
    body = ATTRIBUTION.to_latex()
    assert PADDED.to_latex() == PADDED.to_latex(0) != PADDED.to_latex(1)
    assert body.count("\\par}") == 3
    assert "\\textbf{se} " in body
    assert "\\colorbox[HTML]{D55E00}{\\strut ro}" in body
