"""The options of a run over a dataset, which are checked before it starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
import embgrad.ray
from embgrad.errors import BackendError, BatchError, EmbgradError, ObjectiveError, PointError, UnsupportedError
from embgrad.ray.settings import settings
from tests.unit.ray import models
from tests.unit.ray.models import labelled


def test_defaults() -> None:
    job, pool = settings(models.reading, labelled, {})
    assert (job.batch_size, job.point, pool.workers, pool.verify, job.run is None) == (32, "word", 2, True, False)
    options = job.options
    assert (options.pads, options.check, options.compile, options.training) == ("keep", False, False, False)
    assert job.inputs.columns == ["text"]


@pytest.mark.parametrize("size", [np.int64(8), np.int32(8)])
def test_numbers_of_numpy_are_accepted(size: Any) -> None:
    assert type(settings(models.reading, labelled, {"max_length": size})[0].inputs.max_length) is int
    assert type(settings(models.reading, labelled, {"ids": "i", "pad_id": size})[0].inputs.pad_id) is int
    for wrong in (3.7, "0", True, -1):
        with pytest.raises(BatchError, match=r"pad_id is .*: expected the id that pads"):
            settings(models.reading, labelled, {"ids": "i", "pad_id": wrong})


@pytest.mark.parametrize(
    ("objective", "options", "error", "message"),
    [
        (embgrad.CrossEntropy([0, 1]), {}, ObjectiveError, "one entry an example.*pass a function of the rows"),
        (embgrad.Scalar(len), {}, UnsupportedError, "reduces over the batch"),
        (embgrad.Sum, {}, ObjectiveError, "the class Sum"),
        (
            embgrad.Sum(),
            {"at": ["word", "position"]},
            PointError,
            "expected the name of a point.*make one run for each",
        ),
        (embgrad.Sum(), {"batchsize": 3}, EmbgradError, "no option 'batchsize'.*Did you mean 'batch_size'"),
        (embgrad.Sum(), {"split": True}, EmbgradError, "'split' has no meaning over a dataset"),
        (embgrad.Sum(), {"tokenizer": 3}, EmbgradError, "expected build to return .model, tokenizer."),
        (embgrad.Sum(), {"batch_size": 0}, BatchError, "batch_size is 0"),
        (embgrad.Sum(), {"workers": 1.5}, BatchError, "workers is 1.5"),
        (embgrad.Sum(), {"text": "t", "ids": "i"}, BatchError, "text and ids both name columns"),
        (embgrad.Sum(), {"mask": "m"}, BatchError, "mask requires ids"),
        (embgrad.Sum(), {"ids": 3}, BatchError, "ids is 3: expected the name of a column"),
        (embgrad.Sum(), {"text": 3}, BatchError, "text is 3: expected the name of a column"),
        (embgrad.Sum(), {"convention": "hugging"}, BatchError, "Did you mean 'huggingface'"),
        (embgrad.Sum(), {"ids": "i", "max_length": 3}, BatchError, "max_length cuts texts"),
        (embgrad.Sum(), {"add": {"word": np.ones((4, 2, 3))}}, UnsupportedError, "have an example axis"),
        (embgrad.Sum(), {"add": {"word": [[[0.0]], [[1.0]]]}}, UnsupportedError, "have an example axis"),
        (embgrad.Sum(), {"pads": "drop"}, BatchError, "pads is 'drop': expected 'keep' or 'zero'"),
        (embgrad.Sum(), {"call": 3}, BatchError, "call is 3: expected a function"),
        (embgrad.Sum(), {"build": 3}, BackendError, "build is 3: expected a function without arguments"),
    ],
)
def test_options_are_checked_before_anything_starts(
    objective: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        settings(options.pop("build", models.reference), objective, options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": "table"}, "Did you mean 'tables'"),
        ({"kind": "norms"}, "Did you mean 'norm'"),
        ({"output": "values"}, "length is None and output is 'values'"),
        ({"length": 3}, "length is 3 and output is 'saliency'"),
        ({"prefix": 3}, "^prefix is 3: expected the prefix of the new columns' names, such as 'g_'"),
    ],
)
def test_outputs_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(EmbgradError, match=message):
        embgrad.ray.gradients(None, models.reference, embgrad.Sum(), **options)


@pytest.mark.parametrize(("reduce", "hint"), [("means", "Did you mean 'mean'"), (None, ""), (["sum"], "")])
def test_other_reductions_are_refused(reduce: Any, hint: str) -> None:
    with pytest.raises(EmbgradError, match=rf"^reduce is .*: expected 'sum' or 'mean'\..*{hint}"):
        embgrad.ray.table(None, models.reference, embgrad.Sum(), reduce=reduce)
