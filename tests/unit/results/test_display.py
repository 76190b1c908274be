"""Attributions as plots, HTML, LaTeX, in the terminal and in notebooks: their scores, with texts of any origin."""

from __future__ import annotations

import re
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import embgrad
from embgrad.cli.result_lines import result_lines
from embgrad.display.colours import LEVELS, PALETTES, step
from embgrad.results.attribution import Attributions
from tests.unit.inputs.test_offsets import wordpiece
from tests.unit.refusals import refused
from tests.unit.results.attributed import attribution_of, by_words, byte_level

TOKENS = ["[CLS]", "Knead", "the", "dough", "[SEP]"]
ONE = by_words(["Knead  the dough"], [TOKENS], [[9.0, -2.0, 0.5, 4.0, -9.0]])
SALIENCY = by_words(["Knead  the dough"], [TOKENS], [[9.0, 2.0, 0.5, 40.0, 9.0]], "Saliency")
TWO = by_words(
    ["Knead  the dough", ("A", "B")],
    [TOKENS, ["[CLS]", "A", "[SEP]", "B", "[SEP]"]],
    [[9, -2, 0.5, 4, 9], [0, 8, 1, -4, 0]],
)
BOTH = Attributions({"integrated": ONE, "gradient": SALIENCY})
IDS = attribution_of(embgrad.TokenBatch([[7, 8, 9]]))

#: Text that HTML, LaTeX, Matplotlib's formulas, terminals or Rich would read as something else.
HOSTILE = "<script>alert('1')</script> & $x_1^2$ \\input{~} #%`\" [red]no[/red] \x1b[31m"


def labels(ax: Any) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def test_the_line_of_an_attribution_has_its_norm_and_its_delta_where_there_is_one() -> None:
    assert repr(ONE) == (
        "Attribution(1 × 5, IntegratedGradients at 'word' of Model (reference), norm 13.5, |delta| ≤ 0.01)"
    )
    assert repr(SALIENCY) == "Attribution(1 × 5, Saliency at 'word' of Model (reference), norm 42.03)"


def test_bars_of_words_by_sign_from_top_to_bottom(plt: Any) -> None:
    ax = ONE.plot()
    assert labels(ax) == TOKENS
    assert [bar.get_width() for bar in ax.patches] == [9.0, -2.0, 0.5, 4.0, -9.0]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_xlabel() == "score by IntegratedGradients at word"
    hidden = SALIENCY.plot(special=False)
    assert labels(hidden) == TOKENS[1:-1]
    assert {to_hex(bar.get_facecolor()) for bar in hidden.patches} == {PALETTES["light"]["n"]}


@pytest.mark.parametrize(
    ("by", "expected"),
    [(None, TOKENS), ("tokens", TOKENS), ("spans", TOKENS), ("sentences", ["[CLS]", "Knead the dough", "[SEP]"])],
)
def test_units_of_a_plot(plt: Any, by: str | None, expected: list[str]) -> None:
    assert labels(ONE.plot(by=by)) == expected


def test_words_are_shown_as_they_were_written(plt: Any) -> None:
    found = attribution_of(embgrad.encode([("The  films", "Zürich 🙂")], wordpiece()))
    assert labels(found.plot()) == ["[CLS]", "The", "films", "[SEP]", "Zürich", "🙂", "[SEP]"]
    assert labels(found.plot(by="tokens", special=False)) == ["the", "film", "s", "zurich", "[UNK]"]
    assert labels(found.plot(by="words", special=False)) == ["The", "films", "Zürich", "🙂"]


def test_words_of_byte_level_tokens_are_the_users_characters(plt: Any) -> None:
    found = attribution_of(embgrad.encode(["a 🙂\t שלום"], byte_level()))
    written = labels(found.plot(by="words"))
    assert "".join(written).replace("␣", "").replace("\\t", "") == "a🙂שלום"
    assert "\\t" in written
    terminal: Any = SimpleNamespace(as_json=False, coloured=False)
    (line,) = result_lines(found, terminal, words=True)
    assert re.sub(r"\([+0-9]+\)", "", line.plain) == " ".join(written)


def test_ids_stand_for_tokens_that_are_not_known(plt: Any) -> None:
    assert labels(IDS.plot()) == ["7", "8", "9"]


def test_a_heat_map_has_a_row_for_each_text_on_one_scale(plt: Any) -> None:
    ax = TWO.plot()
    assert labels(ax) == ["0", "1"]
    (image,) = ax.images
    colours = [[to_hex(cell) for cell in row] for row in image.get_array()]
    level = LEVELS // 2  # of 4 where 8 is the largest
    assert colours[0][3] == step("light", "p", level).background
    assert colours[1][1] == step("light", "p", LEVELS).background
    assert colours[1][3] == step("light", "m", level).background
    assert colours[1][0] == step("light", "p", 0).background
    assert [text.get_text() for text in ax.texts] == [*TOKENS, "[CLS]", "A", "[SEP]", "B", "[SEP]"]
    assert ax.figure.axes[1].get_ylim() == (-8, 8)


def test_several_methods_side_by_side_each_on_its_own_scale(plt: Any) -> None:
    of_the_first = Attributions({"a": TWO, "b": TWO}).plot()
    assert [text.get_text() for text in of_the_first.texts] == TOKENS * 2
    ax = BOTH.plot()
    assert labels(ax) == ["integrated", "gradient"]
    (image,) = ax.images
    assert to_hex(image.get_array()[0, 3]) == step("light", "p", LEVELS).background
    assert to_hex(image.get_array()[1, 3]) == step("light", "n", LEVELS).background
    assert to_hex(image.get_array()[1, 1]) == step("light", "n", round(LEVELS / 20)).background
    assert ax.figure.axes[1].get_ylabel() == "share of the largest,\npurple: no sign"
    alone = Attributions({"gradient": SALIENCY}).plot()
    assert labels(alone) == TOKENS


def test_axes_of_the_user_are_drawn_on_and_pyplot_is_left_alone(plt: Any) -> None:
    own = Figure()
    first, second = own.subplots(1, 2)
    assert ONE.plot(ax=first) is first
    assert BOTH.plot(ax=second) is second
    assert plt.get_fignums() == []
    before = dict(matplotlib.rcParams)
    current = plt.figure()
    ax = ONE.plot(ax=current.subplots())
    assert plt.gcf() is current
    assert ax.figure is current
    assert ONE.plot().figure is not current
    assert dict(matplotlib.rcParams) == before


def test_scores_that_are_not_finite_have_no_bar_and_no_colour(plt: Any) -> None:
    found = by_words(["a b c d"], [["a", "b", "c", "d"]], [[np.nan, np.inf, 0.0, 2.0]])
    assert [float(np.nan_to_num(bar.get_width(), nan=-1)) for bar in found.plot().patches] == [-1, -1, 0, 2]
    assert "background" not in found.to_html().split("<body>")[1].split('title="+nan')[1].split("</span>")[0]
    both = Attributions({"a": found, "b": found}).plot()
    assert both.images[0].get_array()[0, 0].tolist() == [1, 1, 1]
    assert [text.get_text() for text in both.texts[:4]] == ["a (nan)", "b (inf)", "c", "d"]
    assert labels(found.plot()) == ["a (nan)", "b (inf)", "c", "d"]


def test_scores_that_are_not_finite_are_marked_wherever_text_is_shown(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    none = by_words(["a b c"], [["a", "b", "[SEP]"]], [[np.nan, -np.inf, np.nan]])
    assert "all scores are zero or not finite\na(?) b(?) c [SEP] (nan)" in shown(none, capsys)
    assert "all scores are zero or not finite" in none.to_html()
    assert Reader(none.to_html()).texts[0] == "a (nan) b (-inf) c [SEP] (nan)"
    assert "a (nan) b ({-}inf) c" in none.to_latex()
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR")
    assert "a(?) b(?) c" in shown(none, capsys)


class Reader(HTMLParser):
    """Collects the elements and texts of a page; the texts of `pre-wrap` blocks are those of the user."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: dict[str, str] = {}
        self.texts: list[str] = []
        self._title = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attributes)
        self._title = values.get("title") or ""
        if "pre-wrap" in (values.get("style") or ""):
            self.texts.append("")

    def handle_data(self, data: str) -> None:
        if self._title:
            self.titles[data] = self._title
        if self.texts:
            self.texts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._title = ""
        if tag == "div" and self.texts:
            self.texts.append("")


def test_html_holds_the_text_and_the_numbers() -> None:
    page = Reader(ONE.to_html(special=False))
    assert page.texts[0] == "Knead  the dough"
    assert page.titles == {"Knead": "-2, position 1", "the": "+0.5, position 2", "dough": "+4, position 3"}
    assert Reader(ONE.to_html()).texts[0] == "[CLS] Knead  the dough [SEP]"
    assert Reader(TWO.to_html(1)).texts[0] == "[CLS] A [SEP] B [SEP]"
    assert Reader(TWO.to_html(-1, special=False)).texts[0] == "A | B"
    assert Reader(SALIENCY.to_html(by="sentences")).titles["Knead  the dough"] == "40.05, positions 1, 2, 3"


@pytest.mark.parametrize("by", ["spans", "words", "tokens", "sentences"])
def test_html_is_escaped_and_loads_nothing(by: str) -> None:
    page = by_words([HOSTILE], [[HOSTILE]], [[1.0]]).to_html(by=by)
    assert {*Reader(page).tags} <= {"html", "head", "meta", "title", "style", "body", "div", "span", "strong"}
    assert "\x1b" not in page
    assert not re.search(r"https?:|url\(|@import|<script|<img|<link", page)
    assert page.encode().decode() == page
    named = Attributions({"<b>&": ONE, "x": ONE})
    assert "&lt;b&gt;&amp;" in named.to_html()


def test_html_of_methods_side_by_side_has_each_text_by_each_method() -> None:
    page = Reader(BOTH.to_html())
    assert [text for text in page.texts if text.startswith("[CLS]")] == ["[CLS] Knead  the dough [SEP]"] * 2
    assert page.tags.count("strong") == 2


def test_a_notebook_shows_the_first_examples_without_a_document_around_them() -> None:
    many = by_words(["a"] * 12, [["a"]] * 12, 1.0)
    shown = many._repr_html_()
    assert shown.count("pre-wrap") == 10
    assert "the first 10 of 12 examples; to_html() returns all" in shown
    assert "<html" not in shown
    assert "<style" not in shown
    assert BOTH._repr_html_().count("pre-wrap") == 2
    for count in (1, 2):
        few = by_words(["a"] * count, [["a"]] * count, 1.0)._repr_html_()
        assert few.count("example ") == (count if count > 1 else 0)


def test_latex_escapes_what_latex_reads_and_leaves_other_letters() -> None:
    text = "\\{}$&#%_^~<>|`-'\" é中\nend"
    found = by_words([text], [[text[:17], "é中", "end"]], [[0.0, 1.0, -1.0]])
    body = found.to_latex()
    assert body.startswith("% \\usepackage{xcolor}\n")
    assert (
        "\\textbackslash{}\\{\\}\\$\\&\\#\\%\\_\\textasciicircum{}\\textasciitilde{}\\textless{}\\textgreater{}\\textbar{}"
        "\\textasciigrave{}{-}\\textquotesingle{}\\char34{} \\colorbox[HTML]{D55E00}"
    ) in body
    assert "é中}\\leavevmode\\\\\\relax\n\\colorbox[HTML]{0072B2}{\\strut \\color{white}end}" in body
    assert body.count("{") == body.count("}")


def test_a_text_direction_does_not_reach_beyond_its_text() -> None:
    text = "one \u202etwo \u2067three \u05e9\u05dc\u05d5\u05dd"
    found = by_words([text], [text.split(" ")], 1.0)
    for page in (found.to_html(), found.to_latex()):
        assert not {*"\u202e\u2067"} & {*page}
        assert "\u05e9\u05dc\u05d5\u05dd" in page
    assert "\\u202etwo" in found.to_html()


def test_latex_breaks_lines_between_the_words_of_a_piece() -> None:
    body = ONE.to_latex(by="sentences", special=False)
    assert [body.count(f"\\strut {word}}}") for word in ("Knead", "the", "dough")] == [1, 1, 1]
    assert BOTH.to_latex().count("\\par}") == 2
    assert "\\textbf{gradient}" in BOTH.to_latex()


def shown(attribution: Any, capsys: Any, **how: Any) -> str:
    attribution.show(**how)
    return str(capsys.readouterr().out)


def test_the_terminal_without_colours_has_digits(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    lines = shown(ONE, capsys).splitlines()
    assert lines == [
        "example 0: IntegratedGradients at word, L = 2.5, at the baseline 1.5; 9 is 4",
        "[CLS] Knead(-4)  the(+1) dough(+9) [SEP]",
    ]
    assert "Knead(0) the(0) dough(9)" in shown(SALIENCY, capsys, by="words", special=False)
    assert "gradient    example 0: Saliency" in shown(BOTH, capsys)


def test_the_terminal_in_colours_and_without_rich(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)
    assert "\x1b[38;2;0;0;0;48;2;213;94;0mdough\x1b[0m" in shown(ONE, capsys)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "dough(+9)" in shown(ONE, capsys)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert "[CLS] Knead(-4)  the(+1) dough(+9) [SEP]\n" in shown(ONE, capsys)


def test_names_of_methods_are_escaped_in_every_output(capsys: Any, monkeypatch: Any) -> None:
    name = "\x1b]0;owned\x07\n\n\x1b[31mred"
    both = Attributions({name: ONE, "x": SALIENCY})
    escaped = "\\x1b]0;owned\\x07\\n\\n\\x1b[31mred"
    monkeypatch.setenv("NO_COLOR", "1")
    lines = shown(both, capsys).splitlines()
    assert lines[0].startswith(f"{escaped}  example 0: Integrated")
    assert lines[2].startswith(f"{'x':{len(escaped)}}  example 0: Saliency")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert shown(both, capsys).splitlines() == lines
    assert "\\textbf{\\textbackslash{}x1b]0;owned\\textbackslash{}x07\\textbackslash{}n" in both.to_latex()
    assert f"<strong>{escaped}</strong>" in both.to_html()


def test_the_terminal_shows_text_as_it_is(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    out = shown(by_words([HOSTILE], [[HOSTILE]], [[1.0]]), capsys)
    assert "\x1b" not in out
    assert "[red]no[/red] \\x1b[31m(+9)" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"by": "word"},
            "by is 'word': expected one of 'tokens', 'words', 'spans', 'sentences', 'segments', or None. Did you mean 'words'",
        ),
        ({"by": 3}, "by is 3: expected one of"),
        ({"examples": 2}, "examples is 2: expected an index from 0 to 1, a list or slice, or None for all"),
        ({"examples": [0, True]}, "examples is [0, True]: expected an index"),
        ({"examples": "all"}, "examples is 'all': expected an index"),
        ({"examples": slice(5, 9)}, "which is none of the 2: expected one at least"),
        ({"examples": []}, "examples is [], which is none of the 2: expected one at least"),
        ({"special": "no"}, "special is 'no': expected True or False"),
    ],
)
def test_unknown_units_and_examples_are_refused(arguments: dict[str, Any], message: str) -> None:
    for call in (TWO.to_html, TWO.to_latex, TWO.show, TWO.plot):
        with refused(embgrad.EmbgradError, message):
            call(**arguments)


def test_what_is_not_known_cannot_be_shown() -> None:
    with refused(embgrad.EmbgradError, "the texts of this attribution are not known"):
        IDS.to_html(by="spans")
    with refused(embgrad.EmbgradError, "the tokens of this attribution are not known"):
        IDS.to_html(by="words")


def test_attributions_of_other_batches_are_not_shown_side_by_side(tmp_path: Path) -> None:
    embgrad.save({"a": ONE, "b": TWO}, tmp_path / "both.safetensors")
    both = embgrad.load(tmp_path / "both.safetensors")
    with refused(
        embgrad.EmbgradError, "the attributions 'a' and 'b' are of different ids or texts: expected those of one batch"
    ):
        both.to_html()
    assert both._repr_html_() is None
    zz, qq = (by_words([f"a {text}"], [["a", "[UNK]"]], 1.0) for text in ("zz", "qq"))
    with refused(embgrad.EmbgradError, "the attributions 'zz' and 'qq' are of different ids or texts"):
        Attributions({"zz": zz, "qq": qq}).show()


@pytest.mark.parametrize(
    ("attributions", "message"),
    [
        ({}, "attributions is {}: expected a mapping of names to attributions, at least one"),
        ([ONE], "expected a mapping of names to attributions, at least one"),
        ({"a": 3}, "attributions['a'] is of type int: expected names of type str, and results of embgrad.attribute"),
        ({3: ONE}, "attributions[3] is of type Attribution: expected names of type str"),
    ],
)
def test_attributions_of_nothing_or_of_something_else_are_refused(attributions: Any, message: str) -> None:
    with refused(embgrad.EmbgradError, message):
        Attributions(attributions)


def test_long_texts_are_shown_in_a_time_that_grows_with_their_length() -> None:
    tokens = ["Ab."] * 20_000
    long = by_words([" ".join(tokens)], [tokens], np.ones((1, len(tokens))))
    start = time.perf_counter()
    assert long.to_html().count('title="+1, position ') == len(tokens)
    assert len(long.sentences()[0]) == len(tokens)
    assert time.perf_counter() - start < 20  # minutes where each piece goes over all pieces


def test_other_axes_several_examples_of_several_methods_and_a_missing_matplotlib(monkeypatch: Any) -> None:
    with refused(embgrad.EmbgradError, "ax is of type Figure: expected Matplotlib's Axes, or None for a new figure"):
        ONE.plot(ax=Figure())
    with refused(embgrad.EmbgradError, "examples is [0, 1]: expected one example, since the rows are the 2 methods"):
        Attributions({"a": TWO, "b": TWO}).plot([0, 1])
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for one in (ONE, TWO, BOTH):
        with refused(embgrad.EmbgradError, "pictures need the package 'matplotlib'", "pip install 'embgrad[plot]'"):
            one.plot()
