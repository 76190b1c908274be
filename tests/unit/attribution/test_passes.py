"""The forward passes of each method: the batch, the test of its examples, the baseline and the steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.attribution.passes import add_rows
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import BATCH, CLASSES, DIM, VOCAB, curved

LOGIT = embgrad.Logit(1)
INTEGRATED = embgrad.methods.IntegratedGradients
WEIGHTS = {
    "E": np.random.default_rng(0).normal(size=(VOCAB, DIM)),
    "W": np.random.default_rng(1).normal(size=(DIM, CLASSES)),
}


def sizes_of(model: ReferenceModel, method: Any, **options: Any) -> list[int]:
    """Return the numbers of examples of the passes of an attribution, of a model that was run before."""
    embgrad.attribute(model, BATCH, LOGIT, method, **options)
    sizes: list[int] = []
    own = model.forward

    def counted(model: Any, input_ids: Any, attention_mask: Any = None) -> Any:
        sizes.append(len(input_ids))
        return own(model, input_ids, attention_mask)

    model.forward = counted
    embgrad.attribute(model, BATCH, LOGIT, method, **options)
    return sizes


@pytest.mark.parametrize(
    ("method", "passes"),
    [
        (embgrad.methods.Saliency(), [2]),
        (embgrad.methods.InputXGradient(), [2]),
        (INTEGRATED(50), [2, 4, 2, 100]),
        (INTEGRATED(20, rule="riemann_trapezoid"), [2, 4, 40]),  # its first step is the baseline
        (INTEGRATED(20, np.ones(DIM)), [2, 4, 2, 40]),
        (embgrad.methods.SmoothGrad(6), [2, 4, 12]),
        (
            embgrad.methods.SmoothGrad(2, of=INTEGRATED(8)),
            [2, 4, 6, 32],
        ),  # zeros and two other scales choose its baseline
        (embgrad.methods.SmoothGrad(2, of=INTEGRATED(8, "zero")), [2, 4, 32]),
        (embgrad.methods.GradientShap(samples=6, sigma=0.1), [2, 4, 12, 6]),
        (embgrad.methods.SequentialIntegratedGradients(12, "zero"), [2, 4, 96, 8]),
        (embgrad.methods.Occlusion("zero"), [2, 4, 8]),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.filterwarnings("ignore:with .* do not sum")
def test_the_batch_its_test_and_all_steps_take_a_pass_each(method: Any, passes: list[int]) -> None:
    assert sizes_of(curved(), method) == passes


@pytest.mark.parametrize(
    ("size", "passes"),
    [(100, [2, 4, 2, 100]), (40, [2, 4, 2, 40, 40, 20]), (3, [2, 3, 2, *[3] * 33, 1]), (1, [1] * 104)],
)
def test_no_pass_has_more_examples_than_the_batch_size(size: int, passes: list[int]) -> None:
    assert sizes_of(curved(), INTEGRATED(50), batch_size=size) == passes


def test_the_number_of_the_batch_alone_is_run_with_it_alone() -> None:
    # The batch, its test with either example moved, the baseline, and the steps.
    assert sizes_of(curved(), INTEGRATED(50), batch_size=2) == [2] * (1 + 2 + 1 + 50)


@pytest.mark.parametrize("size", [None, 40, 10, 3, 2, 1])
def test_contributions_are_the_same_and_complete_whatever_the_passes(size: int | None) -> None:
    made = embgrad.attribute(curved(), BATCH, LOGIT, INTEGRATED(50), batch_size=size)
    whole = embgrad.attribute(curved(), BATCH, LOGIT, INTEGRATED(50), batch_size=105)
    np.testing.assert_allclose(made.values, whole.values, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(made.baseline_objective, 0, atol=1e-15)
    np.testing.assert_allclose(made.delta, 0, atol=1e-12)


def test_texts_longer_than_a_pass_has_positions_are_run_by_themselves() -> None:
    ids, model, sizes = np.random.default_rng(4).integers(VOCAB, size=(2, 2049)), curved(), []
    own = model.forward

    def counted(model: Any, input_ids: Any, attention_mask: Any = None) -> Any:
        sizes.append(len(input_ids))
        return own(model, input_ids, attention_mask)

    model.forward = counted
    made = embgrad.attribute(model, ids, LOGIT, "input_x_gradient")
    embgrad.attribute(model, ids, LOGIT, embgrad.methods.SmoothGrad(2))
    assert set(sizes[1:]) == {1}
    gradient = embgrad.gradients(curved(), ids, LOGIT)
    np.testing.assert_allclose(made.scores, (gradient.values * gradient.activations).sum(-1), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("positions", [3, 50])
@pytest.mark.parametrize("examples", [1, 2, 3])
def test_examples_of_which_each_reads_those_before_it_are_run_in_their_batch(examples: int, positions: int) -> None:
    """A recurrent net may take the examples for its positions, and one example then depends on none."""

    def forward(model: Any, ids: np.ndarray) -> Tensor:
        return (Tensor(np.tril(np.ones((len(ids), len(ids))))) @ lookup(model["E"], ids).sum(1)).tanh() @ model["W"]

    ids = np.random.default_rng(2).integers(0, VOCAB, (examples, positions))
    made = embgrad.attribute(ReferenceModel(forward, WEIGHTS), ids, LOGIT, INTEGRATED(60))
    sums = WEIGHTS["E"][ids].sum(1)
    end = np.tanh(np.cumsum(sums, 0)) @ WEIGHTS["W"][:, 1]
    start = np.tanh(np.cumsum(sums, 0) - sums) @ WEIGHTS["W"][:, 1]  # those before it stay as they are
    np.testing.assert_allclose(made.objective, end, atol=1e-12)
    np.testing.assert_allclose(made.scores.sum(1), end - start, atol=1e-6)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_gradient_that_is_not_finite_at_the_baseline_alone_is_not_needed() -> None:
    def forward(model: Any, ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], ids)
        squares = (rows * rows).sum(1)
        lengths = np.sqrt(squares.value)
        return Tensor(lengths, [(squares, lambda g: g / (2 * lengths))]) @ model["W"]

    made = embgrad.attribute(ReferenceModel(forward, WEIGHTS), BATCH.ids, LOGIT, INTEGRATED(4))
    rows = WEIGHTS["E"][BATCH.ids]
    lengths = np.sqrt((rows**2).sum(1))
    expected = rows**2 / lengths[:, None] * WEIGHTS["W"][:, 1]
    np.testing.assert_allclose(made.values, expected, rtol=1e-12)
    np.testing.assert_allclose(made.baseline_objective, 0, atol=1e-15)


@pytest.mark.parametrize("start", range(7))
@pytest.mark.parametrize("count", range(1, 9))
def test_rows_are_added_in_their_order(start: int, count: int) -> None:
    rows = np.random.default_rng(3).normal(size=(count, 2, 2)) * 10.0 ** np.arange(count)[:, None, None]
    total, expected = np.ones((3, 2, 2)), np.ones((3, 2, 2))
    np.add.at(expected, np.arange(start, start + count) % 3, rows)
    add_rows(total, start, rows)
    np.testing.assert_array_equal(total, expected)
