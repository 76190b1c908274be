"""Models that take examples or positions in an order of their own, in a user's own passes: what a capture shows and refuses."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back
from tests.unit.engine.test_orders import (
    DIM,
    IDS,
    MASK,
    WEIGHTS,
    Prepare,
    backwards,
    built,
    by_length,
    in_place,
    in_window,
    shifted,
)
from tests.unit.refusals import refused


def test_capture_shows_a_window_and_refuses_another_order() -> None:
    model = built(in_window)
    with embgrad.capture(model, at="word") as tap:
        output = model(IDS, MASK)
        pull_back([(output, np.ones(output.shape))], list(model.parameters.values()))
    (step,) = tap.steps
    assert step.ids.tolist() == IDS.tolist()
    assert step.mask.tolist() == MASK.tolist()
    rows = WEIGHTS["table"][IDS] + WEIGHTS["place"][:4]
    np.testing.assert_allclose(
        step.values, (1 - np.tanh(rows) ** 2) * WEIGHTS["W"].sum(1) * MASK[..., None], atol=1e-14
    )
    model = built(by_length)
    with (
        refused(
            embgrad.errors.PointNotReachedError,
            "hold the ids of the model's call, of shape (3, 4)",
            "embgrad.gradients",
        ),
        embgrad.capture(model, at="word"),
    ):
        model(IDS, MASK)
    with embgrad.capture(model, at="layers.0") as tap:
        output = model(IDS, MASK)
        pull_back([(output, np.ones(output.shape))], list(model.parameters.values()))
    assert tap.steps[0].mask is None


@pytest.mark.parametrize(("prepare", "has_mask"), [(in_place, True), (shifted, False), (backwards, False)])
def test_capture_behind_ids_that_the_model_changes_has_no_mask(prepare: Prepare, has_mask: bool) -> None:
    for rows in (slice(None), slice(1, 2)):
        ids, mask, model = IDS[rows], MASK[rows], built(prepare)
        with embgrad.capture(model, at="layers.0") as tap:
            output = model(ids, mask)
            pull_back([(output, np.ones(output.shape))], list(model.parameters.values()))
        (step,) = tap.steps
        assert (step.mask is not None) is has_mask
        assert step.values.shape == (*ids.shape, DIM)
    model = built(prepare)
    with (
        contextlib.nullcontext()
        if has_mask
        else refused(embgrad.errors.UnsupportedError, "'layer.0'", "takes the batch's examples"),
        embgrad.capture(model, at="layer.0"),
    ):
        output = model(IDS, MASK)
        pull_back([(output, np.ones(output.shape))], list(model.parameters.values()))


def test_capture_behind_positions_alone_has_the_mask() -> None:
    """A lookup that is not seen, as of a quantised table, leaves the positions."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["place"], np.tile(np.arange(input_ids.shape[1]), (len(input_ids), 1)))
        return model.module("layers.0", lambda x: x.tanh(), rows).sum(1) @ model["W"]

    model = ReferenceModel(forward, dict(WEIGHTS), ["layers.0"])
    ids, mask = np.array([[3, 3, 1, 0], [2, 1, 1, 0]]), np.array([[1, 1, 1, 0], [1, 1, 1, 0]])
    with embgrad.capture(model, at="layers.0") as tap:
        output = model(ids, mask)
        pull_back([(output, np.ones(output.shape))], list(model.parameters.values()))
    np.testing.assert_array_equal(tap.steps[0].mask, mask)


def test_an_addition_in_the_users_pass_leaves_what_the_model_added() -> None:
    model, added = built(in_window), np.random.default_rng(5).normal(size=(3, 4, DIM))
    with embgrad.perturbed(model, {"word": added}):
        output = model(IDS, MASK).value
    rows = np.tanh(WEIGHTS["table"][IDS] + added + WEIGHTS["place"][:4])
    np.testing.assert_allclose(output, (rows * MASK[..., None]).sum(1) @ WEIGHTS["W"], atol=1e-14)
