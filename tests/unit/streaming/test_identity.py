"""What identifies a run that goes on: digests of values and labels, and the user's name for functions."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, EmbgradError, FileFormatError, UnsupportedError
from embgrad.streaming.digest import UnreadableError, digest_of, name_of
from embgrad.streaming.run_identity import Names
from tests.unit.streams import model, texts, tokenizer

COUNT = 23


class Other:
    def __init__(self, value: Any) -> None:
        self.value = value


class Doubled(embgrad.Sum):
    """An objective of the user's."""


class Pieces:
    """A tokenizer without a vocabulary."""

    def __call__(self, text: str) -> list[int]:
        return tokenizer(text)


@dataclass(frozen=True)
class Own(embgrad.attribution.Method):
    def contributions(self, passes: Any, tokenizer: Any) -> embgrad.attribution.Contributions:
        return embgrad.attribution.Contributions(passes.inputs.sum(-1))


#: What a call holds that no digest describes, by how the message names it.
FUNCTIONS: dict[str, dict[str, Any]] = {
    "the objective is or holds <function": {"objective": lambda outputs: outputs.sum(1)},
    "the objective is or holds Doubled": {"objective": Doubled()},
    "the objective is or holds <function <lambda": {"objective": embgrad.PerBatch(lambda batch: embgrad.Sum())},
    "call is or holds": {"call": lambda own, inputs: own(**inputs)},
    "edit['word'] is or holds": {"edit": {"word": lambda gradient: gradient}},
    "add['block'] is or holds": {"add": {"block": functools.partial(np.multiply, 0.0)}},
    "tokenizer is or holds": {"tokenizer": Pieces()},
    "method is or holds": {"method": Own()},
}


def streamed(to: Path | None, run_id: Any = None, **options: Any) -> embgrad.results.Stream:
    given = {"objective": embgrad.Sum(), "tokenizer": tokenizer, "batch_size": 5, **options}
    return embgrad.stream(model(), texts(COUNT), to=to, run_id=run_id, **given)


@pytest.mark.parametrize(("message", "options"), FUNCTIONS.items(), ids=[*FUNCTIONS])
def test_functions_need_a_name_of_the_run(tmp_path: Path, message: str, options: dict[str, Any]) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert len(list(streamed(None, **options))) == 5
    with pytest.raises(UnsupportedError) as refused:
        streamed(tmp_path / "a", **options)
    assert str(refused.value).startswith(message)
    assert "give run_id='...', a text that you change whenever they change, or omit to" in str(refused.value)
    assert not os.listdir(tmp_path / "a")
    with streamed(tmp_path / "b", "first", **options) as parts:
        next(parts)
    with pytest.raises(FileFormatError, match=r"another run: run_id was 'first' and is 'second'\."):
        streamed(tmp_path / "b", "second", **options)
    assert len(streamed(tmp_path / "b", "first", **options).finish()) == 5
    assert embgrad.open_stream(tmp_path / "b").run["run_id"] == "first"


def test_functions_of_packages_need_none(tmp_path: Path) -> None:
    labelled = embgrad.Labelled(embgrad.CrossEntropy)
    source = [(text, 0) for text in texts(COUNT)]
    embgrad.stream(model(), source, labelled, tokenizer=tokenizer, to=tmp_path).finish()
    run = embgrad.open_stream(tmp_path).run
    assert run["objective"] == "Labelled embgrad.objectives.objectives.CrossEntropy"
    assert "run_id" not in run


def test_the_name_of_a_run_is_a_text(tmp_path: Path) -> None:
    for run_id in (3, ""):
        with pytest.raises(EmbgradError, match=r"run_id is .*: expected a text, such as 'first', or None"):
            streamed(tmp_path, run_id)


def test_a_function_has_the_name_under_which_its_package_has_it() -> None:
    assert name_of(embgrad.CrossEntropy) == "embgrad.objectives.objectives.CrossEntropy"
    assert name_of(np.linalg.norm) == "numpy.linalg.norm"

    @functools.wraps(np.linalg.norm)
    def wrapping(array: Any) -> Any:
        return 2 * np.linalg.norm(array)

    for function in (wrapping, lambda: 1, Other, [].index, functools.partial(len, [])):
        with pytest.raises(UnreadableError):
            name_of(function)


def test_sets_have_the_same_digest_in_each_process() -> None:
    script = "from embgrad.streaming.digest import digest_of; print(digest_of({'a', 'b', 'c'}))"
    reported = [
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert reported[0] == reported[1] != ""


@pytest.mark.parametrize(
    ("value", "changed"), [("a", "b"), ({"a": [1, None]}, {"a": [2, None]}), (np.float32(1.5), np.float32(2.5))]
)
def test_labels_identify_the_source(tmp_path: Path, value: Any, changed: Any) -> None:
    def source(label: Any) -> Any:
        return [(text, label) for text in texts(COUNT)]

    def labelled(label: Any) -> embgrad.results.Stream:
        made = embgrad.Labelled(lambda labels: embgrad.Logit(0))
        return embgrad.stream(model(), source(label), made, tokenizer=tokenizer, batch_size=2, to=tmp_path, run_id="a")

    with labelled(value) as parts:
        for _ in range(4):
            next(parts)
    with pytest.raises(FileFormatError, match="the source is not the one of the results in the folder"):
        labelled(changed).finish()
    labelled(value).finish()


#: Values that are made from a number, by what they are.
KINDS: dict[str, Callable[[int], Any]] = {
    "a long whole number": lambda n: 10**5000 + n,
    "a unit of time": lambda n: np.datetime64("2000", "Y" if n == 1 else "M"),
    "no time": lambda n: np.datetime64("NaT") if n == 1 else None,
    "shapes of objects": lambda n: np.array([1, 2], object).reshape(1, 2) if n == 1 else np.array([1, 2], object),
    "a function of a package": lambda n: np.linalg.norm if n == 1 else np.linalg.inv,
    "keys of two types": lambda n: {"a": n, 2: 0},
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_values_differ_by_what_they_hold(make: Callable[[int], Any]) -> None:
    assert digest_of(make(1)) == digest_of(make(1))
    assert digest_of(make(1)) != digest_of(make(2))


def test_an_objective_is_named_by_its_whole_description_up_to_200_characters() -> None:
    whole = embgrad.Logit([1, *range(10), *range(100, 127), 2])
    text = repr(whole.describe())
    assert len(text) == 200
    assert Names(None).of_objective(whole) == f"{text} {digest_of(whole.describe())}"
    longer = embgrad.Logit([1, *range(10), *range(100, 127), 20])
    assert Names(None).of_objective(longer) == f"{repr(longer)[:200]} {digest_of(longer.describe())}"


@pytest.mark.parametrize(
    "value",
    [
        *(date(2020, 1, 1), Other(1), Other, iter([1]), np.ma.array([1, 2], mask=[True, False])),
        *(np.zeros(1, [("a", int)]), np.ones(3, np.longdouble), np.array([Other(1)], object)),
    ],
)
def test_other_values_have_no_digest(value: Any) -> None:
    with pytest.raises(UnreadableError):
        digest_of([value])


@pytest.mark.parametrize("label", [(n for n in ()), memoryview(b""), Other(Other(n for n in ())), {1: [lambda: 1]}])
def test_labels_whose_content_cannot_be_read_are_refused_with_a_folder(tmp_path: Path, label: Any) -> None:
    def labelled(to: Path | None) -> embgrad.results.Stream:
        made = embgrad.Labelled(lambda labels: embgrad.Logit(0))
        return embgrad.stream(model(), [("a", label)] * 3, made, tokenizer=tokenizer, batch_size=2, to=to, run_id="a")

    assert len(list(labelled(None))) == 2
    with pytest.raises(BatchError, match=r"the examples 0 to 1 of the source hold .*, whose content cannot"):
        labelled(tmp_path).finish()


def test_other_inputs_whose_content_cannot_be_read_are_refused_with_a_folder(tmp_path: Path) -> None:
    batch = {"input_ids": [[3]], "more": (n for n in ())}
    with pytest.raises(BatchError, match="batch 0 of the source and its labels hold <generator"):
        embgrad.stream(model(), [batch], embgrad.Logit(0), to=tmp_path).finish()
