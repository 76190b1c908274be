"""What `attribute` refuses, and what it says."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.unit.attribution.models import BATCH, IDS, Tokenizer, curved

LOGIT = embgrad.Logit(0)
METHODS = {
    "steps is 0: expected a whole number of at least 1": lambda: embgrad.IntegratedGradients(0),
    "steps is 2.5: expected a whole number of at least 1": lambda: embgrad.SequentialIntegratedGradients(2.5),
    "rule is 'gauss': expected one of 'gausslegendre'": lambda: embgrad.IntegratedGradients(rule="gauss"),
    "tolerance is -1: expected a finite number of at least 0": lambda: embgrad.IntegratedGradients(tolerance=-1),
    "baseline is 'zeros': expected 'zero', 'pad', 'mask', an id, or an array at the point. Did you mean 'zero'": (
        lambda: embgrad.IntegratedGradients(baseline="zeros")
    ),
    "baseline is -1: expected an id, which is not negative": lambda: embgrad.Lime(baseline=-1),
    "replacement is None: expected 'zero'": lambda: embgrad.Occlusion(None),
    "baseline is [nan": lambda: embgrad.KernelShap(baseline=np.full(3, np.nan)),
    "baselines is 'zero': expected an array of shape (n, position, dim)": lambda: embgrad.GradientShap("zero"),
    "sigma is nan: expected a finite number of at least 0": lambda: embgrad.SmoothGrad(sigma=float("nan")),
    "reduce is 'median': expected one of 'mean', 'square', 'variance'": lambda: embgrad.SmoothGrad(reduce="median"),
    "of is Occlusion(": lambda: embgrad.SmoothGrad(of=embgrad.Occlusion()),
    "samples is 3: expected a whole number of at least 4": lambda: embgrad.KernelShap(3),
    "seed is -1: expected a whole number of at least 0": lambda: embgrad.Lime(seed=-1),
}


@pytest.mark.parametrize("message", METHODS)
def test_the_arguments_of_a_method_are_checked_when_it_is_made(message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        METHODS[message]()


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("integrated_gradient", "Did you mean 'integrated_gradients'"),
        (embgrad.Saliency, "the method is the class Saliency: expected an instance; write Saliency(...)"),
        (3, "method is 3: expected a method, such as embgrad.IntegratedGradients(), or one of 'saliency'"),
    ],
)
def test_an_unknown_method_is_refused(method: Any, message: str) -> None:
    with pytest.raises(embgrad.EmbgradError, match=re.escape(message)):
        embgrad.attribute(curved(), BATCH, LOGIT, method)


@pytest.mark.parametrize(
    ("method", "error", "message"),
    [
        (embgrad.IntegratedGradients(baseline=np.zeros(5)), embgrad.EmbgradError, "baseline has the shape (5,)"),
        (embgrad.Occlusion("mask"), embgrad.BatchError, "baseline='mask', and the id of the mask is not known"),
        (embgrad.Occlusion(99), embgrad.BatchError, "id 99 at example 0, position 0 is outside the table"),
        (
            embgrad.Occlusion("zero", keep_special=True),
            embgrad.BatchError,
            "keep_special=True, and neither the batch's",
        ),
    ],
)
def test_a_baseline_that_does_not_fit_is_refused(method: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        embgrad.attribute(curved(), BATCH, LOGIT, method)


def test_the_id_of_the_padding_is_read_from_the_batch() -> None:
    ids = np.where(BATCH.mask, IDS, 0)
    batch = embgrad.TokenBatch(ids, BATCH.mask)
    by_batch = embgrad.attribute(curved(), batch, LOGIT, embgrad.Occlusion("pad"))
    by_tokenizer = embgrad.attribute(curved(), batch, LOGIT, embgrad.Occlusion("pad"), tokenizer=Tokenizer())
    np.testing.assert_array_equal(by_batch.scores, by_tokenizer.scores)
    with pytest.raises(embgrad.BatchError, match="the id of the padding is not known"):
        embgrad.attribute(curved(), [[1, 2]], LOGIT, embgrad.Occlusion("pad"))


def test_an_objective_of_the_whole_batch_is_refused() -> None:
    with pytest.raises(embgrad.UnsupportedError, match="a Scalar objective reduces over the batch"):
        embgrad.attribute(curved(), BATCH, embgrad.Scalar(lambda output: output.sum()), "saliency")


def test_an_objective_that_is_not_finite_on_the_path_is_named() -> None:
    class Logarithm(embgrad.Objective):
        def _rows(self, rows: Any) -> Any:
            with np.errstate(all="ignore"):
                return np.log(np.abs(rows.values[:, 0])), np.zeros_like(rows.values)

    with pytest.raises(embgrad.ObjectiveError, match="at values that the method puts in place of those at 'word', for"):
        embgrad.attribute(curved(), BATCH, Logarithm(), embgrad.IntegratedGradients(3))
