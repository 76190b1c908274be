"""What attributions of models that carry a state, and of functions of several examples, must be, in any framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad

LOGIT = embgrad.Logit(1)
ZERO = embgrad.methods.Occlusion("zero")


def expect_of_own_number(model: Any, ids: Any, own: np.ndarray, *, cut: bool = True, **options: Any) -> None:
    """Expect attributions that are those of single passes of as many examples as the batch has.

    Args:
        model: a model that carries a state.
        ids: the batch.
        own: L of each example by the framework's own forward pass.
        cut: whether the model accepts sub-batches, and computes something else for them.
        options: further arguments of each call.
    """
    g = embgrad.gradients(model, ids, LOGIT, **options)
    np.testing.assert_allclose(g.objective, own, rtol=1e-5)

    def at(values: np.ndarray) -> Any:
        return embgrad.gradients(model, ids, LOGIT, override={"word": values}, **options)

    occluded = embgrad.attribute(model, ids, LOGIT, ZERO, **options)
    for position in range(g.shape[1]):
        without = at(g.activations * (np.arange(g.shape[1]) != position)[:, None])
        np.testing.assert_allclose(occluded.scores[:, position], g.objective - without.objective, atol=2e-6)
    steps = embgrad.attribute(
        model, ids, LOGIT, embgrad.methods.IntegratedGradients(2, rule="riemann_middle"), **options
    )
    by_hand = np.mean([at(g.activations * share).values for share in (0.25, 0.75)], 0) * g.activations
    np.testing.assert_allclose(steps.values, by_hand, rtol=1e-4, atol=2e-6)
    again = embgrad.gradients(model, ids, LOGIT, **options)
    np.testing.assert_array_equal(again.values, g.values, "the state is that before the calls")
    if cut:
        with pytest.raises(
            embgrad.errors.UnsupportedError, match=r"the model keeps .* from call to call, and L of example"
        ):
            embgrad.gradients(model, ids, LOGIT, batch_size=1, **options)


def expect_state_of_one_number(make: Callable[[int], Any], ids: Any, **options: Any) -> None:
    """Expect results of a state that passes of one number of examples read and write to be those of the batch's own number.

    Args:
        make: returns a model that carries a state of so many examples, not zeros, and reads and writes it in a pass of as many.
        ids: a batch of three examples.
        options: further arguments of each call.
    """
    stateless = embgrad.gradients(make(7), ids, LOGIT, **options)
    for number, size in ((3, 1), (3, 2), (1, 2)):  # the state is that of the whole batch, or of the last sub-batch
        for call in (embgrad.gradients, embgrad.evaluate):
            with pytest.raises(
                embgrad.errors.UnsupportedError,
                match=rf"the model keeps .* and L of example {'2' if number == 1 else '.'} is .* one of 3.*batch_size=3",
            ):
                call(make(number), ids, LOGIT, batch_size=size, **options)
    for size in (None, 3):
        g = embgrad.gradients(make(3), ids, LOGIT, batch_size=size, **options)
        assert (np.abs(g.objective - stateless.objective) > 1e-4).all()
    parts = embgrad.gradients(make(7), ids, LOGIT, batch_size=2, **options)
    np.testing.assert_allclose(parts.values, stateless.values, rtol=1e-5, atol=1e-6)
    for number in (3, 9, 12):  # two steps and an end of three examples are nine rows, and four positions twelve
        model = make(number)
        own = embgrad.evaluate(model, ids, LOGIT, **options)
        expect_of_own_number(model, ids, own, cut=number == 3, **options)
