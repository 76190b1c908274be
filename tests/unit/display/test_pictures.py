"""The sizes, marks and words of pictures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from embgrad.display import pictures
from embgrad.display.colours import LEVELS, PALETTES, step
from embgrad.display.lines import Line, Piece, TokenMatrix

pytestmark = pytest.mark.usefixtures("plt")


def line_of(*words: str, example: int = 0, label: str = "") -> Line:
    pieces = tuple(Piece(word, (index,), index + 1.0, False, " ") for index, word in enumerate(words))
    return Line(label, "Method, at word", example, pieces, True)


def size_of(ax: Any) -> list[float]:
    return list(np.round(ax.figure.get_size_inches(), 6))


def written(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


def scored(*scores: float, signed: bool = True, special: int = -1) -> Line:
    pieces = tuple(Piece("abcdefgh"[at], (at,), score, at == special, " ") for at, score in enumerate(scores))
    return Line("", "Method, at word", 0, pieces, signed)


def colours_of(ax: Any) -> list[list[str]]:
    return [[to_hex(cell) for cell in row] for row in ax.images[0].get_array()]


UP, DOWN, UNSIGNED = (PALETTES["light"][scale] for scale in "pmn")


def test_bars_are_coloured_by_sign_and_faint_at_special_tokens() -> None:
    line = scored(0.5, -2.0, np.nan, -9.0, special=3)
    ax = pictures.bars(replace(line, pieces=(*line.pieces, Piece("space", (), 0.0, False, ""))), None)
    assert [to_hex(bar.get_facecolor()) for bar in ax.patches] == [UP, DOWN, DOWN, DOWN]
    assert [bar.get_alpha() for bar in ax.patches] == [1.0, 1.0, 1.0, 0.4]
    assert [float(np.nan_to_num(bar.get_width(), nan=-1)) for bar in ax.patches] == [0.5, -2, -1, -9]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b", "c (nan)", "d"]
    assert {to_hex(bar.get_facecolor()) for bar in pictures.bars(scored(1, 2, signed=False), None).patches} == {
        UNSIGNED
    }


def test_labels_are_cut_and_kept_as_they_are() -> None:
    line = line_of("a" * 40, "b" * 41, "$x_1$", " ", "line\nend", "\x1b[31m")
    ax = pictures.bars(line, None)
    expected = ["a" * 40, "b" * 39 + "…", "$x_1$", "␣", "line end", "\\x1b[31m"]
    assert [label.get_text() for label in ax.get_yticklabels()] == expected
    assert not any(label.get_parse_math() or label.get_usetex() for label in ax.get_yticklabels())


def test_the_cells_of_a_heat_map_are_on_one_scale_or_each_row_on_its_own() -> None:
    lines = [scored(4.0, -8.0, 0.0), scored(2.0, signed=False)]
    half, full, grey = step("light", "p", LEVELS // 2).background, step("light", "m", LEVELS).background, "#ededed"
    shared = pictures.heat_map(lines, ["0", "1"], False, None)
    quarter = step("light", "n", LEVELS // 4).background
    assert colours_of(shared) == [[half, full, "#ffffff"], [quarter, grey, grey]]
    assert shared.figure.axes[1].get_ylim() == (-8, 8)
    assert shared.figure.axes[1].get_ylabel() == "score,\npurple: no sign"
    each = pictures.heat_map(lines, ["0", "1"], True, None)
    assert colours_of(each) == [[half, full, "#ffffff"], [step("light", "n", LEVELS).background, grey, grey]]
    assert each.figure.axes[1].get_ylim() == (-1, 1)
    assert each.figure.axes[1].get_ylabel() == "share of the largest,\npurple: no sign"
    assert [text.get_color() for text in each.texts] == ["#000000", "#ffffff", "#000000", "#ffffff"]
    alone = pictures.heat_map([scored(0.0, 2.0, signed=False, special=1)], ["0"], False, None)
    assert alone.figure.axes[1].get_ylim() == (0, 2)
    assert alone.figure.axes[1].get_ylabel() == "score"
    assert [text.get_style() for text in alone.texts] == ["normal", "italic"]
    assert {(text.get_ha(), text.get_va(), text.get_fontsize()) for text in alone.texts} == {("center", "center", 8)}
    assert all(text.get_clip_on() for text in alone.texts)


@pytest.mark.parametrize(("signed", "low"), [(True, -1.0), (False, 0.0)])
def test_the_scale_of_scores_that_are_all_zero_ends_at_one(signed: bool, low: float) -> None:
    ax = pictures.heat_map([scored(0.0, 0.0, signed=signed)], [""], False, None)
    assert ax.figure.axes[1].get_ylim() == (low, 1.0)
    cells = [to_hex(colour) for colour in ax.figure.axes[1]._colorbar.cmap.colors]
    assert len(cells) == (2 * LEVELS + 1 if signed else LEVELS + 1)
    assert (cells[0], cells[-1]) == ((DOWN, UP) if signed else ("#ffffff", UNSIGNED))


def matrix_of(scores: Any, earlier: Any = None, texts: int = 1) -> TokenMatrix:
    values = np.asarray(scores, float)
    rows, columns = values.shape
    pieces = [Piece(f"in{at}", (at,), 0.0, False, " ") for at in range(columns)]
    return TokenMatrix(
        example=0,
        outputs=tuple(Piece(f"out{at}", (at,), -1.0, False, " ") for at in range(rows)),
        texts=(tuple(pieces),) if texts == 1 else (tuple(pieces[:2]), tuple(pieces[2:])),
        scores=values,
        earlier=np.ones(values.shape, bool) if earlier is None else np.asarray(earlier),
        signed=True,
        summary="Method at word of Model",
    )


def test_the_cells_of_a_matrix_are_on_one_scale_and_grey_after_the_output() -> None:
    ax = pictures.matrix_picture(matrix_of([[4.0, np.nan, 0.0], [-8.0, 2.0, 1.0]], [[1, 1, 0], [1, 1, 1]]), None)
    up, down = (step("light", scale, level).background for scale, level in (("p", LEVELS // 2), ("m", LEVELS)))
    assert colours_of(ax)[0] == [up, "#ffffff", "#ededed"]
    assert colours_of(ax)[1][0] == down
    assert [(text.get_text(), *text.get_position(), text.get_fontsize()) for text in ax.texts] == [("?", 1, 0, 8)]
    assert {tick.tick1line.get_markersize() for tick in ax.xaxis.get_minor_ticks()} == {0}
    assert [label.get_text() for label in ax.get_xticklabels()] == ["in0", "in1", "in2"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("input", "output")
    assert ax.figure.axes[1].get_ylabel() == "score by Method"
    assert size_of(ax) == [3.4, round(max(2.6, 1.6 + 0.24 * 2), 6)]
    assert [list(ax.get_xticks(minor=True)), list(ax.get_yticks(minor=True))] == [
        [-0.5, 0.5, 1.5, 2.5],
        [-0.5, 0.5, 1.5],
    ]
    assert ax.lines[:] == []
    assert not any(spine.get_visible() for spine in ax.spines.values())


def test_a_matrix_of_an_encoder_and_a_decoder_is_divided() -> None:
    ax = pictures.matrix_picture(matrix_of(np.ones((2, 5)), texts=2), None)
    (between,) = ax.lines
    assert (list(between.get_xdata()), between.get_color(), between.get_linewidth()) == ([1.5, 1.5], "0.2", 1.2)
    assert ax.get_xlabel() == "input: of the encoder, then of the decoder"


@pytest.mark.parametrize(("count", "between"), [(80, True), (81, False)])
def test_a_large_matrix_is_no_larger_than_a_page_and_has_labels_that_fit(count: int, between: bool) -> None:
    ax = pictures.matrix_picture(matrix_of(np.ones((count, 2))), None)
    assert (len(ax.get_yticks(minor=True)) > 0) == between
    assert size_of(ax)[1] == round(1.6 + 0.24 * count, 6)
    own = pictures.new_axes(None, 10, 4)
    inches = own.get_window_extent().width * 0.85 / own.figure.dpi
    pictures.matrix_picture(matrix_of(np.ones((1, 400))), own)
    assert own.get_xticks()[1] == np.ceil(400 * 0.13 / inches)
    wide = pictures.matrix_picture(matrix_of(np.ones((1, 400))), None)
    inches = pictures.new_axes(None, 18, 2.6).get_window_extent().width * 0.75 / wide.figure.dpi
    assert wide.get_xticks()[1] == np.ceil(400 * 0.13 / inches)
    assert size_of(wide)[0] == 18
    ticks = wide.get_xticks()
    assert {*np.diff(ticks)} == {ticks[1]}
    assert 18 * 0.5 / 0.13 < len(ticks) < 18 / 0.13, "as many labels as there is space for"


@pytest.mark.parametrize("count", [1, 3, 20])
def test_bars_have_a_row_of_the_same_height_each_and_letters_that_fit(count: int) -> None:
    ax = pictures.bars(line_of(*["word"] * count), None)
    assert size_of(ax) == [6.4, round(0.8 + 0.26 * count, 6)]
    assert ax.get_ylim() == (count - 0.4, -0.6)
    assert ax.get_xlabel() == "score by Method"
    high = 72 * ax.get_window_extent().height / ax.figure.dpi / count
    assert {label.get_fontsize() for label in ax.get_yticklabels()} == {min(10, 0.95 * high)}
    assert [(line.get_xdata(), line.get_linewidth(), line.get_color()) for line in ax.lines] == [([0, 0], 0.8, "0.4")]


def test_bars_of_very_many_words_are_no_higher_than_a_page_and_have_small_letters() -> None:
    ax = pictures.bars(line_of(*["word"] * 400), None)
    assert size_of(ax)[1] == 40
    assert 0 < ax.get_yticklabels()[0].get_fontsize() < 10


@pytest.mark.parametrize(("columns", "wide"), [(1, 2.2 + 0.72), (4, 2.2 + 4 * 0.72), (100, 18.0)])
def test_a_heat_map_has_cells_of_the_same_size_up_to_the_width_of_a_page(columns: int, wide: float) -> None:
    ax = pictures.heat_map([line_of(*["a"] * columns), line_of("b")], ["0", "1"], False, None)
    assert size_of(ax) == [round(wide, 6), 1.8]
    assert list(ax.get_xticks()) == []
    assert ax.images[0].get_array().shape == (2, columns, 3)
    assert len(written(ax)) == (columns + 1 if columns < 100 else 0), "words only in cells that hold them"


def test_a_heat_map_of_many_texts_is_no_higher_than_a_page() -> None:
    assert size_of(pictures.heat_map([line_of("a")] * 10, [""] * 10, False, None))[1] == round(0.8 + 0.42 * 10, 6)
    ax = pictures.heat_map([line_of("a")] * 300, [""] * 300, False, None)
    assert size_of(ax)[1] == 40
    assert written(ax) == []


def test_the_words_of_a_heat_map_are_cut_to_their_cells_and_keep_their_notes() -> None:
    word = "abcdefghijklmnopqrstuvwxyz" * 2
    noted = replace(line_of(word), pieces=(line_of(word).pieces[0]._replace(score=np.nan),))
    assert written(pictures.heat_map([line_of(word)], [""], False, None)) == [word[:9] + "…"]
    assert written(pictures.heat_map([noted], [""], False, None)) == [word[:3] + "… (nan)"]
    wide = pictures.heat_map([line_of(word)], [""], False, pictures.new_axes(None, 10, 4))
    assert written(wide) == [word[:23] + "…"]
    narrow = pictures.heat_map([replace(noted, pieces=noted.pieces * 10)], [""], False, pictures.new_axes(None, 6.4, 4))
    assert {*written(narrow)} == {"… (nan)"}


@pytest.mark.parametrize(("examples", "shown"), [(1, False), (2, True), (10, True), (11, False)])
def test_lines_by_steps_have_a_legend_where_it_says_something(examples: int, shown: bool) -> None:
    ax = pictures.objective_by_step({example: np.ones(1) for example in range(examples)}, [], None)
    assert (ax.get_legend() is not None) == shown
    assert size_of(ax) == [6.4, 4.0]
    assert [line.get_label() for line in ax.lines] == [f"example {example}" for example in range(examples)]


def test_the_steps_of_a_search_are_whole_numbers() -> None:
    ax = pictures.objective_by_step({0: np.array([3.0, 2.0, 1.0]), 4: np.array([3.0, 2.0, 2.0])}, [1.5], None)
    assert [step for step in ax.get_xticks() if 0 <= step <= 2] == [0, 1, 2]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step", "L")
    assert [line.get_marker() for line in ax.lines] == ["None"] * 3
    assert [list(line.get_xdata()) for line in ax.lines[:2]] == [[0, 1, 2]] * 2
    assert list(ax.lines[2].get_ydata()) == [1.5, 1.5]
    assert (ax.lines[2].get_linewidth(), ax.lines[2].get_linestyle()) == (0.8, "--")
    assert ax.figure.get_layout_engine() is not None, "labels do not run out of the figure"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["example 0", "example 4"]
    alone = pictures.objective_by_step({0: np.array([3.0])}, [], None)
    assert alone.lines[0].get_marker() == "o"
    assert alone.get_legend() is None
