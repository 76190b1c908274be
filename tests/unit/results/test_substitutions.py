"""Substitutions shown, saved and read again, and refused where a file was changed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import embgrad
from embgrad.display.html import SMALL
from embgrad.results.substitutions import Substitutions
from tests.unit.refusals import refused
from tests.unit.stored import expect_change_refused, expect_restored

MADE = Substitutions(
    ids=np.array([[[-1, -1], [5, 3]], [[-1, -1], [3, -1]]]),
    scores=np.array([[[-np.inf, -np.inf], [1.5, -0.25]], [[-np.inf, -np.inf], [0.125, -np.inf]]]),
    objective=np.array([0.5, -2.0]),
    original=np.array([[1, 7], [1, 5]]),
    mask=np.array([[1, 1], [1, 1]]),
    tokens=(("[CLS]", "▁film"), ("[CLS]", "<b>")),
    names={3: "##ing", 5: "<b>"},
    provenance={"goal": "maximize", "objective": {"class": "Logit"}, "model": "some.Model", "backend": "reference"},
)


@pytest.mark.parametrize("made", [MADE, replace(MADE, mask=None, tokens=None, names=None)])
def test_substitutions_are_restored_bit_for_bit(tmp_path: Path, made: Substitutions) -> None:
    path = tmp_path / "s.safetensors"
    made.save(path)
    expect_restored(made, embgrad.load(path))
    embgrad.save({"a": made, "b": MADE}, path)
    expect_restored(made, embgrad.load(path)["a"])
    with safetensors.safe_open(str(path), "numpy") as file:
        assert json.loads(file.metadata()["embgrad"])["format"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, entry: arrays.pop("scores"), "lacks the arrays ['scores']"),
        (lambda arrays, entry: entry.pop("names"), "lacks the fields ['names']"),
        (lambda arrays, entry: arrays.update(ids=np.ones((2, 2), np.int64)), "holds ids of shape (2, 2): expected (example"),
        (lambda arrays, entry: arrays.update(ids=np.ones((2, 2, 2))), "holds ids of dtype float64: expected int64"),
        (lambda arrays, entry: arrays.update(original=np.ones((2, 3), np.int64)), "holds original of shape (2, 3)"),
        (lambda arrays, entry: arrays.update(original=np.full((2, 2), -1)), "holds -1 in original"),
        (lambda arrays, entry: arrays.update(mask=np.full((2, 2), 2)), "holds 2 in mask"),
        (lambda arrays, entry: arrays.update(scores=np.zeros((2, 2, 2), np.float32)), "holds scores of dtype float32"),
        (lambda arrays, entry: arrays.update(objective=np.zeros(3)), "holds objective of shape (3,)"),
        (lambda arrays, entry: arrays.update(ids=np.full((2, 2, 2), -2)), "holds -2 in ids"),
        (lambda arrays, entry: arrays.update(scores=np.zeros((2, 2, 2))), "scores that are not infinite where there is no id"),
        (lambda arrays, entry: entry.update(tokens=[["a"]]), "holds tokens"),
        (lambda arrays, entry: entry.update(names=["a"]), "holds names that are no object"),
        (lambda arrays, entry: entry.update(names={"x": "a"}), "holds 'x' among the names of ids: expected ids with the text"),
        (lambda arrays, entry: entry.update(names={"3": 4}), "holds '3' among the names of ids"),
        (lambda arrays, entry: entry["provenance"].update(goal="up"), "holds the goal 'up': expected 'maximize' or 'minimize'"),
        (lambda arrays, entry: entry["provenance"].update(objective=3), "holds 3 as provenance['objective']"),
        (lambda arrays, entry: entry["provenance"].update(objective={}), "holds the objective None: expected"),
    ],
)  # fmt: skip
def test_a_file_changed_by_hand_is_refused(change: Any, message: str) -> None:
    expect_change_refused(MADE, change, message)


def test_the_terminal_shows_the_best_replacements_of_each_position(capsys: pytest.CaptureFixture[str]) -> None:
    MADE.show()
    assert capsys.readouterr().out == (
        "example 0: Logit = 0.5, estimated changes by other tokens, to maximize\n"
        "  1  ▁film  →  <b> +1.5  ##ing -0.25\n"
        "example 1: Logit = -2, estimated changes by other tokens, to maximize\n"
        "  1  <b>  →  ##ing +0.125\n"
    )
    wide = replace(
        MADE, ids=np.array([[[5, 3], [3, 5]], [[5, 3], [3, -1]]]), scores=np.array([[[1.5, 1], [12.5, 1]]] * 2)
    )
    wide.show(0)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  0  [CLS]  →  <b> +1.5     ##ing +1",
        "  1  ▁film  →  ##ing +12.5  <b> +1",
    ]
    replace(MADE, tokens=None, names=None).show(0, most=1)
    assert capsys.readouterr().out.endswith("\n  1  id 7  →  id 5 +1.5\n")


def test_what_cannot_be_shown_is_refused() -> None:
    with refused(embgrad.EmbgradError, "examples is 2: expected an index from 0 to 1"):
        MADE.show(2)
    with refused(embgrad.errors.BatchError, "most is 0: expected a whole number of at least 1"):
        MADE.show(most=0)
    with refused(embgrad.errors.BatchError, "count is 0: expected a whole number of at least 1"):
        MADE.best(0)


def test_an_example_without_a_searched_position_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    none = replace(MADE, ids=np.full((2, 2, 2), -1), scores=np.full((2, 2, 2), -np.inf))
    none.show(1)
    assert capsys.readouterr().out == "example 1: Logit = -2, estimated changes by other tokens, to maximize\n"
    assert "0 positions searched to maximize Logit" in repr(none)
    assert none.best() == [[], []]
    assert [
        [each.id for each in found] for found in replace(MADE, ids=np.where(MADE.ids == 3, 0, MADE.ids)).best()
    ] == [
        [5, 0],
        [0],
    ]
    assert "<table" in none._repr_html_()


@pytest.mark.parametrize(("goal", "order"), [("maximize", [5, 4, 3, 2]), ("minimize", [2, 3, 4, 5])])
def test_the_best_substitutions_come_first_whatever_the_signs(tmp_path: Path, goal: str, order: list[int]) -> None:
    ids = np.array([[[2, 5], [4, 3]]])
    scores = np.array([[[-0.5, 1.5], [0.25, -0.125]]])
    made = replace(MADE, ids=ids, scores=scores, original=np.zeros((1, 2), int), mask=None, tokens=None)
    made = replace(made, objective=np.zeros(1), provenance={**MADE.provenance, "goal": goal})
    assert [each.id for each in made.best()[0]] == order
    assert [each.id for each in made.best(2)[0]] == order[:2]
    made.save(tmp_path / "s.safetensors")
    expect_restored(made, embgrad.load(tmp_path / "s.safetensors"))


def test_a_notebook_shows_coloured_replacements_with_texts_escaped() -> None:
    html = MADE._repr_html_()
    assert html.count("<tr>") == 2
    assert html.count(f'<div style="{SMALL}">example') == 2
    assert "&lt;b&gt; +1.5" in html
    assert "<b>" not in html
    assert 'background:rgba(213,94,0,0.50)" title="id 5"' in html  # the largest, orange
    assert 'background:rgba(0,114,178,0.09)" title="id 3"' in html  # a sixth of it, blue
    many = replace(MADE, **{name: np.repeat(getattr(MADE, name), 6, 0) for name in ("ids", "scores", "original")})
    many = replace(many, objective=np.zeros(12), tokens=None)
    assert "the first 10 of 12 examples; show() prints all" in many._repr_html_()


def test_the_text_of_substitutions() -> None:
    assert repr(MADE) == (
        "Substitutions(2 × 2 × 2, 2 positions searched to maximize Logit of some.Model (reference); the best change L by "
        "+0.125 to +1.5, as estimated)"
    )
