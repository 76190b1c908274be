"""The conformance checks of errors: the same mistake raises the same class with the same message in every framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

import embgrad
from embgrad import errors
from embgrad.testing.examples import example_batch, expect_same
from embgrad.testing.harness import Harness

__all__ = ["MISTAKES", "ErrorChecks"]

BATCH: Final = example_batch()
OBJECTIVE: Final = embgrad.CrossEntropy([0, 1, 2])


def _outside(model: Any, folder: Path) -> None:
    ids = BATCH.ids.copy()
    ids[1, 2] = 999
    embgrad.gradients(model, ids, OBJECTIVE)


def _cut_file(model: Any, folder: Path) -> None:
    path = folder / "cut.safetensors"
    embgrad.save(embgrad.gradients(model, BATCH, OBJECTIVE), path)
    path.write_bytes(path.read_bytes()[:-1])
    embgrad.load(path)


def _ask(objective: embgrad.Objective | embgrad.Scalar = OBJECTIVE, **options: Any) -> Callable[[Any, Path], Any]:
    """Return a function that calls `gradients` with these options."""
    return lambda model, folder: embgrad.gradients(model, BATCH, objective, **options)


#: For each class the architecture, the mistake and the message, with `…` for text that depends on the framework.
MISTAKES: Final[Mapping[type[embgrad.EmbgradError], tuple[str, Callable[[Any, Path], Any], str]]] = {
    errors.EmbgradError: (
        "mean",
        lambda model, folder: embgrad.gradients(model, BATCH, OBJECTIVE).saliency("l2"),
        "kind is 'l2': expected 'norm' or 'dot'.",
    ),
    errors.BackendError: (
        "mean",
        lambda model, folder: embgrad.gradients((model, 3), BATCH, OBJECTIVE),
        "no installed backend takes a model of parts of the types …, builtins.int: …",
    ),
    errors.UnsupportedError: (
        "mean",
        _ask(objective=embgrad.Scalar(lambda outputs: 1.0), split=True),
        "split=True pulls back each example's objective by itself, and a Scalar objective has one for the whole batch: give an "
        "embgrad objective, or a function of shape (example,)",
    ),
    errors.BatchError: (
        "mean",
        _outside,
        "id 999 at example 1, position 2 is outside the table: table '…' has 40 rows: expected 0 to 39; use the tokenizer that "
        "belongs to this model",
    ),
    errors.PointError: (
        "mean",
        _ask(add={"word": np.zeros((2, 2))}),
        "add['word'] has the shape (2, 2): expected one that broadcasts to the point's, (3, 4, 5)",
    ),
    errors.UnknownPointError: (
        "mean",
        _ask(at="wrod"),
        "there is no point 'wrod': expected a role, of 'word', or a path, of …; embgrad.points(model, batch) lists all. Did you "
        "mean 'word'?",
    ),
    errors.AmbiguousPointError: (
        "two_tables",
        _ask(),
        "'word' fits 2 lookups: word#0 = …#0 (40 rows × 5, indices of shape (3, 4)), word#1 = …#0 (40 rows × 5, indices of shape "
        "(3, 4)); name one of them, or give a list of names to get each",
    ),
    errors.PointNotReachedError: (
        "no_lookup",
        _ask(),
        "the model made no lookup whose indices are the batch's ids, of shape (3, 4); lookups seen: none. Expected the model to "
        "look up the ids that it is given: if it changes them first, give it the changed ones, or name a point with at=...…",
    ),
    errors.OutputError: (
        "named",
        _ask(objective=embgrad.Sum(output="nothing")),
        "the model has no output 'nothing': there are 'last_hidden_state' (role 'sequence'), 'pooler_output' (role 'pooled').",
    ),
    errors.ObjectiveError: (
        "mean",
        _ask(objective=embgrad.Logit(99)),
        "index 99 at example 0 is out of range: the output has 3 classes, expected 0 to 2, or another output with output=... "
        "where these are no classes",
    ),
    errors.NoGradientError: (
        "detached",
        _ask(),
        "the objective does not depend on the point 'word' (…#0 (40 rows × 5, indices of shape (3, 4))): no path in the "
        "graph leads from it to the point. Check whether the model detaches the value or converts it to integers, and whether "
        "the objective reads the right output",
    ),
    errors.CertificationError: (
        "broken",
        _ask(check=True),
        "the gradient at 'word' is wrong: in the direction 'gradient' it makes the objective change by 36.1433, and finite "
        "differences by 18.0717 (± …); 3 of 3 directions differ. Expected a backward pass that is the derivative of the forward "
        "pass: look for custom gradients, straight-through estimators and detached parts behind the point",
    ),
    errors.FileFormatError: ("mean", _cut_file, "… is not a complete safetensors file: …; write or fetch it again"),
    errors.GoldenError: (
        "mean",
        lambda model, folder: embgrad.golden(folder / "none.safetensors").check(
            embgrad.gradients(model, BATCH, OBJECTIVE)
        ),
        "there is no golden file …: expected one to check against. …",
    ),
}


class ErrorChecks:
    """The checks of errors that every backend must pass."""

    @pytest.mark.parametrize("error", MISTAKES, ids=lambda error: error.__name__)
    def test_an_error_has_one_message_in_every_framework(
        self, harness: Harness, model: Any, error: type[embgrad.EmbgradError], tmp_path: Path
    ) -> None:
        architecture, mistake, message = MISTAKES[error]
        built = model(architecture)
        before = harness.state(built)
        with pytest.raises(error) as raised:
            mistake(built, tmp_path)
        assert raised.type is error
        assert re.fullmatch(".*".join(map(re.escape, message.split("…"))), raised.value.message, flags=re.DOTALL)
        assert str(raised.value) == f"{raised.value.message}\n{error.see()}"
        expect_same(harness.state(built), before)
