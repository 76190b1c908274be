"""Examples that depend on one another or on their number: attributions are of each example's own L, or are refused."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.attribution.models import BATCH, IDS, MASK, curved, linear
from tests.unit.company import DIM, FULL, LOGIT, WEIGHTS, carried, centred, plain, rows_of, stateful

ZERO = embgrad.methods.Occlusion("zero")
METHODS = ("input_x_gradient", embgrad.methods.IntegratedGradients(3), ZERO, embgrad.methods.KernelShap(32, "zero"))


def reversed_rows(tensor: Tensor) -> Tensor:
    return Tensor(tensor.value[::-1], [(tensor, lambda g: g[::-1])])


def similarity(outputs: Tensor) -> Tensor:
    """Return for each example the product of its first logit and that of the example at the other end of the batch."""
    first = outputs.column(0)
    return first * reversed_rows(first)


@pytest.mark.parametrize("method", METHODS)
def test_a_function_of_several_examples_is_attributed_with_the_others_held_fixed(method: Any) -> None:
    made = embgrad.attribute(plain(), FULL, similarity, method)
    logits = rows_of().sum(1) @ WEIGHTS["W"][:, 0]
    shares = rows_of() @ WEIGHTS["W"][:, 0]
    expected = shares * logits[::-1, None]
    # The middle example is compared with itself: its objective is a square.
    single = [0, 2]
    np.testing.assert_allclose(made.scores[single], expected[single], atol=1e-9)
    if method == ZERO:
        np.testing.assert_allclose(made.scores[1], logits[1] ** 2 - (logits[1] - shares[1]) ** 2, atol=1e-9)
    if made.delta is not None:
        np.testing.assert_allclose(made.delta, 0, atol=1e-9)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("size", [None, 2, 3])
def test_a_model_whose_examples_meet_is_attributed_with_the_others_held_fixed(method: Any, size: int | None) -> None:
    made = embgrad.attribute(centred(), FULL, LOGIT, method, batch_size=size)
    share = 1 / 2 if size == 2 else 1 / 3  # with sub-batches the user chose who meets
    if size != 2:
        np.testing.assert_allclose(made.scores, rows_of() @ WEIGHTS["W"][:, 1] * (1 - share), atol=1e-9)


@pytest.mark.parametrize("method", METHODS[1:])
@pytest.mark.parametrize("size", [None, 3])
def test_a_model_that_carries_a_state_is_run_with_the_number_of_examples_of_the_batch(
    method: Any, size: int | None
) -> None:
    model = stateful(3, DIM)
    before = model.kept["state"]  # type: ignore[attr-defined]
    state = before.copy()
    made = embgrad.attribute(model, FULL, LOGIT, method, batch_size=size)
    np.testing.assert_allclose(made.objective, carried(rows_of(), state), rtol=1e-12)
    if made.baseline_objective is not None:
        np.testing.assert_allclose(made.baseline_objective, carried(0 * rows_of(), state), rtol=1e-12)
    if isinstance(method, embgrad.methods.Occlusion):
        for position in range(4):
            without = rows_of() * (np.arange(4) != position)[:, None]
            expected = carried(rows_of(), state) - carried(without, state)
            np.testing.assert_allclose(made.scores[:, position], expected, rtol=1e-9)
    assert model.kept["state"] is before, "the state is as it was"  # type: ignore[attr-defined]
    np.testing.assert_array_equal(before, state)


def test_a_state_of_one_example_is_that_of_each_step() -> None:
    model = stateful(1, DIM)
    state = model.kept["state"]  # type: ignore[attr-defined]
    batch = embgrad.TokenBatch(FULL[:1], tokens=[["[CLS]", "a", "b", "c"]])
    made = embgrad.attribute(model, batch, LOGIT, ZERO)
    without = rows_of()[:1] * (np.arange(4) != 2)[:, None]
    expected = carried(rows_of()[:1], state) - carried(without, state)
    np.testing.assert_allclose(made.scores[:, 2], expected, rtol=1e-9)
    deleted = embgrad.metrics.faithfulness(model, batch, LOGIT, made)
    assert deleted.leave_one_out is not None
    shorter = rows_of(np.delete(FULL[:1], 2, 1))
    np.testing.assert_allclose(
        deleted.leave_one_out[0, 2], (carried(rows_of()[:1], state) - carried(shorter, state))[0], rtol=1e-9
    )


def test_the_further_steps_of_a_tolerance_are_of_whole_batches_too() -> None:
    few = embgrad.methods.IntegratedGradients(1, rule="riemann_middle", tolerance=1e-3, most=2000)
    made, model = embgrad.attribute(stateful(3, DIM), FULL, LOGIT, few), stateful(3, DIM)
    many = embgrad.attribute(model, FULL, LOGIT, embgrad.methods.IntegratedGradients(60))
    np.testing.assert_allclose(made.scores, many.scores, atol=0.005)
    assert made.error is not None
    assert made.baseline_objective is not None
    assert (made.error <= 1e-3 * np.abs(made.objective - made.baseline_objective)).all()
    assert max(made.provenance["method"]["steps_taken"]) < 200


def test_independent_examples_are_tested_in_a_pass_without_a_warning() -> None:
    sizes: list[int] = []
    model, own = curved(), curved().forward

    def counted(model: Any, input_ids: Any, attention_mask: Any = None) -> Any:
        sizes.append(len(input_ids))
        return own(model, input_ids, attention_mask)

    model.forward = counted
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = embgrad.attribute(model, BATCH, LOGIT, ZERO)
        sizes.clear()
        embgrad.attribute(model, BATCH, LOGIT, ZERO)
        assert sizes == [2, 4, 8], "the batch, the test with two examples more, and all steps"
        sizes.clear()
        embgrad.attribute(model, BATCH, LOGIT, "input_x_gradient")
        assert sizes == [2]
        function = embgrad.attribute(model, BATCH, lambda outputs: outputs.column(1), ZERO)
    np.testing.assert_allclose(function.scores, found.scores, atol=1e-12)


def test_a_model_that_accepts_one_order_alone_is_run_in_it() -> None:
    def packed(model: Any, inputs: Any) -> Any:
        lengths = inputs["attention_mask"].sum(1)
        if (np.diff(lengths) < 0).any():
            raise RuntimeError("lengths must not fall")
        return model.forward(model, inputs["input_ids"], inputs["attention_mask"])

    batch = embgrad.TokenBatch(np.concatenate([IDS, IDS[1:]]), np.concatenate([MASK, MASK[1:]]))
    for method in METHODS:
        found, expected = (embgrad.attribute(curved(), batch, LOGIT, method, call=call) for call in (packed, None))
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-12)


def test_inputs_without_an_axis_of_examples_go_with_the_whole_batch() -> None:
    def joined(model: Any, inputs: Any) -> Any:
        assert inputs["grids"].shape == (5, 2)
        assert len(inputs["input_ids"]) == 2
        return model.forward(model, inputs["input_ids"], inputs["attention_mask"])

    batch = {"input_ids": IDS, "attention_mask": MASK, "grids": np.ones((5, 2))}
    found = embgrad.attribute(curved(), batch, LOGIT, embgrad.methods.IntegratedGradients(4), call=joined)
    expected = embgrad.attribute(curved(), BATCH, LOGIT, embgrad.methods.IntegratedGradients(4))
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-12)


def test_faithfulness_and_infidelity_replace_with_the_others_held_fixed_and_do_not_delete() -> None:
    scores = np.ones(FULL.shape)
    batch = embgrad.TokenBatch(FULL, tokens=[["[CLS]", "a", "b", "c"]] * 3)
    found = embgrad.metrics.faithfulness(centred(), batch, LOGIT, scores, remove="zero", keep_special=False)
    shares = rows_of() @ WEIGHTS["W"][:, 1] * 2 / 3
    np.testing.assert_allclose(found.leave_one_out, shares, atol=1e-9)
    exact = embgrad.metrics.infidelity(centred(), batch, LOGIT, shares, remove="zero", keep_special=False)
    np.testing.assert_allclose(exact, 0, atol=1e-20)
    for model in (centred(), stateful(3, DIM)):
        with pytest.raises(
            embgrad.errors.UnsupportedError,
            match="depends on the other 2 of the batch, or on their number, and texts of different",
        ):
            embgrad.metrics.faithfulness(model, batch, LOGIT, scores)


def test_sensitivity_is_of_each_example_with_the_others() -> None:
    noise = np.random.default_rng(1).normal(size=(1, *FULL.shape, DIM)) * 0.01
    found = embgrad.metrics.sensitivity(plain(), FULL, similarity, embgrad.methods.InputXGradient(), noise=noise)

    def by_hand(values: np.ndarray) -> np.ndarray:
        logits = values.sum(1) @ WEIGHTS["W"][:, 0]
        factors = logits[::-1] * np.array([1, 2, 1])  # the middle one is compared with itself
        return np.asarray(values * WEIGHTS["W"][:, 0] * factors[:, None, None]).reshape(3, -1)

    own, moved = by_hand(rows_of()), by_hand(rows_of() + noise[0])
    np.testing.assert_allclose(found, np.linalg.norm(moved - own, axis=1) / np.linalg.norm(own, axis=1), rtol=1e-6)


def test_a_search_of_examples_that_depend_on_one_another_is_refused() -> None:
    for model, objective in ((plain(), similarity), (centred(), LOGIT)):
        with pytest.raises(
            embgrad.errors.UnsupportedError,
            match="depends on the other 2 of the batch, as where a function compares examples",
        ):
            embgrad.search(model, FULL, objective, embgrad.methods.HotFlip(steps=1))


def test_a_search_on_a_model_that_carries_a_state_evaluates_whole_batches() -> None:
    model = stateful(3, DIM)
    state = model.kept["state"].copy()  # type: ignore[attr-defined]
    found = embgrad.search(model, FULL, LOGIT, embgrad.methods.HotFlip(steps=2, candidates=6))
    np.testing.assert_allclose(found.objective, carried(rows_of(found.batch.ids), state), rtol=1e-12)
    np.testing.assert_allclose(found.objective_before, carried(rows_of(), state), rtol=1e-12)
    alone = stateful(1, DIM)
    state = alone.kept["state"].copy()  # type: ignore[attr-defined]
    single = embgrad.search(alone, FULL[:1], LOGIT, embgrad.methods.GCG(steps=2, candidates=8))
    np.testing.assert_allclose(single.objective, carried(rows_of(single.batch.ids), state), rtol=1e-12)


def test_a_linear_model_keeps_its_closed_form() -> None:
    found = embgrad.attribute(linear(), BATCH, LOGIT, embgrad.methods.IntegratedGradients(2))
    expected = (linear()["E"].value[IDS] @ linear()["W"].value[:, 1]) * MASK
    np.testing.assert_allclose(found.scores, expected, atol=1e-12)


def test_a_search_that_deletes_tokens_is_refused_where_the_number_of_examples_counts() -> None:
    with pytest.raises(
        embgrad.errors.UnsupportedError,
        match=r"the model takes this number of examples alone, and gets the whole batch, and texts",
    ):
        embgrad.search(stateful(3, DIM), FULL, LOGIT, embgrad.methods.HotFlip(steps=1, delete=True))
    model = stateful(1, DIM)
    state = model.kept["state"].copy()  # type: ignore[attr-defined]
    found = embgrad.search(model, FULL[:1], LOGIT, embgrad.methods.HotFlip(steps=1, delete=True))
    text = found.batch.ids[found.batch.real][None]
    np.testing.assert_allclose(found.objective, carried(rows_of(text), state), rtol=1e-12)


def test_a_search_that_deletes_tokens_for_a_model_that_accepts_one_order_alone() -> None:
    def ordered(model: Any, inputs: Any) -> Any:
        ids = inputs if isinstance(inputs, np.ndarray) else inputs["input_ids"]
        if ids.shape[1] == 4 and len(ids) != 3:
            raise RuntimeError("three texts at a time")
        return model.forward(model, ids)

    method = embgrad.methods.HotFlip(steps=1, delete=True)
    found, expected = (embgrad.search(plain(), FULL, LOGIT, method, call=call) for call in (ordered, None))
    np.testing.assert_array_equal(found.batch.ids, expected.batch.ids)
    np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-12)


def test_output_tokens_of_examples_that_depend_on_one_another_are_refused() -> None:
    def forward(model: Any, ids: np.ndarray) -> Tensor:
        rows = lookup(model["E"], ids)
        return (rows + rows.mean(0)).tanh() @ model["V"]

    model = ReferenceModel(forward, {**WEIGHTS, "V": np.random.default_rng(8).normal(size=(DIM, 12))})
    assert embgrad.attribute_tokens(model, FULL).scores.shape == (3, 3, 4)
    for method in (embgrad.methods.IntegratedGradients(2), embgrad.methods.Occlusion(0)):
        with pytest.raises(
            embgrad.errors.UnsupportedError, match="tokens depend on the other 2 of the batch, of which each is"
        ):
            embgrad.attribute_tokens(model, FULL, method=method)
        single = embgrad.attribute_tokens(model, FULL[:1], method=method)
        assert single.scores.shape == (1, 3, 4)
