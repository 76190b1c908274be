"""The sizes, marks and words of pictures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import matplotlib
import numpy as np
import pytest

import embgrad
from embgrad.display import pictures
from embgrad.display.lines import Line, Piece
from embgrad.results.attribution import Attributions
from tests.unit.results.attributed import attribution_of

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def plt() -> Iterator[Any]:
    import matplotlib.pyplot

    matplotlib.pyplot.close("all")
    yield matplotlib.pyplot
    matplotlib.pyplot.close("all")


def line_of(*words: str, example: int = 0, label: str = "") -> Line:
    pieces = tuple(Piece(word, (index,), index + 1.0, False, " ") for index, word in enumerate(words))
    return Line(label, "Method, at word", example, pieces, True)


def size_of(ax: Any) -> list[float]:
    return list(np.round(ax.figure.get_size_inches(), 6))


def written(ax: Any) -> list[str]:
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("count", [1, 3, 20])
def test_bars_have_a_row_of_the_same_height_each_and_letters_that_fit(count: int) -> None:
    ax = pictures.bars(line_of(*["word"] * count), None)
    assert size_of(ax) == [6.4, round(0.8 + 0.26 * count, 6)]
    assert ax.get_ylim() == (count - 0.4, -0.6)
    assert ax.get_xlabel() == "score by Method"
    high = 72 * ax.get_window_extent().height / ax.figure.dpi / count
    assert {label.get_fontsize() for label in ax.get_yticklabels()} == {min(10, 0.95 * high)}
    assert [line.get_xdata() for line in ax.lines] == [[0, 0]]


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
    ax = pictures.error_by_steps([5], np.ones((1, examples)), None)
    assert (ax.get_legend() is not None) == shown
    assert size_of(ax) == [6.4, 4.0]
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale(), ax.get_yscale()) == ("steps", "|delta|", "log", "log")
    assert [text.get_text() for text in ax.get_xticklabels()] == ["5"]
    assert len(ax.lines) == examples


def test_a_picture_of_methods_names_each_row_by_its_method() -> None:
    attribution = attribution_of(embgrad.TokenBatch([[7, 8, 9]]))
    both = Attributions({"first": attribution, "second": replace(attribution, scores=attribution.scores * 2)})
    assert [label.get_text() for label in both.plot().get_yticklabels()] == ["first", "second"]


def test_the_text_of_an_attribution_has_its_error_where_there_is_one() -> None:
    batch = embgrad.TokenBatch([[7, 8, 9]])
    assert ", |delta| ≤ 0.01)" in repr(attribution_of(batch))
    assert "delta" not in repr(attribution_of(batch, method="Saliency"))


def test_the_steps_of_a_search_are_whole_numbers() -> None:
    ax = pictures.objective_by_step({0: np.array([3.0, 2.0, 1.0]), 4: np.array([3.0, 2.0, 2.0])}, [1.5], None)
    assert [step for step in ax.get_xticks() if 0 <= step <= 2] == [0, 1, 2]
    assert [line.get_marker() for line in ax.lines] == ["None"] * 3
    assert [list(line.get_xdata()) for line in ax.lines[:2]] == [[0, 1, 2]] * 2
    assert list(ax.lines[2].get_ydata()) == [1.5, 1.5]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["example 0", "example 4"]
    alone = pictures.objective_by_step({0: np.array([3.0])}, [], None)
    assert alone.lines[0].get_marker() == "o"
    assert alone.get_legend() is None
