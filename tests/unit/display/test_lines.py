"""Lines of pieces: their scales, how they are cut and chosen, and what the terminal and LaTeX make of them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from embgrad.display.latex import latex
from embgrad.display.lines import GAP, Line, Piece, TokenMatrix, examples_of, first_of, piece_name
from embgrad.display.terminal import _parts, changes_legend, paint, scores_legend
from embgrad.errors import EmbgradError
from tests.unit.refusals import refused


def line_of(*scores: float, special: tuple[int, ...] = (), **fields: Any) -> Line:
    """Return a line of the pieces a, b, c, … with these scores."""
    pieces = [Piece(chr(97 + at), (at,), score, at in special, " ") for at, score in enumerate(scores)]
    return Line(**{"label": "", "summary": "s", "example": 0, "pieces": tuple(pieces), "signed": True, **fields})


@pytest.mark.parametrize(
    ("scores", "special", "largest"),
    [((1.0, -3.0, 2.0), (), 3.0), ((1.0, -3.0, 2.0), (1,), 2.0), ((0.0, -3.0, 0.0), (1,), 3.0),
        ((math.nan, math.inf, -0.5), (), 0.5), ((0.0, math.nan), (), 0.0), ((), (), 0.0)],
)  # fmt: skip
def test_special_tokens_set_the_scale_only_where_no_others_do(
    scores: tuple[float, ...], special: tuple[int, ...], largest: float
) -> None:
    assert line_of(*scores, special=special).largest == largest
    assert line_of(*scores, special=special, scale=7.0).largest == 7.0


def test_a_cut_line_keeps_its_scale_and_says_so() -> None:
    line = line_of(1.0, 2.0, 8.0)
    assert line.cut(3) is line
    short = line.cut(2)
    assert [piece.text for piece in short.pieces] == ["a", "b"]
    assert (short.largest, short.summary) == (8.0, "s, the first 2 of 3 tokens")
    assert line_of(1.0, 2.0, summary="").cut(1).summary == "the first 1 of 2 tokens"


@pytest.mark.parametrize(
    ("examples", "chosen"),
    [(None, [0, 1, 2]), (1, [1]), (-1, [2]), (-3, [0]), ([2, 0], [2, 0]), (slice(1, 9), [1, 2]), (range(2), [0, 1])],
)
def test_examples_are_chosen_as_items_of_a_list(examples: Any, chosen: list[int]) -> None:
    assert examples_of(examples, 3) == chosen


@pytest.mark.parametrize("examples", [3, -4, [0, 3], True, [1.0], "all", [], slice(3, 9)])
def test_examples_that_are_not_there_are_refused(examples: Any) -> None:
    with refused(EmbgradError, "examples is "):
        examples_of(examples, 3)


@pytest.mark.parametrize(
    ("lengths", "shown"), [([1] * 10, 10), ([1] * 11, 10), ([1000] * 3, 2), ([1000] * 2, 2), ([5000], 1)]
)
def test_a_cell_shows_the_first_examples(lengths: list[int], shown: int) -> None:
    note = f"the first {shown} of {len(lengths)} examples; see all" if shown < len(lengths) else ""
    assert first_of(lengths, "see all") == (shown, note)


def matrix() -> TokenMatrix:
    """Return two outputs of an encoder with two tokens and a decoder with three, between which there is white space."""

    def word(text: str, *positions: int) -> Piece:
        return Piece(text, positions, 0.0, False, "")

    return TokenMatrix(
        example=3,
        outputs=(word("x", 1)._replace(score=-1.5), word("y\n", 2)._replace(score=-2.0)),
        texts=(
            (word("a", 0), word(" "), word("b", 1)),
            (word("c", 0), word(" "), word("d", 1), word("  "), word("e", 2)),
        ),
        scores=np.array([[1.0, -4.0, 2.0, 0.0, 0.0], [0.5, 0.0, 1.0, 8.0, 0.0]]),
        earlier=np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]], bool),
        signed=True,
        summary="summary",
    )


def test_the_lines_of_a_matrix_hold_what_can_contribute_and_the_space_before_it() -> None:
    made = matrix()
    assert [piece.text for piece in made.inputs] == list("abcde")
    assert (made.split, made.largest) == (2, 8.0)
    first, second = made.lines()
    assert ["".join(piece.text for piece in line.pieces) for line in (first, second)] == ["a bc", "a bc d"]
    assert [piece.score for piece in second.pieces] == [0.5, 0.0, 0.0, 1.0, 0.0, 8.0]
    assert [piece.before for piece in second.pieces] == ["", "", "", GAP, "", ""]
    assert (first.label, first.summary, first.example) == ("x", "L = -1.5", 3)
    assert second.label == "y"
    np.testing.assert_array_equal(np.asarray(made), made.scores)
    assert repr(made) == "TokenMatrix(2 × 5, example 3, summary)"


@pytest.mark.parametrize(("shown", "name"), [("a\n b", "a b"), ("\n", "\\n"), (" ", "␣"), ("\x1b", "\\x1b"), ("", "∅")])
def test_a_name_is_one_line_that_can_be_seen(shown: str, name: str) -> None:
    assert piece_name(Piece(shown, (0,), 0.0, False, "")) == name


def text(line: Line, coloured: bool = False) -> str:
    return "".join(part for part, _ in paint(line, coloured))


def test_scores_are_digits_without_colours() -> None:
    assert text(line_of(1.0, -2.0, 0.0, 0.05, math.nan)) == "a(+4) b(-9) c(0) d(0) e(?)"
    assert text(line_of(1.0, 2.0, signed=False)) == "a(4) b(9)"
    assert text(line_of(3.0, 1.0, -3.0, scale=2.0)) == "a(+9) b(+4) c(-9)"
    assert text(line_of(3.0, 1.0, special=(0,))) == "a b(+9)"
    assert text(line_of(math.nan, special=(0,))) == "a (nan)"
    assert list(paint(line_of(2.0, special=(0,)), True))[1] == ("a", "dim")


def test_scores_are_colours_of_the_scale() -> None:
    parts = list(paint(line_of(2.0, -2.0, 0.0), True))
    assert parts[1::2] == [("a", "#000000 on #d55e00"), ("b", "#ffffff on #0072b2"), ("c", "")]
    assert list(paint(line_of(2.0, signed=False), True))[1] == ("a", "#ffffff on #6a2c91")


def test_changes_are_colours_or_brackets() -> None:
    pieces = tuple(
        Piece(mark[0], (at,), score, False, " ", "", mark)
        for at, (mark, score) in enumerate([("replaced", -1.0), ("deleted", -1.0), ("added", 1.0)])
    )
    line = Line("", "", 0, (*pieces, Piece("x", (), 0.0, False, ""), Piece("[S]", (), 0.0, True, " ")), True)
    assert text(line) == "[-r-] [-d-] {+a+}x [S]"
    assert text(line, True) == "r d ax [S]"
    styles = [style for part, style in paint(line, True) if part.strip()]
    assert styles == ["#ffffff on #0072b2"] * 2 + ["#000000 on #d55e00", "", "dim"]


def test_lines_are_printed_under_their_names_and_legends() -> None:
    lines = [line_of(2.0, label="long"), line_of(2.0, label="x", signed=False, example=3), line_of(0.0)]
    plain = "".join(part for part, _ in _parts([lines], False))
    assert plain.splitlines() == [
        "long  example 0: s; 9 is 2",
        "a(+9)",
        "x     example 3: s; 9 is 2",
        "a(9)",
        "      example 0: s; all scores are zero or not finite",
        "a(0)",
    ]
    coloured = "".join(part for part, _ in _parts([lines], True)).splitlines()[::2]
    assert coloured[0] == "long  example 0: s; orange up to 2, blue below zero"
    assert coloured[1] == "x     example 3: s; the darker, the more, up to 2"
    assert list(_parts([], False)) == []


def test_legends_of_many_lines() -> None:
    assert scores_legend("it", True, True) == "it: orange is above zero, blue below"
    assert scores_legend("it", False, True) == "it: the darker, the more"
    assert scores_legend("it", True, False) == "it, -9 to +9; 9 is the example's largest"
    assert scores_legend("it", False, False) == "it, 0 to 9; 9 is the example's largest"
    assert changes_legend(True) != changes_legend(False)


def test_latex_has_a_box_for_each_word_in_its_colour() -> None:
    body = latex([[line_of(2.0, -2.0, 0.0, label="a_b")]])
    assert body == (
        "% \\usepackage{xcolor}\n"
        "{\\noindent\\setlength{\\fboxsep}{1pt}\\raggedright\n\\textbf{a\\_b} "
        "\\colorbox[HTML]{D55E00}{\\strut a} \\colorbox[HTML]{0072B2}{\\strut \\color{white}b} c\\par}\n"
    )
    (space,) = (Piece(" ", (0,), 1.0, False, ""),)
    assert "\\strut \\textvisiblespace{}} " in latex([[Line("", "", 0, (space,), True)]])
