"""The certificate's examples that are run again: alone, beside others, in another order and without padding."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.registry import bind
from embgrad.engine.check_examples import Reruns, _other_ids, _Trial
from embgrad.engine.options import GradientOptions
from embgrad.engine.question import Question
from embgrad.results.certificate import worst
from embgrad.testing.reference import ReferenceModel, Tensor, lookup
from tests.unit.engine.checked import (
    CLASSES,
    DIM,
    IDS,
    PROJECTION,
    centred,
    certificate,
    classify,
    layered,
    linear,
    weights,
)

PADDED = embgrad.TokenBatch([[3, 5, 7, 2], [2, 9, 0, 0], [7, 1, 4, 0]], [[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]])


def masked(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
    """Return a model's output that reads no padding."""
    rows = lookup(model["E"], input_ids) * Tensor(attention_mask[..., None].astype(model["E"].value.dtype))
    return rows.tanh().sum(1) @ model["H"]


def test_examples_are_the_same_alone_and_beside_others_and_without_padding() -> None:
    for objective in (PROJECTION, embgrad.CrossEntropy([0, 2, 1]), embgrad.Logit([1, 0, 2])):
        for dtype in ("float64", "float32"):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = certificate(masked, objective, batch=PADDED, dtype=dtype)
            assert max(found.independence, found.neighbours, found.order, found.padding) < 1e-5
            assert found.unrun == {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert certificate(masked, batch=PADDED[:1]).padding is None
        alone = certificate(masked, batch=PADDED[1:2])
    assert alone.padding < 1e-12
    assert alone.neighbours is None is alone.order


def test_per_position_objectives_without_padding() -> None:
    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (
            rows + (rows * Tensor(attention_mask[..., None] * 1.0)).sum(1).reshape(len(rows.value), 1, DIM)
        ).tanh() @ model["H"]

    moved = embgrad.TokenBatch(PADDED.ids[:, ::-1], PADDED.mask[:, ::-1])
    for batch, position in ((PADDED, [3, 1, 0]), (PADDED, [-1, -2, -1]), (moved, [0, 3, 2]), (moved, None)):
        found = certificate(forward, embgrad.Logit(1, position=position), batch=batch)
        assert found.padding < 1e-12
        assert found.order < 1e-12
    labels = np.where(PADDED.mask, PADDED.ids % CLASSES, -100)
    found = certificate(forward, embgrad.CrossEntropy(labels), batch=PADDED)
    assert found.padding is None
    assert found.unrun == {"padding": "the objective has a label for each position"}
    function = certificate(forward, lambda outputs: outputs.sum(2).mean(1), batch=PADDED)
    assert set(function.unrun) == {"order", "padding"}


def test_padding_that_is_read_is_warned_of() -> None:
    def leaking(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        rows = lookup(model["E"], input_ids)
        return (rows + rows.mean(1).reshape(len(rows.value), 1, DIM)).tanh().mean(1) @ model["H"]

    with pytest.warns(embgrad.EmbgradWarning, match=r"without its padding an example has another gradient at 'word'"):
        found = certificate(leaking, batch=PADDED)
    assert found.padding > 0.1
    assert max(found.independence, found.order, found.neighbours) < 1e-12

    def counted(outputs: Tensor) -> Tensor:
        return outputs.sum(2).mean(1)

    def hidden(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        return lookup(model["E"], input_ids).tanh()

    first = embgrad.TokenBatch(PADDED.ids[[1, 0, 2]], PADDED.mask[[1, 0, 2]])
    with pytest.warns(embgrad.EmbgradWarning, match="the model or the objective reads padding"):
        assert certificate(hidden, counted, batch=first).padding > 0.1


@pytest.mark.filterwarnings("ignore:check=True")
@pytest.mark.parametrize("at", ["word", "rows"])
def test_rows_of_other_examples_are_wrong(at: str) -> None:
    """A model that sorts its batch, as for packing: the rows inside are in its order."""

    def forward(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Tensor:
        order = np.argsort(-attention_mask.sum(1), kind="stable")
        back = np.argsort(order)

        def sort(rows: Tensor) -> Tensor:
            made = Tensor(rows.value[order], [(rows, lambda g: g[back])])
            return made * Tensor(attention_mask[order][..., None] * 1.0)

        inside = model.module("rows", sort, lookup(model["E"], input_ids)).tanh()
        return Tensor(inside.value[back], [(inside, lambda g: g[order])]).sum(1) @ model["H"]

    batch = embgrad.TokenBatch(PADDED.ids[[1, 0, 2]], PADDED.mask[[1, 0, 2]])
    model = ReferenceModel(forward, weights(), modules=["rows"])
    if at == "word":
        assert embgrad.gradients(model, batch, PROJECTION, check=True).certificate.order < 1e-12
        return
    with pytest.raises(
        embgrad.errors.CertificationError, match="the rows at 'rows' are not those of the batch's examples"
    ) as error:
        embgrad.gradients(model, batch, PROJECTION, at=at, check=True)
    assert error.value.certificate.order > 0.1
    same = embgrad.TokenBatch(np.full((3, 4), 5), batch.mask)
    with pytest.raises(
        embgrad.errors.CertificationError,
        match="with the examples in another order, their objectives are the same and their rows are not",
    ):
        embgrad.gradients(model, same, PROJECTION, at=at, check=True)


def test_a_state_that_is_carried_from_call_to_call_is_named() -> None:
    def forward(model: Any, input_ids: np.ndarray) -> Tensor:
        sums = lookup(model["E"], input_ids).sum(1)
        kept = model.state if len(model.state) == len(input_ids) else np.zeros((len(input_ids), DIM))
        out = (sums + Tensor(kept)).tanh()
        model.state = out.value * 1.0
        return out @ model["H"]

    model = ReferenceModel(forward, weights())
    model.state = np.random.default_rng(9).normal(size=(3, DIM)) * 3  # type: ignore[attr-defined]
    with pytest.warns(embgrad.EmbgradWarning, match="depend on one another, or on 'state', which the model keeps"):
        found = embgrad.gradients(model, IDS, PROJECTION, check=True).certificate
    assert found.independence > 0.1
    assert found.order > 0.1
    assert found.neighbours < 1e-12


def test_examples_that_depend_on_one_another_are_warned_of() -> None:
    with pytest.warns(
        embgrad.EmbgradWarning, match=r"an example has another gradient at 'word' .* depend on one another\. Give"
    ):
        found = certificate(centred)
    assert found.neighbours > 0.01
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split = certificate(centred, split=True)
    assert split.neighbours > 0.01

    def similarity(outputs: Tensor) -> Tensor:
        first = outputs.column(0)
        return first * Tensor(first.value[::-1], [(first, lambda g: g[::-1])])

    with pytest.warns(embgrad.EmbgradWarning, match="depend on one another"):
        assert certificate(layered, similarity, batch=IDS[:2]).neighbours > 0.1


def test_a_warning_of_the_call_is_not_given_again_by_its_tests() -> None:
    def unmasked(model: Any, input_ids: np.ndarray) -> Tensor:
        return classify(model, lookup(model["E"], input_ids))

    batch = embgrad.TokenBatch(PADDED.ids[[1, 0, 2]], PADDED.mask[[1, 0, 2]])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        certificate(unmasked, batch=batch)
    texts = [str(item.message) for item in caught]
    assert sum("mask" in text and "check=True" not in text for text in texts) == 1
    assert len(texts) == len(set(texts))


def test_tests_that_the_model_does_not_accept_have_a_reason() -> None:
    def fixed(model: Any, inputs: Any) -> Any:
        if len(inputs) != 3:
            raise RuntimeError("three texts at a time")
        return model.forward(model, inputs)

    model = ReferenceModel(layered, weights())
    found = embgrad.gradients(model, IDS, PROJECTION, call=fixed, check=True).certificate
    assert found.independence is None
    assert found.unrun == {"independence": "RuntimeError: 'three texts at a time'"}
    assert found.order < 1e-12
    same = certificate(layered, batch=np.full((2, 3), 4))
    assert same.unrun == {"neighbours": "all examples hold the same ids"}
    scalar = certificate(layered, embgrad.Scalar(lambda outputs: outputs.sum(1).sum(0)))
    assert set(scalar.unrun.values()) == {"a Scalar objective reduces over the batch"}
    changed = certificate(layered, override={"word": lambda value: value * 2.0})
    assert set(changed.unrun) == {"neighbours", "order"}
    assert certificate(layered, at="pos").unrun["order"] == "the point is not seen as (example, position, dim)"
    further = {"input_ids": PADDED.ids, "attention_mask": PADDED.mask, "spans": np.ones((3, 4))}
    with pytest.warns(embgrad.EmbgradWarning, match="spans"):
        apart = certificate(masked, batch=further)
    assert "'spans'" in apart.unrun["padding"]
    assert worst([apart, found]).unrun == {**apart.unrun, **found.unrun}


@pytest.mark.parametrize(
    ("ids", "mask", "others"),
    [
        ([[1, 5, 2], [1, 7, 2]], None, [[1, 7, 2], [1, 5, 2]]),  # what all hold stays
        ([[1, 5, 2], [1, 2, 2]], None, [[2, 1, 5], [2, 5, 5]]),  # unless only one id is left
        ([[3, 4, 9], [5, 5, 4]], [[1, 1, 1], [1, 1, 0]], [[4, 5, 3], [9, 9, 4]]),  # and padding
        ([[4, 4], [4, 4]], None, [[4, 4], [4, 4]]),
    ],
)
def test_ids_are_exchanged_for_the_next_larger(ids: Any, mask: Any, others: Any) -> None:
    np.testing.assert_array_equal(_other_ids(embgrad.TokenBatch(ids, mask)), others)


def test_differences_are_relative_to_gradients_and_to_slopes() -> None:
    result = SimpleNamespace(
        values=np.array([[[3.0, 4.0]], [[0.0, 0.002]]]),
        activations=np.array([[[0.6, 0.8]], [[2.0, 0.0]]]),
        objective=np.array([-2.0, 1.0]),
    )
    trial = _Trial(None, None, "word", result, 0.0, None)  # type: ignore[arg-type]
    moved = np.array([[0.0, 0.0], [0.0, 0.005]]).reshape(2, 1, 2)
    # The second gradient is shorter than a thousandth of the longest, 0.005.
    assert trial.apart(result.values + moved, result.values) == pytest.approx(1.0)
    assert trial.apart(result.values[:1] * 1.5, result.values[:1]) == pytest.approx(0.5)
    assert trial.apart_in_objective(np.array([2.0]), np.array([1])) == pytest.approx(1 / 5)  # of the slope, 5 · 1
    result.activations *= 0.1
    assert trial.apart_in_objective(np.array([1.0, 2.0]), np.array([1, 0])) == pytest.approx(4 / 2)  # of L
    result.values, result.objective = 0 * result.values, 0 * result.objective
    assert trial.apart(moved, result.values) == pytest.approx(0.005)
    assert trial.apart_in_objective(np.array([0.5]), np.array([0])) == 0.5


CHANGED, OTHERS = "the row of example 0, position 1 changes with another's id", "the rows of others change"


@pytest.mark.parametrize(
    ("rows", "own", "objective", "reads_ids", "message"),
    [
        ({}, 1.0, 0.0, True, None),
        ({(0, 1): 1.0}, 0.0, 0.0, True, CHANGED),
        ({(0, 1): 1.0}, 1.0, 0.0, True, CHANGED),
        ({(0, 1): 1.0}, 0.0, 0.0, False, OTHERS),
        ({(2, 0): 0.21}, 0.0, 0.0, False, OTHERS),
        ({(2, 0): 0.19}, 0.0, 0.0, False, None),  # less than 0.1 of the largest, 2
        ({(0, 1): 1.0}, 1.0, 0.0, False, None),  # and so does the row of the id
        ({(0, 1): 1.0}, 0.0, 1.0, False, None),  # and so does L: the examples meet
    ],
)
def test_rows_that_change_with_the_ids_of_others(
    rows: Any, own: float, objective: float, reads_ids: bool, message: str | None
) -> None:
    batch = embgrad.TokenBatch(IDS)
    question = Question(bind(ReferenceModel(linear, weights()), None), batch, (PROJECTION,), GradientOptions())
    before = embgrad.gradients(ReferenceModel(linear, weights()), IDS, PROJECTION)
    before = replace(before, activations=np.full((3, 2, DIM), 2.0))
    change = np.zeros((3, 2, DIM))
    for place, size in {**rows, (1, 0): own}.items():
        change[(*place, 3)] = size
    after = replace(
        before, activations=2.0 + change, objective=before.objective + np.array([objective, 9.0, objective])
    )
    located = SimpleNamespace(lookup=SimpleNamespace(indices=IDS[::-1]) if reads_ids else None)
    made, asked = Reruns(), []

    def run_question(other: Question) -> Any:
        asked.append(other.batch.ids.tolist())
        return [{"word": after}]

    _Trial(question, located, "word", before, 0.1, run_question).neighbours(made)  # type: ignore[arg-type]
    assert asked == [[[3, 5], [3, 1], [7, 1]]], "the second example has the next larger ids"
    assert (made.misplaced is None) is (message is None)
    assert (message or "") in (made.misplaced or "")
