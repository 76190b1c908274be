"""Tokens and names that mean harm: shown so that they can be read, and do nothing; and back from a file as they were."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import traceback
import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.common.text import MOST_MARKS, visible, visible_lines
from embgrad.common.token_text import MOST_SHOWN, token_text
from embgrad.report import render_page, write_page
from tests.unit.hostile import TEXTS, expect_harmless
from tests.unit.pages import Reader, result, times
from tests.unit.streams import Pieces, model

#: Those that a page would be too long for are shown in part everywhere, and said to be.
every = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())


def marked(text: str) -> embgrad.results.EmbeddingGradients:
    """Return a result that holds the text in every field that can hold text."""
    provenance = {
        "backend": text,
        "model": f"{text}.{text}",
        "point": text,
        "path": text,
        "versions": {text: text},
        "objective": {"class": text, "output": text, text: text},
        "unused": [text],
        text: {text: [text]},
    }
    return result([["[CLS]", text, f"##{text}", f"<{text}>"]], provenance=provenance)


def stacked(text: str) -> int:
    """Return the largest number of marks on one letter."""
    most = run = 0
    for character in text:
        run = run + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        most = max(most, run)
    return most


@every
def test_displayed_text_is_harmless(text: str) -> None:
    for shown in (visible(text), token_text(text), repr(text)):
        expect_harmless(shown)
    expect_harmless(visible_lines(text), lines=True)
    assert visible_lines(text).count("\n") == text.count("\n")
    assert stacked(visible(text)) <= MOST_MARKS
    assert token_text(text).strip()
    assert len(token_text(text)) <= 10 * MOST_SHOWN + 30
    if len(text) > MOST_SHOWN:
        assert f"({len(text)} characters)" in token_text(text)


def test_marks_above_one_letter_are_shown_up_to_a_number() -> None:
    marks = "\u0301" * MOST_MARKS
    assert [visible(marks), visible(f"a{marks}"), visible(f"{marks}\u0301")] == [marks, f"a{marks}", f"{marks}\\u0301"]


@given(st.text(st.characters(), max_size=30))
@settings(max_examples=300)
def test_any_text_is_harmless(text: str) -> None:
    expect_harmless(visible(text))
    assert stacked(visible(text)) <= MOST_MARKS
    assert visible(visible(text)) == visible(text), "what is spelled out is not spelled out again"
    if text.isprintable() and not any(unicodedata.category(item).startswith("M") for item in text):
        assert visible(text) == text or set(text) & set("\u115f\u1160\u3164\uffa0\u2800")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]8;;http://a\x1b\\b", "\\x1b]8;;http://a\\x1b\\b"),
        ("\x9b31m", "\\x9b31m"),
        ("\u202ea\u2066b", "\\u202ea\\u2066b"),
        ("\ud800", "\\ud800"),
        ("a\x00b", "a\\x00b"),
        ("\u3164", "\\u3164"),
        ("e" + "\u0301" * 10, "e" + "\u0301" * 8 + "\\u0301\\u0301"),
        ("שָׁלוֹם", "שָׁלוֹם"),
        ("ที่นี่", "ที่นี่"),
        ("Tiếng Việt", "Tiếng Việt"),
        ("می\u200cخواهم", "می\u200cخواهم"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@every
def test_results_and_comparisons_print_hostile_text(text: str) -> None:
    item = marked(text)
    comparison = embgrad.compare(
        item, replace(times(item, 3), provenance={**item.provenance, "compute_dtype": "float32"})
    )
    comparison = replace(comparison, notes=(text,), advice=text, labels=(text, text))
    for shown in (item, comparison, embgrad.results.Comparisons({text: comparison})):
        with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")) as out:
            print(shown, repr(shown), str(shown))
            out.flush()
        expect_harmless(repr(shown), lines=True)
    plain = replace(comparison, notes=("x",), advice="x" if text else "", labels=("x", "x"))
    assert len(repr(comparison).splitlines()) == len(repr(plain).splitlines()), "no text makes a line of its own"
    assert json.loads(json.dumps(comparison.to_dict())) == comparison.to_dict()


@every
def test_errors_print_hostile_text(text: str, tmp_path: Path) -> None:
    item, other = marked(text), times(result([["[CLS]", "a", "b", "c"]]), 2)
    other = replace(other, provenance={"versions": {"numpy": text}, "embgrad": text})
    golden = embgrad.golden(tmp_path / "g.safetensors")
    golden.update({text: item, "b": item})
    calls = [
        lambda: golden.check({text: other, "c": other}),
        lambda: golden.check(item),
        lambda: embgrad.compare(embgrad.load(golden.path), {text + "x": item}),
        lambda: item.table(),
        lambda: item.saliency(text),
        lambda: render_page({"a": {text: item}, "b": {text + "x": other}}),
        lambda: embgrad.save({text: 3}, tmp_path / "x"),
    ]
    for call in calls:
        with pytest.raises(embgrad.EmbgradError) as caught:
            call()
        formatted = "".join(traceback.format_exception_only(caught.type, caught.value))
        expect_harmless(formatted, lines=True)
        stream = io.StringIO()
        logging.Formatter().format(logging.makeLogRecord({"msg": "%s", "args": (caught.value,)}))
        print(caught.value, file=stream)
        expect_harmless(stream.getvalue(), lines=True)


@every
def test_errors_on_files_print_hostile_text(text: str, tmp_path: Path) -> None:
    path = tmp_path / "g.safetensors"
    plain = {
        "format": 1,
        "class": "EmbeddingGradients",
        "tokens": None, "vocab": None, "pad_leak": 0.0, "provenance": {}, "certificate": None,
    }  # fmt: skip
    array = np.zeros((1, 1, 1), np.float32)
    sound = {"values": array, "activations": array, "objective": np.zeros(1), "ids": np.zeros((1, 1), np.int64)}
    name = text.encode("utf-8", "replace").decode() or "x"
    foreign: list[tuple[dict[str, Any], Any]] = [
        ({**sound, name: array}, plain),
        ({**sound, name: array.astype(np.float16)}, plain),
        (sound, {**plain, text: 1}),
        (sound, {**plain, "vocab": text}),
        (sound, {**plain, "pad_leak": text}),
        (sound, {**plain, "tokens": text}),
        (sound, {**plain, "provenance": text}),
        (sound, {**plain, "provenance": {"backend": [text]}}),
        (sound, {"format": 1, "results": [{"name": [text]}]}),
        (sound, {"format": 10**9, text: text}),
    ]
    for arrays, described in foreign:
        safetensors.numpy.save_file(arrays, path, {"embgrad": json.dumps(described)})
        with pytest.raises(embgrad.errors.FileFormatError) as caught:
            embgrad.load(path)
        expect_harmless(str(caught.value), lines=True)
        assert len(caught.value.message) < 1000


@every
def test_a_page_shows_hostile_text_as_text(text: str) -> None:
    item = marked(text)
    points = {text or "word": item, "layer.0": item, text + "2": item}
    page = render_page(
        {f"a{text}": points, f"b{text}": {name: times(each, 2) for name, each in points.items()}},
        title=text,
    )
    page.encode("utf-8")
    seen = Reader(page)
    expect_harmless(seen.seen.replace("\u00ad", ""), lines=True)
    assert seen.panels[0].tokens[1].text == token_text(text.lstrip("Ġ▁")) or not text.strip()
    kinds = {tag for tag, _ in seen.tags}
    assert not kinds & {"script", "img", "b", "iframe", "object", "link", "base", "form"}
    for _, attributes in seen.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            expect_harmless(value or "")
    assert set(seen.attributes("href")) == {"#sentences"}
    assert sum(tag == "svg" for tag, _ in seen.tags) >= 1, "names stand in the picture, too"
    assert len(page) < 2_500_000


@every
def test_a_notebook_shows_hostile_text_as_text(text: str) -> None:
    item = marked(text)
    comparison = replace(embgrad.compare(item, times(item, 2)), notes=(text,), advice=text, labels=(text, text))
    for shown in (item, comparison, embgrad.results.Comparisons({text: comparison, text + "2": comparison})):
        fragment = shown._repr_html_()
        fragment.encode("utf-8")
        seen = Reader(fragment)
        expect_harmless(seen.seen, lines=True)
        assert not {tag for tag, _ in seen.tags} & {"script", "img", "b", "iframe", "style", "link"}


@every
def test_files_preserve_hostile_text(text: str, tmp_path: Path) -> None:
    item = marked(text)
    embgrad.save({text: item, text + "x": item}, tmp_path / "g.safetensors", durable=True)
    actual = embgrad.load(tmp_path / "g.safetensors")
    assert isinstance(actual, dict)
    assert list(actual) == [text, text + "x"]
    assert actual[text].tokens == item.tokens
    assert actual[text].provenance == item.provenance
    text_of_it = safetensors.safe_open(str(tmp_path / "g.safetensors"), "numpy").metadata()["embgrad"]
    assert text_of_it.isascii(), "any reader can have it, and print it"
    assert text_of_it.isprintable()
    write_page(tmp_path / "page.html", actual[text], title=text)
    (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("keep", ["all", "saliency"])
def test_streams_preserve_hostile_text(keep: str, tmp_path: Path) -> None:
    given, pieces = list(TEXTS.values()), Pieces(lambda text: [text, "x"])
    saved: dict[str, Any] = {"keep": keep, "run_id": "the tokenizer of this test"}
    for folder in (tmp_path / "a", tmp_path / "a"):  # and again, where nothing is left to do
        run = embgrad.stream(model(), given, embgrad.Sum(), tokenizer=pieces, batch_size=4, to=folder, **saved)
        actual = [row[1] for item in run for row in item.tokens]
        assert actual == given
    assert [row[1] for item in embgrad.open_stream(tmp_path / "a") for row in item.tokens] == given
    assert (tmp_path / "a" / "manifest.json").read_text(encoding="utf-8").isascii()
