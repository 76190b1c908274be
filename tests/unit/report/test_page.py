"""The page and the notebook fragments: figures, verdicts, limits and refusals."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.display.figures import figure
from embgrad.errors import EmbgradError, PointError
from embgrad.report import render_page, write_page
from embgrad.report.arguments import of_own_page
from embgrad.report.sentences import sentences
from tests.unit.pages import SENTENCE, Reader, read, result, times
from tests.unit.results.searched import search_of

RESULT = result(SENTENCE)
SEARCH = search_of([["a", "b"]], [["a", "c"]])
FIELDS = ("values", "activations", "ids", "tokens", "objective")


def test_every_figure_comes_from_the_result() -> None:
    gradient = result(
        [["[CLS]", "un", "##kind", "[SEP]"], ["[CLS]", "kind", "[SEP]", "[PAD]"]], mask=[[1] * 4, [1, 1, 1, 0]]
    )
    page = read(gradient)
    assert [panel.legend for panel in page.panels] == ["Magnitude", "Signed"] * 2
    for number, panel in enumerate(page.panels):
        example = number // 2
        for position, token in enumerate(panel.tokens):
            assert token.figures == " · ".join(
                [
                    gradient.tokens[example][position],
                    f"position {position}",
                    f"id {gradient.ids[example, position]}",
                    f"magnitude {gradient.saliency('norm')[example, position]:.4g}",
                    f"signed {gradient.saliency('dot')[example, position]:.4g}",
                ]
            )
    assert [len(panel.tokens) for panel in page.panels] == [4, 4, 3, 3], "padding is not shown"
    assert "objective 0.25" in page.seen
    assert "1 padded positions not shown" in page.seen


ReadCompared = Callable[[dict[str, Any], dict[str, Any]], Reader]


@pytest.fixture
def read_compared(monkeypatch: pytest.MonkeyPatch) -> ReadCompared:
    """Return a function that reads the page of results with these comparisons, by label and point."""

    def read_with(results: dict[str, Any], comparisons: dict[str, Any]) -> Reader:
        monkeypatch.setattr("embgrad.report.page.comparisons_by_point", lambda by_label, points: comparisons)
        return read(results)

    return read_with


def test_each_token_shows_its_difference(read_compared: ReadCompared) -> None:
    first = result(SENTENCE)
    second = replace(first, values=first.values.copy())
    second.values[0, 4] *= 2
    comparison = embgrad.compare(first, second)
    page = read_compared({"ours": first, "theirs": second}, {"theirs": {"word": comparison}})
    assert [panel.legend for panel in page.panels] == [
        f"{kind}, {name}" for kind in ("Magnitude", "Signed") for name in ("ours", "theirs")
    ]
    reported = [token.figures.rpartition(" · ")[2] for token in page.panels[1].tokens]
    assert reported == ["differs from ours by 0.0e+00"] * 4 + [
        "differs from ours by 1.0e+00",
        "differs from ours by 0.0e+00",
    ]
    assert "differs" not in page.panels[0].tokens[4].figures
    figures = comparison.figures
    row = next(row for row in page.rows if row[0].endswith("word"))
    assert row[1:] == [figure(figures.relative_l2), figure(figures.largest), f"{figures.cosine:.8f}"]


def test_examples_in_another_order_are_matched() -> None:
    tokens = [["a", "b"], ["c", "d"], ["e", "f"]]
    first = result(tokens)
    turned = [2, 0, 1]
    second = replace(
        first,
        values=first.values[turned] * np.float32(1 + 1e-3),
        ids=first.ids[turned],
        tokens=tuple(first.tokens[i] for i in turned),
        objective=first.objective[turned],
    )
    page = read({"ours": first, "theirs": second})
    for example in range(3):
        ours, theirs = page.panels[4 * example : 4 * example + 2]
        assert [token.text for token in ours.tokens] == [token.text for token in theirs.tokens] == tokens[example]
        for token in theirs.tokens:
            assert token.figures.endswith("differs from ours by 1.0e-03")
    assert "objective 1.25 in ours, 1.25 in theirs" in page.seen


def test_missing_texts_are_named() -> None:
    first = result([["a", "b"], ["c", "d"]])
    part = replace(first, **{name: getattr(first, name)[:1] for name in FIELDS})
    page = read({"whole": first, "part": part})
    assert "part does not hold this text" in page.seen
    assert "objective 0.25 in whole, 0.25 in part" in page.seen
    assert "objective 1.25 in whole" in page.seen
    assert page.seen.count(" in part") == 1, "it has no objective of the second"
    assert ("objective 1.25" in read(first).seen, " in reference" in read(first).seen) == (True, False)
    assert [len(panel.tokens) for panel in page.panels] == [2, 2, 2, 2, 2, 0, 2, 0]
    page = read({"part": part, "whole": first})
    assert "1 of the examples of whole are not in part and are not shown" in page.seen
    other = result([["x", "y", "z"]], ids=[[71, 72, 73]])
    with pytest.raises(embgrad.errors.BatchError):
        read({"whole": first, "other": other})
    assert sentences({"whole": first, "other": other}, {})[1] == [
        "1 of the examples of other are not in whole and are not shown"
    ]


def test_an_extra_token_has_no_difference() -> None:
    first = result([["a", "b", "c"]], ids=[[1, 2, 3]])
    longer = result([["a", "b", "c", "</s>"]], ids=[[1, 2, 3, 9]])
    longer.values[:, :3] = first.values
    page = read({"ours": first, "theirs": longer})
    assert [token.figures.rpartition(" · ")[2] for token in page.panels[1].tokens] == [
        *["differs from ours by 0.0e+00"] * 3,
        "not in ours",
    ]


def verdict_of(page: Reader) -> str:
    return re.sub(r"\s+", " ", page.seen)


def test_the_verdict_in_words() -> None:
    page = verdict_of(read({"ours": RESULT, "theirs": replace(RESULT)}))
    assert "✓ theirs agrees with ours: relative L2 0 (tolerance" in page
    apart = embgrad.compare(RESULT, times(RESULT, -1))
    page = verdict_of(read({"ours": RESULT, "theirs": times(RESULT, -1)}))
    assert "✗ theirs differs from ours: relative L2 2 (tolerance" in page
    for finding in apart.findings:
        assert str(finding) in page
    assert "a is ours, reference some.Model at 'word'; b is theirs" in page


def test_findings_notes_and_advice_come_before_the_sentences(read_compared: ReadCompared) -> None:
    actual = (embgrad.results.Finding(("sign",), "a change of sign", 0.987, 0.01),)
    comparison = replace(
        embgrad.compare(RESULT, times(RESULT, -1)), findings=actual, notes=("padded otherwise",), advice="try bisect"
    )
    page = verdict_of(read_compared({"a": RESULT, "b": times(RESULT, -1)}, {"b": {"word": comparison}}))
    where = [
        page.index(text)
        for text in ("98.7 % of the difference is a change of sign", "try bisect", "padded otherwise", "Example 0")
    ]
    assert where == sorted(where)


def test_several_points() -> None:
    ours = {"layer.0": RESULT, "word": times(RESULT, 3), "layer.1": RESULT}
    theirs = {"layer.0": RESULT, "word": times(RESULT, 3), "layer.1": times(RESULT, 1.5)}
    page = read({"ours": ours, "theirs": theirs})
    text = verdict_of(page)
    assert "✗ theirs differs from ours at 1 of 3 points (layer.1): relative L2 0.5 at most" in text
    assert [row[0] for row in page.rows if row[0][:1] in "✓✗"] == [
        "✓ agrees layer.0",
        "✓ agrees word",
        "✗ differs layer.1",
    ]
    assert "The gradient at word, token by token" in text, "the lookup's sentences, wherever it stands"
    assert next(attributes.get("role") for tag, attributes in page.tags if tag == "svg") == "img"
    assert "theirs from 0 at layer.0 to 0.5 at layer.1. The tables hold every figure." in text
    assert "theirs, layer.1: relative L2 0.5" in text


def test_findings_name_their_points(read_compared: ReadCompared) -> None:
    sign, factor = (embgrad.results.Finding((name,), name, 0.99, 0.1) for name in ("sign", "constant-factor"))
    whole = embgrad.compare(RESULT, times(RESULT, -1))
    given = embgrad.results.Comparisons(
        {
            "word": replace(whole, findings=(sign, factor), notes=("n",)),
            "layer.0": replace(whole, findings=(sign,), notes=("n", "m")),
            "layer.1": embgrad.compare(RESULT, RESULT),
        }
    )
    text = verdict_of(read_compared({"a": RESULT, "b": times(RESULT, -1)}, {"b": given}))
    assert "99 % of the difference is sign" in text
    assert ": 99 % of the difference is sign" not in text, "at all points that differ"
    assert "at word: 99 % of the difference is constant-factor" in text
    assert "at word, layer.0: n" in text
    assert "at layer.0: m" in text


def test_different_findings_are_listed_separately(read_compared: ReadCompared) -> None:
    whole = embgrad.compare(RESULT, times(RESULT, -1))
    texts = [f"a factor {number}" for number in range(12)]
    given = {
        f"layer.{number}": replace(whole, findings=(embgrad.results.Finding(("constant-factor",), text, 0.9, 0.1),))
        for number, text in enumerate(texts)
    }
    results = {name: dict.fromkeys(given, RESULT) for name in "ab"}
    text = verdict_of(read_compared(results, {"b": given}))
    for number in range(8):
        assert f"at layer.{number}: 90 % of the difference is a factor {number}" in text
    assert "a factor 8" not in text
    assert "4 more findings, each at other points, are not listed" in text


def test_examples_are_numbered_as_in_the_first() -> None:
    first = result([["a", "b"], ["c", "d"], ["e", "f"]])
    part = replace(first, **{name: getattr(first, name)[1:] for name in FIELDS})
    page = read({"first": first, "part": part})
    assert [row[0] for row in page.rows if row[0].startswith("example ")] == ["example 1", "example 2"]


def test_many_examples_are_listed_in_part() -> None:
    gradient = result([[f"t{number}"] for number in range(80)])
    page = read({"a": gradient, "b": gradient})
    assert sum(row[0].startswith("example ") for row in page.rows) == 50
    assert "30 more examples not listed" in page.seen


def test_a_large_result_is_cut_and_says_so() -> None:
    gradient = result([[f"word{n}" for n in range(128)]] * 200, ids=np.arange(200 * 128).reshape(200, 128))
    page = render_page({"a": gradient, "b": times(gradient, 1)})
    assert len(page) < 6e6
    reader = Reader(page)
    assert "the last 181 of 200 examples are not shown" in reader.seen
    assert len(reader.panels) == 4 * 19
    assert 19 * 4 * 128 <= 10_000 < 20 * 4 * 128
    long = read(result([[f"w{position}" for position in range(3000)]]))
    assert "the first 512 of 3000 tokens" in long.seen
    assert [len(panel.tokens) for panel in long.panels] == [512, 512]
    cell = result([[f"w{position}" for position in range(3000)]])._repr_html_()
    assert Reader(cell).seen.count("the first 512 of 3000 tokens") == 2
    assert cell.count('title="w') == 2 * 512
    fragment = gradient._repr_html_() or ""
    assert len(fragment) < 3e5
    assert "the first 7 of 200 examples; embgrad.report.write_page shows more" in fragment


def test_an_example_without_a_real_position() -> None:
    page = read(result([["[PAD]"], ["a"]], mask=[[0], [1]]))
    assert "no tokens" in page.seen
    assert page.texts(2) == ["a"]


def test_a_point_without_positions_has_no_sentences() -> None:
    gradient = result([["a", "b"]], np.ones((1, 4)), provenance={"point": "pooler", "backend": "torch"})
    page = read(gradient)
    assert "has no sentences here: its gradient has the shape (1, 4)" in page.seen
    assert page.panels == []
    assert "no sentences: the gradient has the shape (1, 4)" in Reader(gradient._repr_html_()).seen


def test_the_pages_structure() -> None:
    page = read({"a": result(SENTENCE), "b": result(SENTENCE)}, title="A title")
    kinds = [tag for tag, _ in page.tags]
    for landmark in ("header", "main", "footer", "h1", "title"):
        assert kinds.count(landmark) == 1
    assert page.attributes("lang") == ["en"]
    assert page.attributes("href")[0] == "#sentences"
    assert page.seen.count(" · b") == 1
    assert " · a" not in page.seen
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    assert set(page.attributes("aria-labelledby")) <= set(ids)
    for tag, attributes in page.tags:
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
    assert kinds.count("table") == kinds.count("caption") == 3
    headings = [int(tag[1]) for tag in kinds if re.fullmatch(r"h\d", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(headings))
    groups: dict[str, int] = {}
    for name in page.attributes("name"):
        groups[str(name)] = groups.get(str(name), 0) + 1
    assert sum(count == 6 for count in groups.values()) == 4, "one group of tokens a panel"


def test_the_foot_shows_the_provenance() -> None:
    certificate = embgrad.results.Certificate(
        (embgrad.results.Slope("gradient", 1.0, 1.0, 0.0, 1e-3), embgrad.results.Slope("random 1", 1.0, 2.0, 0.0, 1e-3))
    )
    page = read(result(SENTENCE, mask=np.ones((1, 6), np.int64), pad_leak=1e-9, certificate=certificate))
    rows = dict(row for row in page.rows if len(row) == 2)
    assert rows["gradient"] == "1 × 6 × 4, float32"
    assert rows["versions, numpy"] == "1.2.3"
    assert rows["objective, class"] == "Sum"
    assert rows["compute dtype"] == "float32"
    assert rows["largest at padding"] == "1.00e-09"
    assert rows["certificate"] == "1 of 2 slopes by finite differences hold"
    assert "points" not in rows
    odd = RESULT.provenance | {"long": "x" * 401, "fits": "y" * 400, "names": ["ä"]}  # type: ignore[operator]
    page = read({"a": {"word": replace(RESULT, provenance=odd), "layer.0": RESULT}})
    rows = dict(row for row in page.rows if len(row) == 2)
    assert (rows["points"], rows["names"]) == ("word, layer.0", '["ä"]')
    assert (rows["long"], rows["fits"]) == ("x" * 400 + "…", "y" * 400)


def test_rendering_is_deterministic() -> None:
    assert render_page(result(SENTENCE)) == render_page(result(SENTENCE))


def test_a_failed_write_leaves_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "page.html"
    write_page(target, result([["\ud800"]]))
    assert Reader(target.read_text(encoding="utf-8")).texts() == ["\\ud800"]
    before = target.read_bytes()

    def broken(*_: Any) -> None:
        raise OSError("no room")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="no room"):
        write_page(str(target), result(SENTENCE))
    assert target.read_bytes() == before
    assert os.listdir(tmp_path) == ["page.html"]


def test_the_installed_package_has_its_style_sheets(tmp_path: Path) -> None:
    script = (
        "import embgrad, numpy as np\n"
        "from embgrad.testing.reference import ReferenceModel, lookup\n"
        "from embgrad.report import write_page\n"
        "model = ReferenceModel(lambda model, input_ids: lookup(model['E'], input_ids).tanh().mean(1), {'E': np.eye(4)})\n"
        "write_page('page.html', embgrad.gradients(model, [[1, 2]], embgrad.Sum()))\n"
    )
    subprocess.run([sys.executable, "-I", "-c", script], cwd=tmp_path, check=True, timeout=120)
    assert Reader((tmp_path / "page.html").read_text(encoding="utf-8")).texts() == ["1", "2"]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (
            {},
            "results is of type dict, empty: expected a result of embgrad.gradients or embgrad.attribute, or a mapping",
        ),
        (None, "results is of type NoneType"),
        ([1], "results is of type list"),
        ({"a": 3}, r"results\['a'\] is of type int: expected a result"),
        ({"a": {}}, r"results\['a'\] is of type dict, empty"),
        ({"a": {"word": 3}}, r"results\['a'\] is a mapping with values of type 'int'"),
        (
            {"a": {"word": 3, "b": RESULT}},
            r"results\['a'\] is a mapping with values of type 'EmbeddingGradients', 'int'",
        ),
    ],
)
def test_other_results_are_refused(results: Any, message: str) -> None:
    with pytest.raises(EmbgradError, match=message):
        render_page(results)


def test_a_search_has_a_page_by_itself() -> None:
    assert of_own_page({"a": {"b": SEARCH}}) is of_own_page(SEARCH) is SEARCH
    assert of_own_page({"a": RESULT, "b": {"word": RESULT}}) is of_own_page([]) is None
    with pytest.raises(EmbgradError, match=r"results holds 2 results, and one of embgrad\.search among them"):
        of_own_page({"a": {"word": RESULT}, "b": SEARCH})


def test_results_without_a_common_point_are_refused() -> None:
    with pytest.raises(PointError, match=r"a holds 'word'; b holds 'layer\.0'; expected results at the same points"):
        render_page({"a": {"word": RESULT}, "b": {"layer.0": RESULT}})


def test_notebooks_show_sentences() -> None:
    fragment = RESULT._repr_html_()
    assert fragment is not None
    page = Reader(fragment)
    assert "EmbeddingGradients 1 × 6 × 4, float32 at word; Model, reference 1.2.3" in verdict_of(page)
    titles = page.attributes("title")
    assert len(titles) == 12
    norm, dot = (RESULT.saliency(kind)[0, 3] for kind in ("norm", "dot"))
    assert titles[3] == f"##ping · position 3 · id 3 · magnitude {norm:.4g} · signed {dot:.4g}"
    assert "style" not in [tag for tag, _ in page.tags]
    assert not page.attributes("id")
    # The text keeps the notebook's colour: no style sets one.
    assert not [style for style in page.attributes("style") if re.search(r"(^|;)\s*color:", style or "")]


def test_notebooks_show_comparisons() -> None:
    comparison = embgrad.compare(RESULT, times(RESULT, 2))
    page = Reader(comparison._repr_html_() or "")
    assert "✗ b differs from a: relative L2 1" in verdict_of(page)
    assert [row[0].strip() for row in page.rows] == ["", "✗ all", "example 0"]
    assert page.rows[1][1:] == [figure(1.0), figure(comparison.figures.largest), "1.00000000"]
    several = embgrad.compare({"word": RESULT, "layer.0": RESULT}, {"word": RESULT, "layer.0": times(RESULT, 2)})
    page = Reader(several._repr_html_() or "")
    assert [row[0].strip() for row in page.rows] == ["point", "✓ word", "✗ layer.0"]
    assert [tag for tag, _ in page.tags].count("svg") == 1
    assert embgrad.results.Comparisons({})._repr_html_() is not None
