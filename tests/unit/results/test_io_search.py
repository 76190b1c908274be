"""Searches in files: restored bit for bit, and refused where they were changed by hand."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.results.search import Search
from tests.unit.results.attributed import byte_level
from tests.unit.results.searched import search_of
from tests.unit.results.test_io_hostile import CHANGES, changed
from tests.unit.stored import expect_change_refused, expect_restored

SEARCH = search_of([["a", "fine", "film"], ["so", "bad"]], [["a", "poor", "film"], ["so", "good"]])
RESIZED = search_of([["a", "film"]], [["a", "poor", "film"]], until=None, texts=None, texts_before=None)


def everything() -> Search:
    """Return a search with every field of a batch, NaN among its numbers, a trigger, and a rule for each example."""
    before = embgrad.encode([("a 🙂", "a"), ("a a a", "a")], byte_level())
    before = before.replace(types=np.zeros(before.shape, int), convention="tfhub", extras={"position_ids": before.ids})
    found = before.replace(ids=before.ids[:, ::-1], mask=before.model_mask().astype(bool), mask_is_bool=True)
    search = search_of([["a"], ["b"]], [["b"], ["a"]])
    values: dict[str, Any] = {
        "before": before,
        "batch": found,
        "trigger": np.array([4, 5]),
        "objective": np.array([np.nan, -0.0]),
    }
    values["provenance"] = {**search.provenance, "until": [0.5, -1.5]}
    return Search(**{**{field.name: getattr(search, field.name) for field in fields(search)}, **values})


@pytest.mark.parametrize("search", [SEARCH, RESIZED, everything()])
def test_a_search_is_restored_bit_for_bit(tmp_path: Path, search: Search) -> None:
    path = tmp_path / "s.safetensors"
    search.save(path)
    expect_restored(search, embgrad.load(path))
    embgrad.save(search, path)
    loaded = embgrad.load(path)
    expect_restored(search, loaded)
    with safetensors.safe_open(str(path), "numpy") as file:
        assert json.loads(file.metadata()["embgrad"])["format"] == 1
    loaded.save(tmp_path / "again.safetensors")
    assert path.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_what_is_shown_is_the_same_after_a_file(tmp_path: Path) -> None:
    SEARCH.save(tmp_path / "s.safetensors")
    loaded = embgrad.load(tmp_path / "s.safetensors")
    assert loaded.to_html() == SEARCH.to_html()
    assert str(loaded.figures()) == str(SEARCH.figures())
    assert loaded.changes() == SEARCH.changes()


def test_further_inputs_are_not_written(tmp_path: Path) -> None:
    everything().save(tmp_path / "s.safetensors")
    assert dict(embgrad.load(tmp_path / "s.safetensors").before.extras) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, entry: arrays.pop("history_seconds"), "lacks the arrays ['history_seconds']"),
        (lambda arrays, entry: arrays.update(x=np.zeros(1)), "holds the arrays ['x']"),
        (lambda arrays, entry: entry.pop("texts"), "lacks the fields ['texts']"),
        (lambda arrays, entry: entry.update(before=3), "holds 3 as before: expected an object"),
        (lambda arrays, entry: entry["before"].pop("tokens"), "lacks the fields of before ['tokens']"),
        (lambda arrays, entry: entry["batch"].update(mask_is_bool=1), "says mask_is_bool 1: expected true or false"),
        (lambda arrays, entry: entry["batch"].update(convention="x"), "holds a batch 'batch' that is not valid: "),
        (lambda arrays, entry: entry["batch"].update(texts=[3, 4]), "holds a batch 'batch' that is not valid: "),
        (lambda arrays, entry: entry["batch"].update(tokens=[["a"]]), "holds tokens that are not one for each of the ids"),
        (lambda arrays, entry: arrays.update(after_ids=np.arange(3)), "holds after_ids of shape (3,): expected"),
        (lambda arrays, entry: arrays.update(after_ids=-arrays["after_ids"]), "holds a batch 'batch' that is not valid: "),
        (lambda arrays, entry: arrays.update(before_mask=np.ones((2, 3))), "holds before_mask of dtype float64: expected int64"),
        (
            lambda arrays, entry: arrays.update({name: arrays[name][:1] for name in arrays if name.startswith("after_")})
            or entry["batch"].update(tokens=None),
            "holds after_ids of shape (1, 3): expected (2, after_position)",
        ),
        (lambda arrays, entry: arrays.pop("success"), "holds 0.5 as provenance['until']: expected a number, or one for each"),
        (lambda arrays, entry: entry["provenance"].update(until=None), "holds None as provenance['until']"),
        (lambda arrays, entry: entry["provenance"].update(until=[1]), "holds [1] as provenance['until']: expected a number, or"),
        (lambda arrays, entry: entry["provenance"].update(until=[1, True]), "holds [1, True] as provenance['until']"),
        (lambda arrays, entry: entry["provenance"].update(until=float("nan")), "holds nan as provenance['until']"),
        (lambda arrays, entry: arrays.update(success=np.array([2, 0])), "holds 2 in success: expected no number above 1"),
        (lambda arrays, entry: arrays.update(success=np.array([1.0, 0])), "holds success of dtype float64: expected int64"),
        (lambda arrays, entry: arrays.update(objective=np.zeros(3)), "holds objective of shape (3,): expected (2,), (example,)"),
        (lambda arrays, entry: arrays.update(trigger=np.zeros(1)), "holds trigger of dtype float64"),
        (lambda arrays, entry: arrays.update(trigger=np.array([-1])), "holds -1 in trigger: expected no number below 0"),
        (lambda arrays, entry: arrays.update(history_objective=np.zeros((3, 1))), "holds history_objective of shape (3, 1)"),
        (lambda arrays, entry: arrays.update(history_ids=np.zeros((3, 2), int)), "holds history_ids of shape (3, 2): expected"),
        (lambda arrays, entry: arrays.update(history_seconds=np.zeros(2)), "holds history_seconds of shape (2,): expected (3,)"),
        (lambda arrays, entry: arrays.update(history_gradients=np.zeros((3, 2))), "holds history_gradients of dtype float64"),
        (lambda arrays, entry: arrays.update(history_ids=np.full((3, 2, 3), -2)), "holds -2 in history_ids"),
        (lambda arrays, entry: arrays.update(history_evaluations=np.full((3, 2), -1)), "holds -1 in history_evaluations"),
        (lambda arrays, entry: entry.update(texts=["a"]), "holds ['a'] as texts: expected a text for each of 2 examples"),
        (lambda arrays, entry: entry["provenance"].pop("method"), "holds None as provenance['method']"),
        (lambda arrays, entry: entry["provenance"].pop("goal"), "holds None as provenance['goal']: expected 'maximize' or"),
    ],
)  # fmt: skip
def test_a_file_changed_by_hand_is_refused(change: Any, message: str) -> None:
    expect_change_refused(SEARCH, change, message)


def in_bytes() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        everything().save(Path(folder) / "s.safetensors")
        return (Path(folder) / "s.safetensors").read_bytes()


SOUND = in_bytes()


@given(st.lists(CHANGES, min_size=1, max_size=4), st.booleans())
@settings(max_examples=150)
def test_changed_files_are_refused_or_sound(changes: Any, repaired: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.safetensors"
        path.write_bytes(changed(SOUND, changes, repaired=repaired))
        try:
            found = embgrad.load(path)
        except embgrad.errors.FileFormatError:
            return
        with np.errstate(all="ignore"):
            assert repr(found)
            assert str(found.figures())
            assert found.table()
            assert found.to_html()
            assert found._repr_html_()
        found.save(path)
        expect_restored(found, embgrad.load(path))
